"""An unaligned parameter gather over a pipeline warns with its cost in seconds."""

import json
from typing import Any

import pytest

from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.simulation import simulate
from simtrain.studies.warnings import unaligned_gather_warnings
from tests.helpers.command_line import call

GATHERED = [
    "software=megatron_core",
    "parallelism.interleave=5",
    "parallelism.data=8",
    "batch.global=256",
    "memory.zero_stage=1",
    "overlap.data_parallel=true",
    "overlap.parameter_gather=true",
]
UNALIGNED = [*GATHERED, "overlap.align_parameter_gather=false"]


def scenario(*assignments: str) -> Scenario:
    return load_scenario("llama3_70b", assignments)


def test_the_warning_has_the_seconds_that_alignment_saves() -> None:
    result = simulate(scenario(*UNALIGNED))
    aligned_s = simulate(scenario(*GATHERED)).iteration_time_s
    (warning,) = unaligned_gather_warnings(result)
    seconds, share = (number.value for _, number in warning.numbers)
    assert seconds == result.iteration_time_s - aligned_s > 0
    assert share == pytest.approx(seconds / aligned_s)


@pytest.mark.parametrize(
    "assignments",
    [
        GATHERED,
        [*UNALIGNED, "overlap.parameter_gather=false"],
        [*UNALIGNED, "parallelism.interleave=1"],
    ],
)
def test_other_results_neither_warn_nor_are_simulated_again(
    assignments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = simulate(scenario(*assignments))

    def refuse(*_: Any) -> None:
        pytest.fail("simulated again")

    monkeypatch.setattr("simtrain.studies.warnings._time_with", refuse)
    assert unaligned_gather_warnings(result) == []


def test_run_and_report_show_the_warning() -> None:
    arguments = [word for one in UNALIGNED for word in ("--set", one)]
    words = "Each stage starts its parameter gathers on its own"
    assert words in " ".join(call("run", "llama3_70b", *arguments).stdout.split())
    remarks = json.loads(call("run", "llama3_70b", *arguments, "--json").stdout)["remarks"]
    assert [one for one in remarks if one["text"].startswith(words) and len(one["numbers"]) == 2]
