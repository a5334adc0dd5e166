"""A plan equals a search and a cost per row, and marks the rows that meet its limits."""

import functools
import itertools
import json
import math
import pathlib
import re
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from typing import Any

import pytest

import simtrain
from simtrain.base.resources import find_profile
from simtrain.commands import printing
from simtrain.errors import DoesNotFitError, InputError
from simtrain.scenario import Scenario, load_scenario, load_unchecked
from simtrain.studies.cost import Budget, Terms, read_budget, training_cost
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.planning import searches
from simtrain.studies.planning.files import names_of_rows
from simtrain.studies.planning.gpus import read_gpus
from simtrain.studies.planning.result import PlanRow, TrainingPlan
from simtrain.studies.search.run import search
from simtrain.studies.simulation import simulate
from simtrain.studies.sweep.executors import SerialExecutor
from simtrain.views.plan import plan_view
from simtrain.views.view import text_of
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


def plan(**settings: Any) -> TrainingPlan:
    return simtrain.plan(small_scenario(), TOKENS, CLUSTERS, GPUS, **settings)


@functools.cache
def unlimited() -> TrainingPlan:
    return plan(goodput=0.8)


def by_combination(plan: TrainingPlan) -> dict[tuple[str, int], PlanRow]:
    return {(row.cluster, row.num_gpus): row for row in plan.rows}


# ------------------------------------------------------------------------- the rows


@pytest.mark.parametrize(("cluster", "num_gpus"), [*itertools.product(CLUSTERS, GPUS)])
def test_a_row_equals_search_and_cost(cluster: str, num_gpus: int) -> None:
    result = search(small_scenario(cluster=cluster), (num_gpus,))
    best, row = result.ranked[0], by_combination(unlimited())[cluster, num_gpus]
    time_s = best.run.iteration_time_s
    assert row.best is not None and row.layout.exact and row.layout.gap == 0
    assert row.best.scenario == best.scenario
    assert row.best.run.iteration_time_s == time_s
    interval = Evaluator().interval(best.scenario, time_s)
    assert row.cost == training_cost(
        best.scenario, result.profile, time_s, Terms(10**9, goodput=0.8), interval=interval
    )


def test_a_plan_that_counts_the_site_has_its_columns() -> None:
    plan = simtrain.plan(
        small_scenario(), TOKENS, CLUSTERS, [2], electricity="0.1 EUR/kWh", co2=400.0
    )
    for row, record in zip(plan.rows, plan_view(plan).tables["plan"].records(), strict=True):
        assert row.cost is not None and row.cost.site_energy_kwh is not None
        assert record["electricity_cost"] == row.cost.site_energy_kwh * 0.1
        assert record["co2_t"] == pytest.approx(row.cost.site_energy_kwh * 400e-6)
    plain, *_ = plan_view(unlimited()).tables["plan"].records()
    assert not {"electricity_cost", "co2_t"} & plain.keys()


def test_days_price_and_energy_by_hand() -> None:
    """2,048 tokens per iteration; an A100 costs 3.43 USD/h and draws at most 400 W."""
    row = by_combination(unlimited())["a100_sxm4_80gb", 4]
    assert row.best is not None and row.cost is not None
    time_s = 488_282 * row.best.run.iteration_time_s / 0.8
    assert row.cost.num_iterations == 488_282
    assert row.cost.time_s == pytest.approx(time_s, rel=1e-12)
    assert row.cost.gpu_hours == pytest.approx(4 * time_s / 3600, rel=1e-12)
    assert row.cost.price == pytest.approx(3.43 * 4 * time_s / 3600, rel=1e-12)
    assert row.cost.gpu_energy_j == pytest.approx(4 * 400 * time_s, rel=1e-12)
    assert row.cost.node_energy_j == pytest.approx(6500 / 2 * time_s, rel=1e-12)


def test_rows_are_sorted_by_time_or_price() -> None:
    times = [cost.time_s for cost in plan().costs]
    prices = [cost.price for cost in plan(objective="cost").costs]
    assert len(times) == 4 and times == sorted(times)
    assert all(prices) and prices == sorted(prices, key=float)  # type: ignore[arg-type]


# ------------------------------------------------------------------------- limits


@pytest.mark.parametrize("number", range(4))
def test_a_limit_equal_to_a_row_excludes_all_worse_rows(number: int) -> None:
    by_time = unlimited().costs
    by_price = sorted(by_time, key=lambda cost: cost.price or 0)
    days, price = by_time[number].time_s / 86_400 * (1 + 1e-9), by_price[number].price
    assert price is not None
    for row in plan(goodput=0.8, days=days).rows:
        assert row.cost is not None
        assert ("days" in row.misses) == (by_time.index(row.cost) > number)
    found = plan(goodput=0.8, days=days, budget=str(price))
    for row in found.rows:
        assert row.cost is not None
        assert ("budget" in row.misses) == (by_price.index(row.cost) > number)
    met = [row for row in found.rows if not row.misses]
    if met:
        assert found.fastest is min(met, key=lambda row: row.cost.time_s)  # type: ignore[union-attr]
        assert found.cheapest is min(met, key=lambda row: row.cost.price)  # type: ignore
    else:
        assert found.fastest is None and found.cheapest is None


def without_price(folder: pathlib.Path) -> str:
    text = find_profile("a100_sxm4_80gb").read_text(encoding="utf-8")
    before, _, after = text.partition("running_costs:\n")
    path = folder / "mine.yaml"
    path.write_text(f"{before}running_costs:\n  gpu{after.partition('  gpu')[2]}", encoding="utf-8")
    return str(path)


def test_a_row_without_a_price_meets_no_budget_unless_a_price_is_given(
    tmp_path: pathlib.Path,
) -> None:
    mine = without_price(tmp_path)
    (row,) = simtrain.plan(small_scenario(), TOKENS, [mine], [2], budget="1e9").rows
    assert row.misses == ("no price",) and row.cost is not None
    assert row.cost.price is None and row.cost.missing == ("price",)
    found = simtrain.plan(small_scenario(), TOKENS, [mine], [2], price="2.5 EUR/h", budget="1e9")
    assert found.cheapest is found.rows[0]
    cost = found.rows[0].cost
    assert cost is not None and cost.price == pytest.approx(2.5 * cost.gpu_hours, rel=1e-12)
    page = call(
        "plan",
        small(tmp_path),
        "--tokens",
        "1B",
        "--gpus",
        "2",
        "--cluster",
        mine,
        *FIXED,
        "--details",
    )
    assert "running_costs.price" in page.stdout and "without a price" in page.stdout


def test_prices_in_several_currencies_are_not_compared(tmp_path: pathlib.Path) -> None:
    text = find_profile("h100_sxm").read_text(encoding="utf-8")
    euros = tmp_path / "euros.yaml"
    euros.write_text(text.replace("6.88 USD/h", "6.88 EUR/h"), encoding="utf-8")
    clusters = ["h100_sxm", str(euros)]
    with pytest.raises(InputError, match=r"--cluster: E846 .* in EUR"):
        simtrain.plan(small_scenario(), TOKENS, clusters, [2])
    with pytest.raises(InputError, match=r"--budget: E846 .*--budget in CHF"):
        plan(budget="1 CHF")
    with pytest.raises(InputError, match=r"--budget: E846 .*--price in USD, --budget in CHF"):
        plan(budget="1 CHF", price="2.5 USD/h")
    found = simtrain.plan(small_scenario(), TOKENS, clusters, [2], price="2.5 USD/h")
    assert len(found.costs) == 2


# ------------------------------------------------------------------------- no layout


def test_a_row_without_a_layout_has_the_error_of_its_search() -> None:
    changes = "batch.micro=1", "parallelism.pipeline=1", "recompute=full", "memory.zero_stage=0"
    large = load_unchecked("table5_22b_present", changes)
    rows = {row.num_gpus: row for row in simtrain.plan(large, TOKENS, CLUSTERS[:1], (1, 7, 8)).rows}
    one, seven, eight = (rows[number].layout for number in (1, 7, 8))
    assert (one.status, one.problems[0].code) == ("does not fit", "E830")
    assert (seven.status, seven.problems[0].code) == ("illegal", "E831")
    assert eight.status == "found"
    with pytest.raises(DoesNotFitError, match=r"E847 .*: 1 does not fit, 1 illegal"):
        simtrain.plan(large, TOKENS, CLUSTERS[:1], (1, 7))
    with pytest.raises(InputError, match=r"E847 .*: 1 illegal") as caught:
        simtrain.plan(large, TOKENS, CLUSTERS[:1], (7,))
    assert caught.value.exit_code == 2


def test_a_cluster_gets_enough_nodes_for_the_gpus() -> None:
    one_node = small_scenario(hardware={"cluster": {"num_nodes": 1}}, batch={"global": 16})
    found = simtrain.plan(one_node, TOKENS, ["a100_sxm4_80gb"], [8, 16])
    assert found.added_nodes == {"a100_sxm4_80gb": 2}
    large = small_scenario(hardware={"cluster": {"num_nodes": 2}}, batch={"global": 16})
    (best,) = search(large, (16,), top=1).ranked
    row = by_combination(found)["a100_sxm4_80gb", 16]
    assert row.best is not None
    assert row.best.run.iteration_time_s == best.run.iteration_time_s


# ------------------------------------------------------------------------- stopping, workers


def interrupt_at_call(number: int) -> Callable[[], bool]:
    """Return a function whose results are True from its call with this number on, from 0."""
    count = itertools.count()
    return lambda: next(count) >= number


def test_an_interrupted_plan_keeps_the_layouts_so_far() -> None:
    found = plan(interrupted=interrupt_at_call(8))
    statuses = [row.layout.status for row in found.rows]
    assert found.stopped and "found" in statuses and statuses[-1] == "not searched"
    exact, best = by_combination(plan()), by_combination(found)
    for place, row in best.items():
        if row.cost:
            whole = exact[place].cost
            assert whole is not None
            # Without a gap, the search was stopped before it had bounds of all layouts.
            gap = math.inf if row.layout.gap is None else row.layout.gap
            assert row.cost.time_s <= whole.time_s * (1 + gap) * (1 + 1e-9)
            assert row.cost.time_s == whole.time_s or not row.layout.exact


def test_a_spent_budget_of_seconds_ends_after_the_first_search() -> None:
    found = plan(seconds=1e-9)
    assert [row.layout.status for row in found.rows] == ["found", *["not searched"] * 3]
    assert found.stopped and not found.rows[0].layout.exact


class BrokenPool(SerialExecutor):
    """Pool whose workers die after `num_searches` searches."""

    def __init__(self, num_searches: int) -> None:
        self.num_left = num_searches

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        self.num_left -= 1
        future: Future[Any] = Future()
        if self.num_left >= 0:
            return super().submit(*arguments, **named)
        future.set_exception(BrokenExecutor())
        return future


def test_workers_give_the_same_plan_and_an_error_if_they_die(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test replaces worker processes by this process, which saves their start."""
    monkeypatch.setattr(searches, "local_executor", lambda number: SerialExecutor())
    assert json.dumps(plan(workers=2).to_dict()) == json.dumps(plan().to_dict())
    monkeypatch.setattr(searches, "local_executor", lambda number: BrokenPool(2))
    with pytest.raises(InputError, match="--workers: E836 "):
        plan(workers=2)
    monkeypatch.setattr(searches, "local_executor", lambda number: BrokenPool(2))
    found = plan(workers=2, interrupted=interrupt_at_call(4))
    assert found.stopped and 1 <= len(found.costs) < 4


# ------------------------------------------------------------------------- the command


def small(folder: pathlib.Path) -> str:
    path = folder / "small.yaml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def called(folder: pathlib.Path, *options: str) -> Outcome:
    usual = {"--tokens": "1B", "--cluster": ",".join(CLUSTERS), "--workers": "1"}
    left = (part for pair in usual.items() if pair[0] not in options for part in pair)
    return call("plan", small(folder), *left, *FIXED, *options)


def test_the_command_writes_scenarios_that_run_as_planned(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "planned"
    done = called(tmp_path, "--gpus", "2..4", "--out", str(out), "--json")
    data = json.loads(done.stdout)
    assert done.exit_code == 0 and len(data["rows"]) == 4 == len(list(out.iterdir()))
    assert [one["profile"] for one in data["made_with"]] == list(CLUSTERS)
    for row in data["rows"]:
        assert f"{row['cluster']}_{row['num_gpus']}gpus.yaml" in row["file"]
        scenario = load_scenario(row["file"])
        assert scenario.cluster == row["cluster"]
        assert simulate(scenario).iteration_time_s == row["cost"]["iteration_time_s"]
        assert row["layout"]["iteration_time_s"] == row["cost"]["iteration_time_s"]


def test_files_of_profiles_of_the_same_name_are_named_by_their_paths() -> None:
    base, rows = small_scenario(), [("a/mine.yaml", 8), ("b/mine.yaml", 8)]
    start = f"{base.name or 'scenario'}_"
    assert names_of_rows(base, rows[:1]) == [f"{start}mine_8gpus"]
    assert names_of_rows(base, rows) == [f"{start}a_mine.yaml_8gpus", f"{start}b_mine.yaml_8gpus"]


def test_the_page_fits_80_columns_and_missed_limits_exit_with_4(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "_PLAIN_WIDTH", 80)
    met = called(tmp_path, "--gpus", "2,4", "--days", "100", "--budget", "1M USD")
    assert met.exit_code == 0
    assert max(map(len, met.stdout.splitlines())) <= 80 and "…" not in met.stdout
    assert "fastest" in met.stdout and "cheapest" in met.stdout
    assert met.stdout.rstrip().endswith("OK: 4 of 4 combinations meet 100 days and 1,000,000 USD")
    missed = called(tmp_path, "--gpus", "2", "--days", "0.001", "--objective", "cost")
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
    ],
)
def test_read_gpus_accepts_lists_and_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert read_gpus(text) == numbers


@pytest.mark.parametrize("text", ["", "0", "many", "8..", "..8", "64..32", "5..7", "1e3", "-8"])
def test_read_gpus_refuses_other_text(text: str) -> None:
    with pytest.raises(InputError, match=r"--gpus: E845 "):
        read_gpus(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--days", "nan"), "--days: E849 "),
        (("--days=-1",), "--days: E849 "),
        (("--budget", "2 GB"), "--budget: E844 "),
        (("--budget", "0"), "--budget: E844 "),
        (("--budget", "$2M"), "--budget: E844 "),
        (("--goodput", "0"), "--goodput: E842 "),
        (("--price", "3 USD"), "--price: E848 "),
        (("--tokens", "many"), "--tokens: E841 "),
        (("--cluster", "h100"), "--cluster: E101 "),
        (("--cluster", "h100_sxm,"), "--cluster: E101 "),
        (("--seconds", "0"), "E834 seconds is 0"),
    ],
)
def test_an_invalid_option_is_an_error(
    options: tuple[str, ...], message: str, tmp_path: pathlib.Path
) -> None:
    done = called(tmp_path, "--gpus", "2", *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr and "fix: " in done.stderr


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [("2M", 2e6, None), ("2M USD", 2e6, "USD"), ("1.5e6 EUR", 1.5e6, "EUR"), ("500", 500, None)],
)
def test_read_budget_reads_amount_and_currency(
    text: str, amount: float, currency: str | None
) -> None:
    assert read_budget(text) == Budget(amount, currency)


@pytest.mark.parametrize(
    ("share", "misses", "about"),
    [
        (0.5, True, False),
        (0.989, True, False),
        (0.9912, False, True),
        (1.0, False, True),
        (1.009, False, True),
        (1.02, False, False),
    ],
)
def test_a_limit_within_a_hundredth_is_neither_met_nor_missed(
    share: float, misses: bool, about: bool
) -> None:
    """No prediction is that close: 20,024,075 is not over a budget of 20,000,000."""
    (cost,) = simtrain.plan(small_scenario(), TOKENS, ["h100_sxm"], [2]).costs
    assert cost.price is not None
    days, budget = share * cost.time_s / 86_400, str(share * cost.price)
    for name, limits in {"days": {"days": days}, "budget": {"budget": budget}}.items():
        found = simtrain.plan(small_scenario(), TOKENS, ["h100_sxm"], [2], **limits)
        (row,) = found.rows
        assert (row.misses == (name,)) is misses is (found.fastest is None)
        assert (row.about == (name,)) is about
        (cells,) = (row.cells for row in plan_view(found).tables["plan"].rows)
        words = {"days": "about on time", "budget": "about on budget"}[name]
        assert (words in cells[-1]) is about


def test_every_row_has_intervals_in_days_and_money() -> None:
    table = plan_view(plan()).tables["plan"]
    for record, cost in zip(table.records(), plan().costs, strict=True):
        ratio = cost.interval.p95_s / cost.iteration_time_s
        assert record["time_interval_s_p95"] == pytest.approx(record["time_s"] * ratio)
        assert record["price_interval_p95"] == pytest.approx(record["price"] * ratio)
        assert record["time_interval_s_p5"] < record["time_s"] < record["time_interval_s_p95"]
    headings = [column.name for column in table.columns]
    days, price = (headings.index(name) for name in ("time_interval_s", "price_interval"))
    for row in table.rows:
        assert all("–" in text_of(row.cells[at], table.columns[at]) for at in (days, price))


def test_what_a_stopped_plan_proves_is_said_once(tmp_path: pathlib.Path) -> None:
    found = plan(interrupted=interrupt_at_call(4))
    sentences = [text for text in plan_view(found).sentences if "ended early" in text]
    (said,) = sentences
    numbers = [int(number) for number in re.findall(r"(\d+) (?:proved|at most|the best|not)", said)]
    assert sum(numbers) == len(found.rows)


def test_a_page_has_the_answer_and_its_details(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "plan.html"
    done = called(tmp_path, "--gpus", "2", "--out", str(page))
    text = page.read_text(encoding="utf-8")
    assert done.exit_code == 0 and text.startswith("<!DOCTYPE html>")
    assert "Fastest" in text and "Evidence for h100_sxm" in text and "<script src" not in text
    assert "Evidence for" not in done.stdout and "OK: 2 of 2" in done.stdout
