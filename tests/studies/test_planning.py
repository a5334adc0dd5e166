"""A plan equals a search and a cost per row, and marks the rows that meet its limits."""

import functools
import itertools
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest

import simtrain
from simtrain.base.resources import find_profile
from simtrain.commands import printing
from simtrain.errors import DoesNotFitError, InputError
from simtrain.scenario import Scenario, load_unchecked
from simtrain.studies.planning import PlanRow, TrainingPlan, read_gpus
from simtrain.studies.search.run import search
from simtrain.views.plan import plan_view
from tests.helpers.command_line import Outcome, call
from tests.helpers.search_spaces import base, holding

pytestmark = pytest.mark.slow

CLUSTERS = ("a100_sxm4_80gb", "h100_sxm")
GPUS = (2, 4)
TOKENS = 10**9
FILE = """\
model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, seq_length: 512}
batch: {micro: 1, global: 4}
"""
FIXED = ("--set", "batch.micro=1", "--set", "memory.zero_stage=0", "--set", "recompute=none")


def small_scenario(**sections: Any) -> Scenario:
    """Return a small model with few layouts."""
    fields = ("batch", "micro"), ("memory", "zero_stage"), ("recompute",)
    return holding(base(**sections), *fields)


def plan(clusters: Any = CLUSTERS, gpus: Any = GPUS, **settings: Any) -> TrainingPlan:
    return plan_of(small_scenario(), clusters, gpus, **settings)


def plan_of(base: Scenario, clusters: Any, gpus: Any, **settings: Any) -> TrainingPlan:
    found = simtrain.search(base, gpus, tokens=TOKENS, clusters=clusters, **settings)
    assert isinstance(found, TrainingPlan)
    return found


@functools.cache
def unlimited() -> TrainingPlan:
    return plan(goodput=0.8)


def by_combination(plan: TrainingPlan) -> dict[tuple[str, int], PlanRow]:
    return {(row.cluster, row.num_gpus): row for row in plan.rows}


# ------------------------------------------------------------------------- the rows


@pytest.mark.parametrize(("cluster", "num_gpus"), [*itertools.product(CLUSTERS, GPUS)])
def test_a_row_equals_search_and_cost(cluster: str, num_gpus: int) -> None:
    best = search(small_scenario(cluster=cluster), num_gpus).ranked[0]
    row = by_combination(unlimited())[cluster, num_gpus]
    assert row.best is not None and row.exact and row.gap == 0
    assert row.best.scenario == best.scenario
    assert row.best.run.iteration_time_s == best.run.iteration_time_s
    cost = simtrain.cost(best.evaluation.scenario, TOKENS, goodput=0.8)
    assert row.cost == cost and cost.iteration_time_s == best.run.iteration_time_s


# ------------------------------------------------------------------------- limits


@pytest.mark.parametrize("number", range(4))
def test_a_limit_equal_to_a_row_excludes_all_worse_rows(number: int) -> None:
    by_time = unlimited().costs
    by_price = sorted(by_time, key=lambda cost: cost.price or 0)
    days, price = by_time[number].time_s / 86_400 * (1 + 1e-9), by_price[number].price
    found = plan(goodput=0.8, days=days, budget=str(price))
    for row in found.rows:
        assert row.cost is not None
        assert ("days" in row.misses) == (by_time.index(row.cost) > number)
        assert ("budget" in row.misses) == (by_price.index(row.cost) > number)
    met = [row for row in found.rows if not row.misses]
    assert found.fastest is (met[0] if met else None)
    assert found.cheapest is min(met, key=lambda row: row.cost.price, default=None)  # type: ignore


def test_a_row_without_a_price_meets_no_budget_unless_a_price_is_given(
    tmp_path: pathlib.Path,
) -> None:
    text = find_profile("a100_sxm4_80gb").read_text(encoding="utf-8")
    before, _, after = text.partition("running_costs:\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"{before}running_costs:\n  gpu{after.partition('  gpu')[2]}", encoding="utf-8")
    found = plan([str(mine)], [2], budget="1e9")
    (row,) = found.rows
    assert row.misses == ("no price",) and row.cost is not None and row.cost.price is None
    assert "without a price" in " ".join(plan_view(found).sentences)
    found = plan([str(mine)], [2], price="2.5 EUR/h", budget="1e9 EUR")
    assert found.cheapest is found.rows[0]


def test_prices_in_several_currencies_are_not_compared(tmp_path: pathlib.Path) -> None:
    text = find_profile("h100_sxm").read_text(encoding="utf-8")
    euros = tmp_path / "euros.yaml"
    euros.write_text(text.replace("6.88 USD/h", "6.88 EUR/h"), encoding="utf-8")
    clusters = ["h100_sxm", str(euros)]
    with pytest.raises(InputError, match=r"--cluster: E846 .* in EUR"):
        plan(clusters, [2])
    with pytest.raises(InputError, match=r"--budget: E846 .*--price in USD, --budget in CHF"):
        plan(budget="1 CHF", price="2.5 USD/h")
    costs = plan(clusters, [2], price="2.5 USD/h").costs
    assert all(cost.price == pytest.approx(2.5 * cost.gpu_hours) for cost in costs)


# ------------------------------------------------------------------------- no layout, stopping


def test_a_row_without_a_layout_has_the_error_of_its_search() -> None:
    changes = "batch.micro=1", "parallelism.pipeline=1", "recompute=full", "memory.zero_stage=0"
    large = load_unchecked("table5_22b_present", changes)
    rows = {row.num_gpus: row for row in plan_of(large, CLUSTERS[:1], (1, 7, 8)).rows}
    assert (rows[1].status, rows[1].problems[0]["code"]) == ("does not fit", "E830")
    assert (rows[7].status, rows[7].problems[0]["code"]) == ("illegal", "E831")
    assert rows[8].status == "found"
    for settings, illegal, fix in (
        ({}, "illegal", "plan with more GPUs"),
        ({"seconds": 1e-9}, "not searched", "increase --seconds, or plan with"),
        ({"interrupted": interrupt_at_call(1)}, "not searched", "let it search for longer, or"),
    ):
        with pytest.raises(DoesNotFitError, match=rf"E847 .*: 1 does not fit, 1 {illegal}") as none:
            plan_of(large, CLUSTERS[:1], (1, 7), **settings)
        assert none.value.problems[0].fix.startswith(fix)
    with pytest.raises(InputError, match=r"E847 .*: 1 illegal") as caught:
        plan_of(large, CLUSTERS[:1], (7,))
    assert caught.value.exit_code == 2


def test_a_cluster_gets_enough_nodes_for_the_gpus() -> None:
    one_node = small_scenario(hardware={"cluster": {"num_nodes": 1}}, batch={"global": 16})
    found = plan_of(one_node, ["a100_sxm4_80gb"], [8, 16])
    assert found.added_nodes == {"a100_sxm4_80gb": 2}
    large = small_scenario(hardware={"cluster": {"num_nodes": 2}}, batch={"global": 16})
    (best,) = search(large, 16, top=1).ranked
    row = by_combination(found)["a100_sxm4_80gb", 16]
    assert row.best is not None
    assert row.best.run.iteration_time_s == best.run.iteration_time_s


def interrupt_at_call(number: int) -> Callable[[], bool]:
    """Return a function whose results are True from its call with this number on, from 0."""
    count = itertools.count()
    return lambda: next(count) >= number


def test_an_interrupted_plan_keeps_the_layouts_so_far_and_says_what_they_prove() -> None:
    found = plan(interrupted=interrupt_at_call(8))
    statuses = [row.status for row in found.rows]
    assert found.stopped and "found" in statuses and statuses[-1] == "not searched"
    exact, best = by_combination(plan()), by_combination(found)
    for place, row in best.items():
        if row.cost:
            whole = exact[place].cost
            assert whole is not None
            # Without a gap, the search was stopped before it had bounds of all layouts.
            gap = math.inf if row.gap is None else row.gap
            assert row.cost.time_s <= whole.time_s * (1 + gap) * (1 + 1e-9)
            assert row.cost.time_s == whole.time_s or not row.exact
    (said,) = [text for text in plan_view(found).sentences if "ended early" in text]
    numbers = [int(number) for number in re.findall(r"(\d+) (?:proved|at most|the best|not)", said)]
    assert sum(numbers) == len(found.rows)


def test_a_spent_budget_of_seconds_ends_after_the_first_search() -> None:
    found = plan(seconds=1e-9)
    assert [row.status for row in found.rows] == ["found", *["not searched"] * 3]
    assert found.stopped and not found.rows[0].exact


# ------------------------------------------------------------------------- the command


def called(folder: pathlib.Path, *options: str) -> Outcome:
    path = folder / "small.yaml"
    path.write_text(FILE, encoding="utf-8")
    usual = {"--tokens": "1B", "--cluster": ",".join(CLUSTERS)}
    left = (part for pair in usual.items() if pair[0] not in options for part in pair)
    return call("search", str(path), *left, *FIXED, *options)


def test_the_page_fits_80_columns_and_missed_limits_exit_with_4(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "_PLAIN_WIDTH", 80)
    met = called(tmp_path, "--gpus", "2,4", "--days", "100", "--budget", "1M USD")
    assert met.exit_code == 0
    assert max(map(len, met.stdout.splitlines())) <= 80 and "…" not in met.stdout
    assert "fastest" in met.stdout and "cheapest" in met.stdout
    assert met.stdout.rstrip().endswith("4 of 4 combinations meet 100 days and 1,000,000 USD")
    missed = called(tmp_path, "--gpus", "2", "--days", "0.001")
    assert missed.exit_code == 4 and missed.stdout.count("│ too") == 2
    assert "MISSED: 0 of 2 combinations meet 0.001 days" in missed.stdout
    assert "Best, but misses the limits" in missed.stdout


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("128", (128,)),
        ("8, 12,8", (8, 12)),
        ("128..1024", (128, 256, 512, 1024)),
        ("100..300,6", (128, 256, 6)),
        ("1..1", (1,)),
        *((text, None) for text in ("", "0", "many", "8..", "..8", "64..32", "5..7", "1e3", "-8")),
    ],
)
def test_read_gpus_accepts_lists_and_ranges_only(text: str, numbers: tuple[int, ...]) -> None:
    if numbers:
        assert read_gpus(text) == numbers
        return
    with pytest.raises(InputError, match=r"--gpus: E845 "):
        read_gpus(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--days", "nan"), "--days: E904 "),
        (("--days=-1",), "--days: E849 "),
        *((("--budget", text), "--budget: E844 ") for text in ("2 GB", "0", "$2M", "USD")),
        (("--cluster", "h100"), "--cluster: E101 "),
        (("--cluster", "h100_sxm,"), "--cluster: E101 "),
        (("--seconds", "0"), "E834 seconds is 0"),
        (("-o", "folder"), "E117"),
    ],
)
def test_an_invalid_option_is_an_error(
    options: tuple[str, ...], message: str, tmp_path: pathlib.Path
) -> None:
    done = called(tmp_path, "--gpus", "2", *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr and "fix: " in done.stderr
