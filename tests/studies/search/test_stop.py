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
from simtrain.scenario import load_unchecked
from simtrain.studies.objectives.registry import OBJECTIVES
from simtrain.studies.search.exact_search import search_all
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.run import search
from simtrain.studies.search.search_end import End, StopRequestedError
from simtrain.studies.search.workers import Workers
from simtrain.views.search import search_view
from tests.helpers.command_line import call
from tests.helpers.search_spaces import BASES, every

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


@pytest.mark.ci
@settings(max_examples=10)
@given(
    st.integers(1, 400),
    st.sampled_from([name for name, one in OBJECTIVES.items() if one.draws is None]),
)
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


def test_a_search_stopped_after_the_bounds_has_proved_number_1() -> None:
    results = map(stopped, itertools.count(9, 4))
    result = next(result for result in results if result.outcome.bound is not None)
    assert (result.outcome.stopped, result.exact) == ("interrupt", False)
    data = result.to_dict()
    assert (data["stopped"], data["gap"]) == ("interrupt", 0) and data["num_unseen"] > 0
    assert data["lower_bound_iteration_time_s"] == data["best"]["iteration_time_s"]
    last = search_view(result).sentences[-1]
    better = "no other that surely fits is better than number"
    assert re.match(rf"Interrupted\. Evaluated .* of {NUM_NARROW}; {better}", last)


def test_a_search_stopped_before_all_bounds_are_known_proves_nothing() -> None:
    """The search stops after one layout was simulated."""
    result = stopped(0)
    num_legal = result.num_legal
    assert (result.outcome.num_simulated, len(result.ranked)) == (1, 1)
    assert num_legal == NUM_NARROW and result.num_unseen > 0
    assert (result.outcome.bound, result.outcome.num_proved) == (None, 0)
    data = result.to_dict()
    assert (data["exact"], data["stopped"], data["gap"]) == (False, "interrupt", None)
    assert data["lower_bound_iteration_time_s"] is None
    last = search_view(result).sentences[-1]
    assert last.startswith(
        f"Interrupted. Best found: simulated 1 layout of {num_legal}; others can be better. "
    )


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_search_is_not_stopped_before_a_layout_fits(share: float) -> None:
    known, points = every("narrow")
    peaks = sorted(map(known.peak_bytes, points))
    explorer = known.within(peaks[int(share * len(peaks))])
    outcome = search_all(
        explorer, Workers(explorer), points, 1, lambda *progress: None, lambda: End.BUDGET
    )
    assert (outcome.num_simulated, len(outcome.best), outcome.stopped) == (1, 1, "budget")
    assert outcome.best[0].peak_bytes <= explorer.limit_bytes


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


def test_a_search_stopped_at_once_has_a_usable_layout() -> None:
    """The first layout simulated takes at most 0.6 longer than the best of 207."""
    searched = load_unchecked("table5_22b_present", [])
    whole = search(searched, (8,), top=1)
    first = search(searched, (8,), top=1, interrupted=lambda: True)
    assert first.outcome.num_simulated == 1
    ratio = first.ranked[0].run.iteration_time_s / whole.ranked[0].run.iteration_time_s
    assert 1 <= ratio < 1.6


def test_a_gap_that_says_nothing_is_not_printed() -> None:
    result = search(BASES["narrow"], (4,), "memory", top=1, seconds=1e-9)
    assert result.gap is None or result.gap < 1 or "%" not in search_view(result).sentences[-1]


def test_a_spent_budget_stops_the_search() -> None:
    result = search(BASES["narrow"], (4,), seconds=1e-9)
    assert result.outcome.stopped == "budget" and len(result.ranked) == 1


def test_the_error_of_a_stopped_search_counts_unevaluated_layouts() -> None:
    pytest.importorskip("optuna")
    explorer, points = every("fp8")
    least = min(map(explorer.peak_bytes, points))
    with pytest.raises(DoesNotFitError) as caught:
        search(BASES["fp8"], (4,), max_memory=f"{least - 1} B", max_trials=30, seconds=1e-9)
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
        next(workers.group_keys([points], lambda: None))
    with pytest.raises(StopRequestedError, match="interrupt"):
        next(workers.group_keys([points], lambda: End.INTERRUPT))


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
