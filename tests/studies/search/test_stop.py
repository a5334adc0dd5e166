"""End searches report the best layout so far and its distance from the optimum; workers."""

import itertools
import json
import pathlib
import re
import signal
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simtrain
from simtrain.commands.interrupts import first_interrupt
from simtrain.errors import DoesNotFitError, InputError
from simtrain.studies.objectives.objective import Key
from simtrain.studies.objectives.registry import OBJECTIVES
from simtrain.studies.search.exact_search import search_all
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.run import search
from simtrain.studies.search.search_end import End, StopRequestedError, never
from simtrain.studies.search.space import Point
from simtrain.studies.search.workers import Workers
from simtrain.views.search import search_view
from tests.helpers.command_line import call
from tests.helpers.search_spaces import BASES, every, space

pytestmark = pytest.mark.slow

FILE = """\
model: {num_layers: 8, hidden_size: 512, num_attention_heads: 8, seq_length: 512}
batch: {micro: 1, global: 8}
"""


NUM_NARROW = len(every("narrow")[1])


def interrupt_at_call(number: int) -> Callable[[], bool]:
    """Return a function that returns True from call `number` on; calls are counted from 0."""
    count = itertools.count()
    return lambda: next(count) >= number


def stopped(number: int, objective: str = "time", top: int = 3) -> SearchResult:
    return search(BASES["narrow"], (4,), objective, top=top, interrupted=interrupt_at_call(number))


def values(name: str, objective: str) -> list[float]:
    """Return the objective of all legal layouts, the best first."""
    explorer, points = every(name)
    return sorted(OBJECTIVES[objective].key(explorer.evaluation(point))[0] for point in points)


@settings(max_examples=10)
@given(st.integers(1, 400), st.sampled_from(list(OBJECTIVES)))
def test_bound_and_gap_hold_whenever_a_search_stops(number: int, objective: str) -> None:
    result, all_values = stopped(number, objective), values("narrow", objective)
    found = [OBJECTIVES[objective].key(one.evaluation)[0] for one in result.ranked]
    bound, gap = result.outcome.bound, result.gap
    assert found and (bound is None) == (gap is None)
    if bound is None or gap is None:
        # End before all layouts had bounds.
        assert result.outcome.stopped and result.outcome.num_proved == 0 and not result.exact
        return
    assert bound <= all_values[0] <= found[0]
    assert gap >= 0
    if OBJECTIVES[objective].is_maximised:
        assert -all_values[0] <= -found[0] * (1 + gap) * (1 + 1e-12)
    else:
        assert found[0] <= all_values[0] * (1 + gap) * (1 + 1e-12)
    proved = min(result.outcome.num_proved, len(found))
    assert found[:proved] == all_values[:proved]
    if result.exact:
        assert found == all_values[: len(found)]
    assert result.outcome.num_fitting <= result.outcome.num_seen <= len(all_values)
    assert result.num_unseen == result.num_legal - result.outcome.num_seen


def test_the_best_never_gets_worse_with_time() -> None:
    bests = [stopped(number).ranked[0].run.iteration_time_s for number in range(0, 200, 20)]
    assert bests == sorted(bests, reverse=True)


def test_a_search_stopped_after_the_bounds_says_how_far_the_optimum_can_be() -> None:
    results = map(stopped, itertools.count(9, 4))
    result = next(result for result in results if result.outcome.bound is not None)
    assert (result.outcome.stopped, result.exact) == ("interrupt", False)
    data = result.to_dict()
    assert data["stopped"] == "interrupt" and data["num_unseen"] > 0
    assert 0 < data["lower_bound_iteration_time_s"] < data["best"]["iteration_time_s"]
    last = search_view(result).sentences[-1]
    assert re.match(rf"Interrupted\. .* of {NUM_NARROW}; ", last)
    fastest, best = map(float, re.findall(r"(\S+) ms", last))
    assert fastest < best and re.search(r"\S+ % from the optimum", last)


def test_a_search_stopped_before_all_bounds_are_known_proves_nothing() -> None:
    """The search stops after one layout was simulated."""
    result = stopped(0)
    num_legal = result.num_legal
    assert (result.outcome.num_seen, result.num_unseen, len(result.ranked)) == (1, num_legal - 1, 1)
    assert result.legal.stopped == "interrupt" and num_legal <= NUM_NARROW
    assert (result.outcome.bound, result.outcome.num_proved) == (None, 0)
    data = result.to_dict()
    assert (data["exact"], data["stopped"], data["gap"]) == (False, "interrupt", None)
    assert data["lower_bound_iteration_time_s"] is None
    last = search_view(result).sentences[-1]
    assert last.startswith(
        f"Interrupted. Best found: simulated 1 layout of {num_legal}; others can be better. "
    )


def test_a_search_is_not_stopped_before_a_layout_may_fit() -> None:
    num_too_large, seen = 10, list[Point]()

    def has_bound(point: Point) -> Key | None:
        seen.append(point)
        return (1.0, 0) if len(seen) > num_too_large else None

    explorer, points = every("narrow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simtrain.studies.search.exact_search._TELL_EVERY", 1)
        patch.setattr(explorer, "layers_key", has_bound)
        outcome = search_all(
            explorer, Workers(explorer), points, 1, lambda *progress: None, lambda: End.BUDGET
        )
    assert (len(seen), outcome.stopped) == (num_too_large + 1, "budget")
    assert [Point.of(one.scenario) for one in outcome.best] == [seen[-1]]


def test_a_search_stopped_after_the_ranking_is_exact() -> None:
    whole = search(BASES["narrow"], (4,), top=1)
    for number in itertools.count(1, 2):
        result = search(BASES["narrow"], (4,), top=1, interrupted=interrupt_at_call(number))
        if result.exact:
            break
    assert result.outcome.stopped == "interrupt" and result.num_unseen > 0
    assert result.ranked == whole.ranked
    last = search_view(result).sentences[-1]
    assert last.startswith(f"Interrupted. Exact among {NUM_NARROW} layouts: ")


def test_a_finished_search_is_not_stopped() -> None:
    data = search(BASES["narrow"], (4,), top=1, seconds=1e6).to_dict()
    assert (data["exact"], data["stopped"], data["num_unseen"], data["gap"]) == (True, None, 0, 0)
    assert data["lower_bound_iteration_time_s"] == data["best"]["iteration_time_s"]
    fastest = search(BASES["narrow"], (4,), "tokens_per_s", top=1).to_dict()
    assert fastest["upper_bound_tokens_per_s"] == fastest["best"]["tokens_per_s"]


def test_the_list_of_legal_layouts_can_be_stopped() -> None:
    searched = space("experts", 8)
    whole, part = (legal_points(searched, stop=stop) for stop in (never, lambda: End.BUDGET))
    assert part.stopped == "budget" and whole.stopped is None
    assert 0 < len(part.points) < len(whole.points)
    assert part.points == whole.points[: len(part.points)]


def test_a_search_whose_list_was_stopped_is_not_exact() -> None:
    """It knows only some of the layouts, also if it has simulated all of these."""
    whole = search(BASES["narrow"], (4,), top=1)
    results = [stopped(number, top=1) for number in range(14)]
    partial = [result for result in results if result.legal.stopped]
    assert partial
    for result in partial:
        assert result.num_legal < whole.num_legal
        assert (result.exact, result.outcome.bound) == (False, None)
        assert result.outcome.stopped == "interrupt"


def test_a_spent_budget_stops_the_search() -> None:
    result = search(BASES["narrow"], (4,), seconds=1e-9)
    assert result.outcome.stopped == "budget" and len(result.ranked) == 1


def test_the_error_of_a_stopped_search_counts_unevaluated_layouts() -> None:
    explorer, points = every("fp8")
    least = min(map(explorer.peak_bytes, points))
    with pytest.raises(DoesNotFitError) as caught:
        search(BASES["fp8"], (4,), max_memory=f"{least - 1} B", seconds=1e-9)
    message = str(caught.value)
    assert message.startswith("E830 ")
    assert "were not evaluated before the search stopped" in message


def test_a_stopped_search_with_trials_has_no_bound() -> None:
    result = search(BASES["narrow"], (4,), max_trials=30, interrupted=interrupt_at_call(4))
    assert result.outcome.num_seen == 5 and result.outcome.stopped == "interrupt"
    data = result.to_dict()
    assert data["lower_bound_iteration_time_s"] is None and data["gap"] is None
    last = search_view(result).sentences[-1]
    assert last.startswith(f"Interrupted. Best found: simulated 5 layouts of {NUM_NARROW}; ")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "5"])
def test_an_invalid_budget_is_an_error(seconds: float) -> None:
    with pytest.raises(InputError, match="E834 seconds is "):
        search(BASES["narrow"], (4,), seconds=seconds)


# ------------------------------------------------------------------------- workers


@pytest.mark.ci
@pytest.mark.slow
def test_workers_do_not_change_the_result() -> None:
    one, two = (search(BASES["overlapped"], (4,), workers=number).to_dict() for number in (1, 2))
    assert json.dumps(one) == json.dumps(two)


class BrokenPool(Executor):
    """Pool whose workers have died."""

    def submit(self, *arguments: object, **named: object) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        future.set_exception(BrokenExecutor())
        return future


def test_a_worker_that_dies_is_an_error_unless_the_search_is_stopped() -> None:
    explorer, points = every("narrow")
    workers = Workers(explorer, BrokenPool())
    with pytest.raises(InputError, match="--workers: E836 "):
        next(workers.quick_keys(points, None, lambda: None))
    with pytest.raises(StopRequestedError, match="interrupt"):
        next(workers.quick_keys(points, None, lambda: End.INTERRUPT))


def test_workers_with_trials_are_an_error() -> None:
    with pytest.raises(InputError, match=r"E835 .* 2 workers"):
        search(BASES["narrow"], (4,), max_trials=30, workers=2)
    with pytest.raises(InputError, match="E834 workers is 0"):
        search(BASES["narrow"], (4,), workers=0)


# ------------------------------------------------------------------------- the command


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "small.yaml"
    path.write_text(FILE)
    return path


def test_the_command_takes_a_budget(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    options = ("--gpus", "4", "--seconds", "0.000001", "--out", str(tmp_path / "out"))
    outcome = call("search", str(file), *options, "--json")
    data = json.loads(outcome.stdout)
    assert outcome.exit_code == 0
    assert (data["exact"], data["stopped"], len(data["ranked"])) == (False, "budget", 1)
    assert simtrain.load_scenario(data["best"]["file"]).num_gpus == 4


def test_an_interrupted_command_prints_the_best_so_far(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed = nullcontext(lambda: True)
    monkeypatch.setattr("simtrain.commands.interrupts.first_interrupt", lambda: pressed)
    outcome = call("search", str(file), "--gpus", "4")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert "Interrupted. Best found: simulated 1 layout of" in outcome.stdout


def test_the_first_ctrl_c_sets_a_flag_and_the_second_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with first_interrupt() as is_pressed:
        assert not is_pressed()
        signal.raise_signal(signal.SIGINT)
        assert is_pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
