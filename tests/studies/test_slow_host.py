"""A result that a slow host would change says so, with the iteration time on that host."""

from typing import Any

import pytest

from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.simulation import simulate
from simtrain.studies.warnings import warnings_on
from tests.helpers.command_line import call

SMALL = [
    "software=torchtitan_compiled",
    "model.hidden_size=1024",
    "model.num_attention_heads=8",
    "model.num_query_groups=8",
    "model.ffn_hidden_size=2816",
    "model.seq_length=1024",
]

LARGE = ["model.hidden_size=16384", "model.num_attention_heads=128", "model.num_layers=2"]


def scenario(*assignments: str) -> Scenario:
    return load_scenario("llama3_8b", assignments)


def test_the_warning_has_the_time_on_a_slow_host() -> None:
    result = simulate(scenario(*SMALL))
    slow_s = simulate(scenario(*SMALL, "software.host_issue=100 us")).iteration_time_s
    (warning,) = warnings_on(result)
    _, _, seconds, longer = (number.value for _, number in warning.numbers)
    assert seconds == slow_s > result.iteration_time_s
    assert longer == pytest.approx(slow_s / result.iteration_time_s - 1)


@pytest.mark.parametrize(
    "assignments",
    [
        [*SMALL, "software.cuda_graphs=true"],
        [*SMALL, "software.host_issue=20 us"],
        LARGE,
    ],
)
def test_other_results_neither_warn_nor_are_simulated_again(
    assignments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = simulate(scenario(*assignments))

    def refuse(*_: Any) -> None:
        pytest.fail("simulated again")

    monkeypatch.setattr("simtrain.studies.warnings._slow_time_s", refuse)
    assert warnings_on(result) == []


def test_run_shows_the_warning() -> None:
    arguments = [word for assignment in SMALL for word in ("--set", assignment)]
    assert "Perhaps host-bound" in call("run", "llama3_8b", *arguments).stdout
