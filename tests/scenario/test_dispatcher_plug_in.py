"""A dispatcher and a profile that has it are added by any installed package, nothing else."""

import json

import pytest

from tests.helpers.command_line import ROOT
from tests.helpers.outsider import Outsider

pytestmark = pytest.mark.slow

NEW_FILE = '''
"""Exchanges as DeepEP's, by kernels of copy engines."""

from simtrain.scenario.dispatchers import Dispatcher, ExpertSteps, TensorT


class CopyEngines(Dispatcher):
    """Sends tokens once, with counts that are on the host already."""

    name = "copy_engines"
    summary = "sends tokens as deepep does, by copy engines"
    needs_entry = True
    megatron = "flex", "copy"
    torchtitan = "copy"

    def record(self, steps: ExpertSteps[TensorT]) -> TensorT:
        """Send, permute, compute, add up and send back."""
        routed = steps.permute(steps.send_once())
        return steps.return_once(steps.unpermute(steps.experts(routed)))
'''
ENTRY = """dispatchers:
  copy_engines:
    num_sms:
      value: 1
      source: a test
    node_efficiency:
      value: 0.9
      source: a test
    network_efficiency:
      value: 0.9
      source: a test
"""
CHOICE = "--set", "parallelism.expert_dispatch=copy_engines", "--set", "cluster=ours"


@pytest.fixture(scope="module")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """An installed package with one more dispatcher, and a profile that has it."""
    profile = (ROOT / "hw_profiles" / "h100_sxm.yaml").read_text("utf-8")
    assert profile.count("\ndispatchers:\n") == 1
    profile = profile.replace("\ndispatchers:\n", f"\n{ENTRY}").replace(
        "name: h100_sxm", "name: ours"
    )
    return Outsider.install(
        tmp_path_factory.mktemp("outsider"),
        {"copy_engines.py": NEW_FILE, "profiles/ours.yaml": profile},
        {
            "dispatchers": {"copy_engines": "copy_engines:CopyEngines"},
            "hw_profiles": {"ours": "profiles"},
        },
    )


def test_a_layer_is_dispatched_by_it(outsider: Outsider) -> None:
    """It reaches more of the links than DeepEP, and the host does not wait."""
    times = [
        json.loads(outsider.call("run", "qwen3_30b_a3b", *words, "--format=json"))[
            "iteration_time_s"
        ]
        for words in (("--set", "parallelism.expert_dispatch=deepep"), CHOICE)
    ]
    assert times[1] < times[0]
    operators = outsider.call("run", "qwen3_30b_a3b", *CHOICE, "--show", "ops")
    assert "dispatchers.copy_engines" in operators
    entries = json.loads(outsider.call("show", "ours", "--format=json"))["entries"]
    assert entries["dispatchers.copy_engines.num_sms"]["value"] == 1


@pytest.mark.ci
def test_rules_know_it(outsider: Outsider) -> None:
    error = outsider.refused("run", "qwen3_30b_a3b", *CHOICE, "--set", "cluster=h200_sxm")
    assert "E399" in error and "no entry dispatchers.copy_engines" in error
    error = outsider.refused("run", "qwen3_30b_a3b", *CHOICE, "--set", "parallelism.expert=1")
    assert "E496" in error
    error = outsider.refused("run", "qwen3_30b_a3b", "--set", f"{CHOICE[1]}_2")
    assert "hybridep, copy_engines" in error and "did you mean copy_engines?" in error
