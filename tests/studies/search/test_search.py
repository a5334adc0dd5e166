"""A search finds the same layouts as brute force, and explains why the best is better."""

import functools
import json
import pathlib
import random
import re
import statistics
from collections.abc import Callable

import pytest

import simtrain
from simtrain.errors import DoesNotFitError, InputError
from simtrain.iteration.plan import Plan
from simtrain.iteration.report.breakdown import Breakdown
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluation, Evaluator, Run
from simtrain.studies.objectives.registry import OBJECTIVES
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.search.exact_search import search_all
from simtrain.studies.search.explorer import Candidate, Explorer
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.result import SearchResult, reason
from simtrain.studies.search.run import search
from simtrain.studies.search.sampling import search_samples
from simtrain.studies.search.scenario_files import write_scenarios
from simtrain.studies.search.space import Point, Space
from simtrain.studies.search.workers import Workers
from simtrain.studies.simulation import simulate_memory
from simtrain.units import format_bytes
from tests.helpers.command_line import call, refused
from tests.helpers.search_spaces import BASES, EVALUATOR, every

GIB = 2**30


@functools.cache
def brute_force(name: str, objective: str) -> list[Scenario]:
    """Return all legal layouts, the best first, without bounds."""
    explorer, points = every(name)
    key = OBJECTIVES[objective].key
    ranked = sorted(points, key=lambda point: key(explorer.evaluation(point)))
    return [explorer.space.scenario(point) for point in ranked]


def peaks_bytes(scenarios: list[Scenario]) -> list[int]:
    return [simulate_memory(scenario).fullest.peak_bytes for scenario in scenarios]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("narrow", "time"),
        ("narrow", "memory"),
        pytest.param(*("overlapped", "time"), marks=pytest.mark.ci),
        pytest.param(*("uneven", "memory"), marks=pytest.mark.ci),
        pytest.param(*("prime", "time"), marks=pytest.mark.ci),
        ("offloaded", "tokens_per_s"),
        ("experts", "time"),
        pytest.param(*("long", "time"), marks=pytest.mark.ci),
        pytest.param(*("gpipe", "cost"), marks=pytest.mark.ci),
        ("fp8", "time"),
        pytest.param(*("token prediction in a layout", "time"), marks=pytest.mark.ci),
        ("interleaved", "time"),
    ],
)
def test_search_equals_brute_force(name: str, objective: str) -> None:
    expected = brute_force(name, objective)
    result = search(BASES[name], (4,), objective, top=7)
    assert [found.scenario for found in result.ranked] == expected[:7]
    assert result.exact
    assert result.outcome.num_seen == result.outcome.num_fitting == len(expected)
    assert result.outcome.num_simulated < len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["experts", "interleaved", "overlapped"])
def test_a_search_that_counts_nothing_equals_brute_force(name: str) -> None:
    """As in a large space, layouts that cannot be among the best are left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simtrain.studies.search.exact_search._MOST_COUNTED", 0)
        result = search(BASES[name], (4,), top=3)
    expected = brute_force(name, "time")
    assert [found.scenario for found in result.ranked] == expected[:3]
    assert result.exact and result.outcome.num_seen < len(expected)


class QuickBounds(Bounds):
    """Bounds without durations of passes."""

    def iteration_s(self, plan: Plan) -> float:
        return self.busy_s(plan)


class FakeEvaluator(Evaluator):
    """Evaluator without simulation: peaks are lower bounds, times a function of the quick bound.

    Args:
        bounds: bounds of the space.
        time_s: returns the iteration time for a quick bound.
    """

    def __init__(self, bounds: Bounds, time_s: Callable[[float], float]) -> None:
        super().__init__()
        self.bounds, self.time_s = bounds, time_s
        self.bounds_s: list[float] = []

    def evaluate(self, scenario: Scenario) -> Evaluation:
        plan = Plan.of(scenario, 8)
        self.bounds_s.append(self.bounds.busy_s(plan))
        run = Run(self.time_s(self.bounds_s[-1]), 1.0, 0.5, 0.5, Breakdown())
        return Evaluation(scenario, self.bounds.peak_bytes(plan), 80 * GIB, run)


class FakeExplorer(Explorer):
    """Explorer whose peaks are lower bounds."""

    def _peak_bytes(self, point: Point) -> int:
        return self.bounds.peak_bytes(self._plan(point))


def large(
    time_s: Callable[[float], float], limit_bytes: int = 80 * GIB
) -> tuple[FakeEvaluator, Explorer, tuple[Point, ...]]:
    """Return a space of 3,042 points with a fake evaluator."""
    searched = Space(simtrain.load_scenario("table5_175b_present"), (64,))
    bounds = QuickBounds(EVALUATOR.machine_of(searched.base))
    evaluator = FakeEvaluator(bounds, time_s)
    explorer = FakeExplorer(searched, evaluator, OBJECTIVES["time"], limit_bytes)
    explorer.bounds = bounds
    return evaluator, explorer, legal_points(searched).points


def silent(phase: str, done: int, total: int, best: str) -> None:
    """Ignore progress."""


@pytest.mark.ci
@pytest.mark.slow
def test_search_of_a_large_space_equals_brute_force() -> None:
    """Times are random, up to a third above the bound."""

    def random_time_s(bound_s: float) -> float:
        return bound_s * (1 + random.Random(bound_s).random() / 3)

    evaluator, explorer, points = large(random_time_s)
    outcome = search_all(explorer, Workers(explorer), points, 10, silent, lambda: None)
    fitting = [
        point for point in points if explorer.least_peak_bytes(point) <= explorer.limit_bytes
    ]
    assert outcome.num_fitting == len(fitting)
    assert outcome.num_simulated == len(evaluator.bounds_s) < len(fitting) / 2
    expected = sorted(fitting, key=explorer.key)[:10]
    assert [Point.of(found.scenario) for found in outcome.best] == expected


def test_a_memory_limit_keeps_the_order_of_layouts_that_fit() -> None:
    every_one = brute_force("narrow", "time")
    peaks = peaks_bytes(every_one)
    limit = sorted(peaks)[len(peaks) // 2]
    fitting = [scenario for scenario, peak in zip(every_one, peaks, strict=True) if peak <= limit]
    result = search(BASES["narrow"], (4,), top=5, max_memory=f"{limit} B", allow_risk=1)
    assert [found.scenario for found in result.ranked] == fitting[:5]
    assert result.outcome.num_fitting == len(fitting) < len(every_one)
    assert result.limit_bytes == limit


def test_objectives_of_time_increase_with_time() -> None:
    for objective in OBJECTIVES.values():
        if not objective.ranks_memory:
            values = [objective.value(BASES["plain"], time_s, 1) for time_s in (0.5, 1.0, 2.0)]
            assert values == sorted(set(values))
    # 4 sequences of 512 tokens in half a second
    assert OBJECTIVES["tokens_per_s"].value(BASES["plain"], 0.5, 1) == -4096


def test_several_numbers_of_gpus_are_ranked_together() -> None:
    """Fewer GPUs win by GPU-seconds, because no layout scales perfectly; more GPUs win by time."""
    cheapest, fastest = (
        search(BASES["narrow"], (4, 1), objective, top=1).ranked[0]
        for objective in ("cost", "time")
    )
    assert (cheapest.scenario.num_gpus, fastest.scenario.num_gpus) == (1, 4)
    assert cheapest.gpu_seconds == cheapest.run.iteration_time_s < fastest.gpu_seconds


# ------------------------------------------------------------------------- trials


def test_fewer_trials_than_layouts_are_not_exact() -> None:
    first, second = (search(BASES["narrow"], (4,), max_trials=30, top=3) for _ in range(2))
    assert first.to_dict() == second.to_dict()
    assert not first.exact
    assert first.outcome.num_simulated == first.outcome.num_seen == 30 < len(first.legal.points)
    places = [brute_force("narrow", "time").index(one.scenario) for one in first.ranked]
    assert places == sorted(places)


def test_the_optimizer_prefers_points_with_a_good_objective() -> None:
    """With the same seed, proposals have shorter times if short times are good than if long times
    are good.
    """
    less, more = _proposed_s(lambda bound_s: bound_s), _proposed_s(lambda bound_s: 1 / bound_s)
    assert len(less) == len(more) == 80
    assert statistics.median(less) < statistics.median(more)


def _proposed_s(time_s: Callable[[float], float]) -> list[float]:
    """Return the quick bounds of 80 proposed points, if the time is `time_s` of the bound."""
    evaluator, explorer, points = large(time_s, limit_bytes=2**60)
    assert search_samples(explorer, points, 80, 1, silent, lambda: None).num_seen == 80
    return evaluator.bounds_s


def test_as_many_trials_as_layouts_are_exact() -> None:
    result = search(BASES["narrow"], (1,), max_trials=1000, top=1)
    assert result.exact and result.outcome.num_seen == len(result.legal.points)


def test_proposals_that_do_not_fit_are_not_ranked() -> None:
    limit = sorted(peaks_bytes(brute_force("narrow", "memory")))[40]
    result = search(BASES["narrow"], (4,), max_trials=40, max_memory=f"{limit} B")
    assert 0 < result.outcome.num_fitting < result.outcome.num_seen
    assert all(found.evaluation.peak_bytes <= limit for found in result.ranked)
    with pytest.raises(DoesNotFitError, match="E830 "):
        search(BASES["narrow"], (4,), max_trials=5, max_memory="1 GiB")


# ------------------------------------------------------------------------- no layout


def test_if_nothing_fits_the_error_names_the_smallest_excess() -> None:
    least = brute_force("narrow", "memory")[0]
    least_peak = simulate_memory(least).fullest.peak_bytes
    with pytest.raises(DoesNotFitError) as caught:
        search(BASES["narrow"], (4,), max_memory="1 GiB")
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert f"parallelism.tensor={least.parallelism.tensor} " in message
    assert f"recompute={least.recompute.strategy} needs {format_bytes(least_peak)}" in message
    assert f"smallest excess is {format_bytes(least_peak - GIB)}" in message


def test_if_nothing_is_legal_the_error_names_the_rules() -> None:
    with pytest.raises(InputError) as caught:
        search(BASES["plain"], (7,))
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert re.match(r"E831 none of \d+ layouts on 7 GPUs is legal", message)
    assert "\n    E301, " in message and "6 or 8 GPUs" in message
    assert all(search(BASES["plain"], (number,), top=1).ranked for number in (6, 8))


def test_more_gpus_than_the_cluster_has_are_an_error() -> None:
    with pytest.raises(InputError, match=r"E832 5000 GPUs .* 4480 .* \(560 nodes of 8\)"):
        search(BASES["plain"], (8, 5000))


def test_a_memory_limit_without_unit_is_an_error() -> None:
    with pytest.raises(InputError, match=r'--margin: E833 "4"'):
        search(BASES["narrow"], (4,), margin="4")
    with pytest.raises(
        InputError, match=r"--margin: E833 a margin of 2 GiB leaves nothing of 2.*GiB"
    ):
        search(BASES["narrow"], (4,), max_memory="2 GiB", margin="2 GiB")
    with pytest.raises(InputError, match=r'--max-memory: E833 "80"'):
        search(BASES["narrow"], (4,), max_memory="80")


# ------------------------------------------------------------------------- the reason


def found(peak_bytes: int, num_gpus: int = 1, **parts: float) -> Candidate:
    scenario = BASES["plain"].model_copy(
        update={"parallelism": BASES["plain"].parallelism.model_copy(update={"data": num_gpus})}
    )
    breakdown = Breakdown(**parts)
    run = Run(breakdown.total_s, 1.0, 0.5, 0.5, breakdown)
    return Candidate(scenario, Evaluation(scenario, peak_bytes, 80 * GIB, run))


def test_a_margin_is_a_lower_limit() -> None:
    least = search(BASES["narrow"], (4,), "memory", top=1).ranked[0].evaluation.peak_bytes
    limit, margin = least + 2**30, 2**29
    narrow = search(BASES["narrow"], (4,), top=5, max_memory=f"{limit} B", margin=f"{margin} B")
    assert narrow.limit_bytes == limit - margin
    lower = search(BASES["narrow"], (4,), top=5, max_memory=f"{limit - margin} B", allow_risk=1)
    assert narrow.outcome == lower.outcome


def test_the_reason_names_the_parts_that_differ() -> None:
    winner = found(GIB, compute_s=8.0, bubble_s=1.3, data_communication_s=0.24)
    other = found(GIB, compute_s=8.0, bubble_s=2.0, data_communication_s=0.0)
    text = reason(winner, other, OBJECTIVES["time"])
    assert re.findall(r"([\d.]+) % (less|more)", text) == [
        *(("4.6", "less"), ("7.0", "less"), ("2.4", "more")),
    ]
    assert text.index("bubble") < text.index("data-parallel")


def test_the_reason_of_a_small_difference_is_its_largest_part() -> None:
    winner, other = (found(GIB, compute_s=8.0, bubble_s=bubble) for bubble in (2.0, 2.04))
    assert reason(winner, other, OBJECTIVES["time"]).startswith(
        "0.4 % less time: 0.4 % less bubble ("
    )


def test_the_reason_of_equal_objectives_is_another_difference() -> None:
    small, large = found(GIB, compute_s=1.0), found(3 * GIB, compute_s=1.0)
    assert reason(small, large, OBJECTIVES["time"]) == "as fast, and 2 GiB less at the peak"
    assert reason(small, large, OBJECTIVES["memory"]) == "2 GiB less at the peak"
    assert reason(small, small, OBJECTIVES["cost"]) == "equal in every ranked figure"
    fast = found(GIB, compute_s=0.5)
    assert reason(fast, small, OBJECTIVES["memory"]).startswith(
        "as small, and 50 % less time: 50 % less compute ("
    )


def test_the_reason_names_different_numbers_of_gpus() -> None:
    few, many = found(GIB, 2, compute_s=1.5), found(GIB, 4, compute_s=1.0)
    assert reason(few, many, OBJECTIVES["cost"]).startswith(
        "2 GPUs instead of 4, 50 % more time: 50 % more compute ("
    )


# ------------------------------------------------------------------------- files and the command


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return search(BASES["offloaded"], (4,), top=4)


def test_the_file_of_each_layout_has_the_same_iteration_time(
    result: SearchResult, tmp_path: pathlib.Path
) -> None:
    paths = write_scenarios(result, tmp_path / "deep" / "folder")
    assert [path.name for path in paths] == [f"small_0{rank}.yaml" for rank in (1, 2, 3, 4)]
    for path, one in zip(paths, result.ranked, strict=True):
        loaded = simtrain.load_scenario(path)
        assert loaded.name == path.stem and loaded.description
        expected = one.scenario.model_dump(exclude={"name", "description"})
        assert loaded.model_dump(exclude={"name", "description"}) == expected
        assert simtrain.simulate(loaded).iteration_time_s == one.run.iteration_time_s


def test_a_folder_that_cannot_be_created_is_an_error(
    result: SearchResult, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="E113 "):
        write_scenarios(result, tmp_path / "file")
    options = ("--gpus", "4", "--out", str(tmp_path / "file"))
    errors = refused("search", "table5_1t_present", *options)
    assert "E113" in errors


def test_slashes_in_a_name_are_replaced(tmp_path: pathlib.Path) -> None:
    named = BASES["plain"].model_copy(update={"name": "../up and/away"})
    (path,) = write_scenarios(search(named, (1,), top=1), tmp_path / "out")
    assert path == tmp_path / "out" / ".._up_and_away_01.yaml" and path.is_file()


def test_the_profile_of_a_file_is_found_from_any_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = simtrain.base.resources.find_profile("a100_sxm4_80gb")
    (tmp_path / "mine.yaml").write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    base = BASES["plain"].model_copy(update={"cluster": "mine.yaml"})
    (path,) = write_scenarios(search(base, (1,), top=1), tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    assert simtrain.simulate(simtrain.load_scenario(path)).iteration_time_s > 0


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "small.yaml"
    path.write_text(
        "model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, seq_length: 512}\n"
        "batch: {micro: 1, global: 4}\n"
    )
    return path


def test_the_command_prints_json(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    options = ("--gpus", "4", "--set", "memory.zero_stage=1", "--top", "2", "--out", str(out))
    outcome = call("search", str(file), *options, "--json")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    data = json.loads(outcome.stdout)
    assert data["best"] == data["ranked"][0]
    assert data["num_configurations"] > data["num_legal"] >= data["num_fitting"] > 0
    removed = sum(data["num_illegal_by_rule"].values())
    assert removed + data["num_legal"] == data["num_configurations"]
    assert data["exact"] is True
    for one in data["ranked"]:
        assert one["configuration"]["zero_stage"] == 1
        assert sum(one["breakdown_s"].values()) == pytest.approx(one["iteration_time_s"])
        ran = json.loads(call("run", one["file"], "--json").stdout)
        assert ran["iteration_time_s"] == one["iteration_time_s"]
        assert ran["made_with"] == data["made_with"]
        head = "".join(pathlib.Path(one["file"]).read_text("utf-8").splitlines()[:3])
        assert all(words in head for words in data["made_with"].values())
        # `simtrain cost` rounds up to whole iterations; with 1T tokens the difference is small.
        cost = json.loads(call("cost", one["file"], "--tokens", "1T", "--json").stdout)
        assert data["currency"] == cost["currency"]
        assert one["price_of_million_tokens"] == pytest.approx(cost["price"] / 1e6, rel=1e-6)


def test_the_command_prints_a_table(file: pathlib.Path) -> None:
    options = ("--gpus", "2", "--gpus", "4", "--set", "recompute=none", "--top", "3")
    outcome = call("search", str(file), *options, "--objective", "cost")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    title, *lines = outcome.stdout.splitlines()
    assert "Number 1 compared" not in outcome.stdout
    for shown in ("small", "2 or 4 GPUs", "a100_sxm4_80gb", "cost", "80 GiB"):
        assert shown in title
    assert "…" not in outcome.stdout
    rows = [line.split() for line in lines if re.fullmatch(r"[123] .*", line)]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert all(row[1] in ("2", "4") for row in rows), "the column of GPUs"
    assert any("USD/" in line for line in lines)
    assert any(line.startswith("Exact among ") for line in lines)
    assert lines[1].startswith("Best that surely fits")
    more = call("search", str(file), *options, "--objective", "cost", "--details").stdout
    assert more.startswith(outcome.stdout)
    assert "\nNumber 1 compared with number 2: " in more and "\nHeld: " in more


@pytest.mark.parametrize(
    ("options", "exit_code", "code"),
    [
        (("--gpus", "7"), 2, "E831"),
        (("--gpus", "4", "--max-memory", "1GiB"), 3, "E830"),
        (("--gpus", "0"), 2, "--gpus"),
        (("--gpus", "4", "--set", "model.num_layers=none"), 2, "E203"),
    ],
)
def test_exit_codes(
    file: pathlib.Path, options: tuple[str, ...], exit_code: int, code: str
) -> None:
    outcome = call("search", str(file), *options)
    assert (outcome.exit_code, outcome.stdout) == (exit_code, "")
    assert code in outcome.stderr
