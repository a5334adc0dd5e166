"""Searches of a plan: one per combination of a cluster and a number of GPUs."""

from __future__ import annotations

import functools
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait

from simtrain.scenario import Scenario
from simtrain.studies.planning.layout import Combination, LayoutResult, best_layout
from simtrain.studies.planning.request import PlanRequest
from simtrain.studies.search.workers import worker_died
from simtrain.studies.sweep.executors import local_executor

_MIN_BUDGET_S = 1e-6
"""Smallest time budget of a search; the first combination is always searched."""
_POLL_S = 0.05
"""Time between two polls of `interrupted`."""


def search_layouts(
    request: PlanRequest, bases: Mapping[str, Scenario], report: Callable[[str], None]
) -> Iterator[tuple[Combination, LayoutResult]]:
    """Search combinations in order, and yield the result of each search when it ends.

    Args:
        request: combinations, workers and time budget. One worker is this process. Ctrl-C also
            reaches the other workers, which then end their searches with the best layout so far.
        bases: the scenario to search from, for each cluster.
        report: receives descriptions of the current work.

    Raises:
        InputError: a worker died.
    """
    start_s, num_finished, workers = time.monotonic(), 0, request.workers
    remaining, running = deque(request.combinations), dict[Future[LayoutResult], Combination]()

    def search_here(
        base: Scenario, combination: Combination, budget_s: float | None
    ) -> LayoutResult:
        """Search in this process and report the phases of the search."""
        return best_layout(
            base,
            combination.num_gpus,
            budget_s,
            request.interrupted,
            lambda phase, *_: report(f"{combination}: {phase}"),
        )

    search_one = search_here if workers == 1 else _search_in_worker
    executor = local_executor(workers)
    report("searching")
    try:
        while True:
            while remaining and len(running) < workers and not request.interrupted():
                budget_s = _budget_s(request.seconds, start_s, len(remaining) / workers)
                # The first search begins with any budget.
                if num_finished and budget_s is not None and budget_s <= _MIN_BUDGET_S:
                    remaining.clear()
                    break
                combination = remaining.popleft()
                base = bases[combination.cluster]
                running[executor.submit(search_one, base, combination, budget_s)] = combination
            if not running:
                return
            for finished in wait(running, _POLL_S, FIRST_COMPLETED).done:
                num_finished += 1
                yield running.pop(finished), finished.result()
                report("searching")
    except BrokenExecutor as error:
        # Ctrl-C kills a worker that is still starting. This is not an error.
        if not request.interrupted():
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
