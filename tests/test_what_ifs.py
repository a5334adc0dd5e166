"""The sweeps that come with simtrain, and the page that tells of them."""

import functools
import pathlib
import re
import shlex
from collections import Counter

import pytest
from command_line import ROOT, call
from made_results import ran, row, write_results
from pytest import MonkeyPatch

from simtrain.evaluation import Evaluation, Evaluator
from simtrain.pictures import style
from simtrain.resources import list_sweeps
from simtrain.scenario import RULES, Scenario
from simtrain.sweep import Plan, load_plan

PAGE = (ROOT / "docs/what_ifs.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^simtrain (sweep|plot) (.*)$", PAGE, re.MULTILINE)
TOLD = [shlex.split(words)[0] for name, words in COMMANDS if name == "sweep"]


@functools.cache
def plan_of(name: str) -> Plan:
    return load_plan(name)


@functools.cache
def scenarios_of(name: str) -> tuple[Scenario, ...]:
    """What a sweep evaluates: points that its constraints keep."""
    plan = plan_of(name)
    constraints = plan.readable_constraints()
    points = (plan.scenario(index) for index in range(plan.num_points))
    return tuple(point for point in points if all(rule.holds(point) for rule in constraints))


def num_actions(scenario: Scenario) -> int:
    split = scenario.parallelism
    return scenario.num_microbatches * split.pipeline * split.interleave


def is_legal(scenario: Scenario) -> bool:
    return not any(rule.check(scenario) for rule in RULES)


def test_the_page_tells_of_every_question() -> None:
    assert set(TOLD) <= set(list_sweeps())
    assert len(TOLD) == len(set(TOLD)) == PAGE.count("\n## ")


@pytest.mark.parametrize("name", TOLD)
def test_a_shipped_sweep_asks_something_that_can_be_answered(name: str) -> None:
    """Most of it is legal, and it is small enough for a second or two."""
    scenarios = scenarios_of(name)
    legal = Counter(is_legal(scenario) for scenario in scenarios)
    assert plan_of(name).description
    assert 15 <= len(scenarios) <= 250
    assert legal[True] >= 0.8 * len(scenarios)


@pytest.mark.parametrize("name", TOLD)
def test_its_quickest_point_is_evaluated(name: str) -> None:
    quickest = min(filter(is_legal, scenarios_of(name)), key=num_actions)
    evaluation = Evaluator().evaluate(quickest)
    assert (evaluation.run is not None) == evaluation.fits
    if run := evaluation.run:
        assert 0.05 < run.mfu < 1


@pytest.mark.parametrize("name", TOLD)
def test_its_plots_are_drawn_as_the_page_says(
    name: str, tmp_path: pathlib.Path, monkeypatch: MonkeyPatch
) -> None:
    """From made results with the sweep's own axes; tests/test_plots.py looks at the files."""
    drawn: list[str] = []
    monkeypatch.setattr(style, "save", lambda figure, path: drawn.append(path.name) or (path,))
    monkeypatch.chdir(tmp_path)
    plan = plan_of(name)
    (sweep,) = (words for command, words in COMMANDS if command == "sweep" and name in words)
    assert shlex.split(sweep) == [name, "--out", name]
    rows = [
        row(index, plan.cells(index), **ran(100 + index, 10 + index % 7, 8 + index))
        for index in range(plan.num_points)
    ]
    write_results(pathlib.Path(name), rows, part_size=50)
    plots = [words for command, words in COMMANDS if command == "plot" and name in words]
    assert plots
    for words in plots:
        done = call("plot", *shlex.split(words))
        assert (done.exit_code, done.stderr) == (0, "")
    assert drawn == ["heat_map", "pareto", "scaling"] * len(plots)


# ------------------------------------------------------------- the figures of one of its tables

LARGER = re.findall(
    r"^\| (GPT-2|22B)[^|]* \| (\w+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE
)
BASES = {"GPT-2": "gpt2_1_5b", "22B": "table5_22b_present"}
STRATEGIES = {"none": "baseline", "selective": "selective", "full": "full"}


@functools.cache
def larger_batch(base: str, strategy: str, sequences: str) -> Evaluation:
    plan = plan_of("larger_batch")
    place = {"base": base, "strategy": strategy, "sequences": sequences}
    (index,) = (at for at in range(plan.num_points) if plan.cells(at) == place)
    return Evaluator().evaluate(plan.scenario(index))


def shown(evaluation: Evaluation) -> str:
    assert evaluation.run is not None
    return f"{evaluation.run.tokens_per_s:,.0f}"


def test_the_table_has_both_models_under_each_strategy() -> None:
    assert [line[:2] for line in LARGER] == [(base, one) for base in BASES for one in STRATEGIES]


@pytest.mark.parametrize(("model", "recompute", "most", "rate", "as_before"), LARGER)
def test_a_larger_batch_is_worth_what_the_page_says(
    model: str, recompute: str, most: str, rate: str, as_before: str
) -> None:
    base, strategy = BASES[model], STRATEGIES[recompute]
    before = next(line[2] for line in LARGER if line[:2] == (model, "none"))
    assert shown(larger_batch(base, strategy, most)) == rate
    assert shown(larger_batch(base, strategy, before)) == as_before
    if most != "32":
        assert not larger_batch(base, strategy, str(2 * int(most))).fits
