"""Searches of a plan: one per combination of a cluster and a number of GPUs."""

from __future__ import annotations

import functools
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait

from simtrain.scenario import Scenario
from simtrain.studies.planning.layout import Combination, LayoutResult, best_layout
from simtrain.studies.search.workers import worker_died
from simtrain.studies.sweep.executors import local_executor

_MIN_BUDGET_S = 1e-6
"""Smallest time budget of a search; the first combination is always searched."""
_POLL_S = 0.05
"""Time between two polls of `interrupted`."""


def search_layouts(
    bases: Mapping[str, Scenario],
    combinations: Sequence[Combination],
    workers: int,
    seconds: float | None,
    interrupted: Callable[[], bool],
    report: Callable[[str], None],
) -> Iterator[tuple[Combination, LayoutResult]]:
    """Search combinations in order, and yield the result of each search when it ends.

    Args:
        bases: the scenario to search from, for each cluster.
        combinations: clusters and numbers of GPUs to search.
        workers: processes that search at the same time; one worker is this process.
        seconds: time budget of all searches together; None for no limit.
        interrupted: polled; True starts no further search. Ctrl-C also reaches the workers, which
            then end their searches with the best layout so far.
        report: receives descriptions of the current work.

    Raises:
        InputError: a worker died.
    """
    start_s, num_finished = time.monotonic(), 0
    remaining, running = deque(combinations), dict[Future[LayoutResult], Combination]()

    def search_here(
        base: Scenario, combination: Combination, budget_s: float | None
    ) -> LayoutResult:
        """Search in this process and report the phases of the search."""
        return best_layout(
            base,
            combination.num_gpus,
            budget_s,
            interrupted,
            lambda phase, *_: report(f"{combination}: {phase}"),
        )

    def may_begin(budget_s: float | None) -> bool:
        """Whether another search begins; the first one begins with any budget."""
        return budget_s is None or budget_s > _MIN_BUDGET_S or not num_finished

    search_one = search_here if workers == 1 else _search_in_worker
    executor = local_executor(workers)
    report("searching")
    try:
        while True:
            while remaining and len(running) < workers and not interrupted():
                budget_s = _budget_s(seconds, start_s, len(remaining) / workers)
                if not may_begin(budget_s):
                    remaining.clear()
                    break
                combination = remaining.popleft()
                running[
                    executor.submit(search_one, bases[combination.cluster], combination, budget_s)
                ] = combination
            if not running:
                return
            for finished in wait(running, _POLL_S, FIRST_COMPLETED).done:
                num_finished += 1
                yield running.pop(finished), finished.result()
                report("searching")
    except BrokenExecutor as error:
        # Ctrl-C kills a worker that is still starting. This is not an error.
        if not interrupted():
            raise worker_died() from error
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _budget_s(seconds: float | None, start_s: float, num_rounds: float) -> float | None:
    """Return the time budget of the next search if `num_rounds` searches are left in a row."""
    if seconds is None:
        return None
    remaining_s = seconds - (time.monotonic() - start_s)
    return max(remaining_s / max(num_rounds, 1), _MIN_BUDGET_S)


def _search_in_worker(
    base: Scenario, combination: Combination, budget_s: float | None
) -> LayoutResult:
    """Search in a worker; Ctrl-C ends the search with the best layout so far."""
    presses = _ctrl_c_presses()
    return best_layout(base, combination.num_gpus, budget_s, lambda: bool(presses))


@functools.cache
def _ctrl_c_presses() -> list[int]:
    """Return a list that grows with each Ctrl-C if this process is a worker."""
    presses: list[int] = []
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, lambda number, frame: presses.append(number))
    return presses
