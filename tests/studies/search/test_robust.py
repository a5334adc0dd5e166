"""The objective `robust`: the upper end of the 90 % interval."""

import pytest

from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.registry import OBJECTIVES
from simtrain.studies.search.run import search
from simtrain.studies.simulation import simulate
from tests.helpers.search_spaces import base

ROBUST = OBJECTIVES["robust"]


def test_its_value_is_the_upper_end_of_a_result() -> None:
    best = search(base(), (4,), "robust", top=3).ranked[0]
    result = simulate(best.evaluation.scenario)
    assert ROBUST.key(best.evaluation)[0] == pytest.approx(result.interval.p95_s, rel=1e-12)


def test_what_is_extrapolated_makes_it_later_and_a_bound_leaves_that_out() -> None:
    for scenario in (base(), base(model={"hidden_size": 520, "num_attention_heads": 8})):
        plain, full = Evaluator(), Evaluator(extrapolation=True)
        evaluation, with_share = plain.evaluate(scenario), full.evaluate(scenario)
        assert evaluation.run and with_share.run and with_share.run.extrapolated is not None
        times = ROBUST.key(evaluation)[0], ROBUST.key(with_share)[0]
        assert (times[0] < times[1]) == (with_share.run.extrapolated > 0)
        bound = ROBUST.value(scenario, evaluation.run.iteration_time_s, evaluation.peak_bytes)
        assert bound == times[0]
