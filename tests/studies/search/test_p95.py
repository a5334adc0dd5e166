"""The objective `p95`: the 95th percentile of drawn iterations."""

import json
import pathlib

import pytest

import simtrain
from simtrain.errors import InputError
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.registry import OBJECTIVES
from simtrain.studies.search.run import search
from simtrain.studies.variation.draws import least_share
from tests.helpers.command_line import call
from tests.helpers.pairwise import legal_pairs
from tests.helpers.search_spaces import base
from tests.helpers.sweep_files import plan_of, with_axes
from tests.helpers.sweep_files import run as run_sweep

P95 = OBJECTIVES["p95"]


def test_its_value_is_the_percentile_of_the_draws() -> None:
    best = search(base(), (4,), "p95", top=2).ranked[0]
    drawn = simtrain.draw(best.evaluation.scenario)
    assert P95.key(best.evaluation)[0] == drawn.time.p95


@pytest.mark.ci
@pytest.mark.slow
def test_the_best_layout_has_the_least_percentile_of_all() -> None:
    result = search(base(), (4,), "p95", top=1000)
    values = [P95.key(each.evaluation)[0] for each in result.ranked]
    assert len(values) > 5 and values == sorted(values)
    best = search(base(), (4,), "p95", top=1).ranked[0]
    assert P95.key(best.evaluation)[0] == values[0]


def test_a_bound_is_never_above_the_percentile() -> None:
    evaluator = Evaluator(allow_oom=True, breakdowns=False, draws=P95.draws)
    for scenario in legal_pairs(seed=21, most=8):
        try:
            evaluation = evaluator.evaluate(scenario)
        except InputError:
            continue  # the cluster cannot run it
        assert evaluation.run is not None
        run = evaluation.run
        assert run.drawn is not None
        usual_s = simtrain.simulate(scenario).iteration_time_s
        bound_s = least_share(scenario, evaluator.profile_of(scenario)) * usual_s
        assert bound_s <= run.drawn.mean and bound_s <= P95.key(evaluation)[0]


def test_a_sweep_reports_the_percentile(tmp_path: pathlib.Path) -> None:
    text = with_axes("parallelism.data: [1, 4]") + "report: [iteration_time_s, p95_time_s]\n"
    (tmp_path / "out").mkdir()
    outcome = run_sweep(plan_of(tmp_path, text), tmp_path / "out")
    assert outcome is not None
    rows = simtrain.query(tmp_path / "out", "select iteration_time_s, p95_time_s from results")
    assert len(rows.rows) == 2
    for time_s, p95_s in rows.rows:
        assert p95_s > time_s


def test_compare_shows_draws_of_scenarios_that_vary() -> None:
    words = ("compare", "table5_22b_present", "--change", "variation.slow.factor=2", "--json")
    scenarios = json.loads(call(*words, "--no-sensitivity").stdout)["scenarios"]
    assert "variation" not in scenarios[0]
    assert scenarios[1]["variation"]["slowdown"] > 1.5
    shown = call(*words[:-1], "--no-sensitivity").stdout
    assert "mean of draws" in shown and "95 % take at most" in shown


@pytest.mark.slow
def test_a_report_has_a_section_on_variation(tmp_path: pathlib.Path) -> None:
    scenario = simtrain.load_scenario("table5_22b_present")
    slow = scenario.replace({"variation.slow.factor": 2})
    for each, has_section in ((scenario, False), (slow, True)):
        file = simtrain.report(each, tmp_path / "report.html", sensitivity=False)
        assert ("How iterations vary" in file.read_text(encoding="utf-8")) == has_section
