"""An algorithm of collectives is added with a class in a new file and its place in the registry."""

import json
import pathlib
from typing import Any

import pytest

from tests.helpers.checkout import Checkout

pytestmark = [pytest.mark.slow, pytest.mark.ci]

NEW_FILE = pathlib.Path(__file__).parents[1] / "helpers" / "recursive_doubling.py"
NAME = "recursive_doubling"
PACKAGE = "simtrain/hardware/algorithms"
ENTRY = f"""collectives:
  {NAME}:
    value:
      - name: LL
        base_latency: 100 us
        node_step: 0 us
        network_step: 50 us
        efficiency: 0.5
    source: a test
"""
SCENARIO = (
    "gpt2_1_5b",
    *("--set", "cluster=h100_sxm", "--set", "parallelism.data=16"),
    *("--set", "batch.micro=1", "--set", "batch.global=16"),
)
CHOICE = "hardware.collectives.algorithm="


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy of the project with one more algorithm, and a profile that has it."""
    copy = Checkout.copy(tmp_path_factory.mktemp("checkout"))
    copy.add(f"{PACKAGE}/{NAME}.py", NEW_FILE.read_text("utf-8"))
    line = f"from simtrain.hardware.algorithms.{NAME} import RecursiveDoubling"
    copy.replace(f"{PACKAGE}/__init__.py", "\n\nFALLBACK", f"\n{line}\n\nFALLBACK")
    copy.replace(f"{PACKAGE}/__init__.py", "Switch())", "Switch(), RecursiveDoubling())")
    copy.replace("hw_profiles/h100_sxm.yaml", "\ncollectives:\n", f"\n{ENTRY}")
    return copy


def run(checkout: Checkout, *settings: str) -> dict[str, Any]:
    """Return the result of a run with 16 replicas on two nodes."""
    changes = [word for setting in settings for word in ("--set", setting)]
    result: dict[str, Any] = json.loads(checkout.call("run", *SCENARIO, *changes, "--format=json"))
    return result


def test_profiles_have_its_entry(checkout: Checkout) -> None:
    entries = json.loads(checkout.call("show", "h100_sxm", "--format=json"))["entries"]
    (protocol,) = entries[f"collectives.{NAME}"]["value"]
    assert protocol["network_step"] == 50e-6
    assert "LL: 100 µs" in checkout.call("show", "h100_sxm")


def test_its_time_is_in_predictions_if_it_is_chosen(checkout: Checkout) -> None:
    """At half of the bandwidth and twice the bytes, NCCL's other algorithms are faster."""
    ring, chosen, auto = (run(checkout, CHOICE + word) for word in ("ring", NAME, "auto"))
    assert chosen["iteration_time_s"] > ring["iteration_time_s"] >= auto["iteration_time_s"]
    gathers = ("memory.zero_stage=1", "precision.gradients=fp32")
    assert run(checkout, CHOICE + NAME, *gathers)["iteration_time_s"] > 0


def test_faster_networks_shorten_its_latencies(checkout: Checkout) -> None:
    words = "compare", *SCENARIO, "--set", f"{CHOICE}{NAME}", "--format=json"
    latencies_s = []
    for latency in ("100 us", "1 ms"):
        entry = f"[{{name: LL, base_latency: {latency}, node_step: 0 s, efficiency: 0.5}}]"
        compared = checkout.call(*words, "--set", f"hardware.collectives.{NAME}={entry}")
        (scenario,) = json.loads(compared)["scenarios"]
        more_s = scenario["with_more"]["iteration_time_s"]["network_latencies"]
        latencies_s.append(scenario["iteration_time_s"] - more_s)
    # The gradients are reduced once. A tenth more divides latencies by 1.1.
    assert latencies_s[1] - latencies_s[0] == pytest.approx(0.9e-3 * (1 - 1 / 1.1))


def test_reports_name_its_entry_as_what_limits_collectives(checkout: Checkout) -> None:
    operators = checkout.call("run", *SCENARIO, "--set", CHOICE + NAME, "--show", "ops")
    assert f"collectives.{NAME}" in operators
