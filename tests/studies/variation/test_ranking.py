"""Studies that rank iterations take the mean of draws if a scenario varies."""

import pytest

import simtrain
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.search.run import search
from simtrain.studies.search.search_end import End
from simtrain.views.search import search_view
from tests.helpers.search_spaces import base
from tests.helpers.varied_iterations import STILL, replicas

SLOW = STILL | {"variation.slow.factor": 2}
"""Rank 0 takes twice as long; nothing is random."""


def varied() -> Scenario:
    return base().replace({"variation.kernels": 0.05})


def test_an_iteration_that_varies_has_the_mean_time_of_its_draws() -> None:
    scenario = replicas(4, {"variation.kernels": 0.05})
    run = Evaluator().evaluate(scenario).run
    assert run is not None and run.drawn is not None
    assert run.iteration_time_s == simtrain.draw(scenario, draws=run.drawn.draws).time.mean
    tokens = scenario.batch.global_ * scenario.model.seq_length
    assert run.tokens_per_s == tokens / run.iteration_time_s


def test_a_variation_of_zero_gives_the_time_without_variation_to_the_bit() -> None:
    plain, still = (Evaluator().evaluate(replicas(4, each)).run for each in ({}, STILL))
    assert plain and still and plain.drawn is None
    assert plain.iteration_time_s == still.iteration_time_s


@pytest.mark.slow
def test_a_search_of_drawn_times_proves_nothing() -> None:
    result = search(varied(), (4,), top=3)
    assert result.outcome.end is End.FOUND_DRAWN and result.outcome.stopped is None
    assert not result.exact and not result.fastest_exact and result.gap is None
    data = result.to_dict()
    assert data["draws"] == [20, 20, 20] and data["exact"] is False
    assert data["lower_bound_iteration_time_s"] is None
    times_s = [layout.iteration_time_s for layout in result.ranked]
    assert times_s == sorted(times_s)
    for layout in result.ranked:
        assert layout.iteration_time_s == simtrain.draw(layout.scenario, draws=20).time.mean


@pytest.mark.slow
def test_a_search_by_percentile_proves_nothing_either() -> None:
    result = search(base(), (4,), "p95", top=1)
    assert result.outcome.end is End.FOUND_DRAWN and not result.exact
    assert "draws" not in result.to_dict()  # times have no variation, only percentiles have


def test_a_search_without_variation_is_exact() -> None:
    result = search(base(), (4,), top=1)
    assert result.outcome.end is End.FOUND_ALL and result.exact and "draws" not in result.to_dict()


@pytest.mark.slow
@pytest.mark.ci
def test_the_drawn_search_finds_the_best_mean_of_all_layouts() -> None:
    """Bounds that hold with probability leave out none that is better, in this space."""
    ranked = search(varied(), (4,), top=10_000).ranked
    assert len(ranked) > 10
    best = search(varied(), (4,), top=1).best
    assert best.iteration_time_s == min(layout.iteration_time_s for layout in ranked)


@pytest.mark.slow
def test_documents_leave_no_bound_and_every_layout_is_drawn() -> None:
    documents = {"variation.sequence_lengths.mean": 32, "attention_backend": "fused"}
    result = search(base().replace(STILL | documents), (2,), "tokens_per_s", top=1)
    assert not result.failures and result.outcome.num_simulated == result.outcome.num_fitting


def test_a_plan_ranks_by_the_mean_and_says_so() -> None:
    plan = simtrain.plan(varied(), "1B", ["h100_sxm"], [4])
    (row,) = plan.rows
    assert row.best is not None and row.best.run.drawn is not None and row.cost is not None
    assert row.cost.iteration_time_s == row.best.run.drawn.mean
    assert not plan.stopped and not row.layout.exact and plan.to_dict()["draws"] == [20]


def test_advice_compares_means() -> None:
    scenario = replicas(4, SLOW)
    advice = simtrain.advise(scenario)
    assert advice.draws == 20
    assert advice.iteration_time_s == simtrain.draw(scenario, draws=20).time.mean
    assert advice.iteration_time_s > 1.5 * simtrain.advise(replicas(4)).iteration_time_s
    assert "draws" not in simtrain.advise(replicas(4)).to_dict()


def test_sensitivity_compares_means() -> None:
    scenario = replicas(4, SLOW)
    now = simtrain.sensitivity(scenario)
    assert now.draws == 20
    assert now.iteration_time_s == simtrain.draw(scenario, draws=20).time.mean
    plain = simtrain.sensitivity(replicas(4))
    assert plain.draws is None
    # The slow GPU's kernels count twice, so faster tensor cores save twice the time.
    saved_s, plain_s = (each.saved["tensor_cores"] * each.iteration_time_s for each in (now, plain))
    assert saved_s == pytest.approx(2 * plain_s, rel=0.05)


def test_recompute_is_chosen_by_the_mean() -> None:
    scenario = replicas(2, SLOW | {"recompute": "auto"})
    evaluation = Evaluator().evaluate(scenario)
    assert evaluation.run and evaluation.run.iteration_time_s > 0
    mean_s = simtrain.draw(scenario.replace({"recompute": "none"}), draws=20).time.mean
    assert evaluation.run.iteration_time_s == pytest.approx(mean_s)


@pytest.mark.slow
def test_a_search_says_that_times_are_means() -> None:
    shown = search_view(search(varied(), (4,), top=2))
    words = " ".join(text for part in shown.parts for text in getattr(part, "texts", ()))
    assert "Times are means of 20 drawn iterations" in words
    assert "Best of" in words and "no proof" in words and "Exact" not in words
