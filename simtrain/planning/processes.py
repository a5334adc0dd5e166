"""Searches of a plan in several processes."""

from __future__ import annotations

import functools
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait

from simtrain.planning.layout import Layout, best_layout
from simtrain.scenario import Scenario
from simtrain.search.workers import worker_died
from simtrain.sweep.executors import local_executor

Search = tuple[tuple[str, int], Scenario, int, float | None]
"""A combination, its base scenario, its number of GPUs, and the seconds that it may take."""

_POLL_S = 0.05
"""Time between two looks at whether the plan is interrupted."""


def layouts_in_processes(
    next_search: Callable[[], Search | None], workers: int, interrupted: Callable[[], bool]
) -> Iterator[tuple[tuple[str, int], Layout]]:
    """Run searches until there is none left or the plan is interrupted, and yield each at its end.

    Ctrl-C also reaches the workers, which then end their searches with the best so far.

    Raises:
        InputError: a worker died.
    """
    executor = local_executor(workers)
    under_way: dict[Future[Layout], tuple[str, int]] = {}
    try:
        while True:
            while len(under_way) < workers and not interrupted() and (search := next_search()):
                combination, base, num_gpus, seconds = search
                future = executor.submit(_best_layout, base, num_gpus, seconds)
                under_way[future] = combination
            if not under_way:
                return
            for ended in wait(under_way, _POLL_S, FIRST_COMPLETED).done:
                yield under_way.pop(ended), ended.result()
    except BrokenExecutor as error:
        # A worker that was still starting when Ctrl-C was pressed dies of it.
        if not interrupted():
            raise worker_died() from error
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _best_layout(base: Scenario, num_gpus: int, seconds: float | None) -> Layout:
    """Search in a worker; Ctrl-C ends the search with the best so far."""
    pressed = _presses()
    return best_layout(base, num_gpus, seconds, lambda: bool(pressed))


@functools.cache
def _presses() -> list[int]:
    """A list that gets an item when Ctrl-C is pressed, if this process is a worker."""
    presses: list[int] = []
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, lambda number, frame: presses.append(number))
    return presses
