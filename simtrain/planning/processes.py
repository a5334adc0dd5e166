"""Searches of a plan in several processes."""

from __future__ import annotations

import functools
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from typing import NamedTuple

from simtrain.planning.layout import Combination, LayoutResult, best_layout
from simtrain.scenario import Scenario
from simtrain.search.workers import worker_died
from simtrain.sweep.executors import local_executor

_POLL_S = 0.05
"""Time between two polls of `interrupted`."""


class SearchTask(NamedTuple):
    """A search for a worker.

    Args:
        combination: cluster and number of GPUs.
        base: scenario on the cluster.
        budget_s: time budget; None for no limit.
    """

    combination: Combination
    base: Scenario
    budget_s: float | None


def layouts_in_processes(
    next_search: Callable[[], SearchTask | None], workers: int, interrupted: Callable[[], bool]
) -> Iterator[tuple[Combination, LayoutResult]]:
    """Yield the result of each search when it ends.

    Args:
        next_search: returns the next search, or None after the last one.
        workers: number of processes.
        interrupted: polled; True starts no further search. Ctrl-C also reaches the workers, which
            then end their searches with the best layout so far.

    Raises:
        InputError: a worker died.
    """
    executor = local_executor(workers)
    running: dict[Future[LayoutResult], Combination] = {}
    try:
        while True:
            while len(running) < workers and not interrupted() and (task := next_search()):
                num_gpus = task.combination[1]
                future = executor.submit(_best_layout, task.base, num_gpus, task.budget_s)
                running[future] = task.combination
            if not running:
                return
            for finished in wait(running, _POLL_S, FIRST_COMPLETED).done:
                yield running.pop(finished), finished.result()
    except BrokenExecutor as error:
        # Ctrl-C kills a worker that is still starting. This is not an error.
        if not interrupted():
            raise worker_died() from error
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _best_layout(base: Scenario, num_gpus: int, budget_s: float | None) -> LayoutResult:
    """Search in a worker; Ctrl-C ends the search with the best layout so far."""
    presses = _ctrl_c_presses()
    return best_layout(base, num_gpus, budget_s, lambda: bool(presses))


@functools.cache
def _ctrl_c_presses() -> list[int]:
    """Return a list that grows with each Ctrl-C if this process is a worker."""
    presses: list[int] = []
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, lambda number, frame: presses.append(number))
    return presses
