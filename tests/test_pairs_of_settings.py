"""Every pair of settings is evaluated alike by both engines, or refused with an error."""

from collections.abc import Iterable

import pytest

from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluation, Evaluator
from tests.helpers.pairwise import legal_pairs

COMPILED = Evaluator(allow_oom=True, breakdowns=True)
REFERENCE = Evaluator(allow_oom=True, breakdowns=True, engine="simpy")


def evaluated(evaluator: Evaluator, scenario: Scenario) -> Evaluation | str:
    """Return the evaluation, or the error of a cluster that cannot run the scenario."""
    try:
        return evaluator.evaluate(scenario)
    except InputError as error:
        return str(error)


def check(scenarios: Iterable[Scenario]) -> None:
    for scenario in scenarios:
        one, other = (evaluated(each, scenario) for each in (COMPILED, REFERENCE))
        if isinstance(one, str) or isinstance(other, str):
            assert one == other
        else:
            assert (one.run, one.peak_bytes) == (other.run, other.peak_bytes)


@pytest.mark.ci
def test_most_pairs_of_settings_are_evaluated_or_refused() -> None:
    # A quarter of the scenarios that all pairs take: the first ones have the most pairs.
    check(legal_pairs(seed=1, most=700))
