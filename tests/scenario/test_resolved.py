"""What decides each setting: --set, the file, the software stack, a default, in this order."""

import json

import pytest

from simtrain.scenario import load_scenario
from simtrain.scenario.resolved import ResolvedSetting, resolved_settings
from simtrain.scenario.software import load_stack
from tests.helpers.command_line import call, refused

MEGATRON = load_stack("megatron_core")


def setting(field: str, *overrides: str) -> ResolvedSetting:
    """Return a setting of llama3_70b, which has 64 GPUs and Megatron-Core."""
    resolved = resolved_settings(load_scenario("llama3_70b", overrides))
    return next(each for each in resolved.settings if each.field == field)


def test_the_first_that_has_a_value_decides() -> None:
    default = setting("overlap.tensor_parallel")
    assert (default.value, default.decided_by) == (True, "software stack")
    assert default.source == MEGATRON.overlap_tensor_parallel.source
    overridden = setting("overlap.tensor_parallel", "overlap.tensor_parallel=false")
    assert (overridden.value, overridden.decided_by) == (False, "--set")
    assert setting("overlap.userbuffers").decided_by == "default"


def test_a_file_has_a_place() -> None:
    tensor = setting("parallelism.tensor")
    assert (tensor.value, tensor.decided_by) == (8, "scenario")
    assert tensor.source.endswith("llama3_70b.yaml:21:11")
    assert setting("parallelism.tensor", "parallelism.tensor=4").decided_by == "--set"


def test_a_default_of_the_stack_holds_for_layouts_that_can_have_it() -> None:
    interleaved = "parallelism.interleave=5"
    assert setting("overlap.pipeline").value is False
    assert setting("overlap.pipeline", interleaved).value is True
    assert setting("overlap.pipeline", interleaved).decided_by == "software stack"


def test_run_prints_the_settings_and_simulates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simtrain.commands.run.simulate_with_status", None)
    words = "run", "llama3_70b", "--show", "settings"
    printed = json.loads(call(*words, "--format=json").stdout)
    assert printed["software"] == "megatron_core"
    assert {
        "field": "overlap.userbuffers",
        "value": False,
        "decided_by": "default",
        "source": "",
    } in (printed["settings"])
    assert "The first that has a value decides" in call(*words).stdout.replace("\n", " ")
    assert "has no effect with --show settings" in refused(*words, "--draws", "3")
