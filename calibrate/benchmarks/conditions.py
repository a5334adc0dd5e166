"""The conditions of each record: processors that others used, and the speed of the machine."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from calibrate.benchmarks.products import product_runs
from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import Timer, in_turn
from calibrate.records.schema import Conditions, GemmWork

Result = TypeVar("Result")
_STAT = Path("/proc/stat")
_IDLE = slice(3, 5)
"""Columns of idle time and of waiting for disks, of the times of all processors together."""
_NUM_COUNTED = 8
"""Columns before the time of guests, which counts as user time too (man 5 proc_stat)."""
_NUM_RUNS = 3
_SIDE = 256


class Watch:
    """Takes records under the eye of the machine's load and of a reference product."""

    def __init__(self, sizes: Sizes, timer: Timer) -> None:
        self._timer, self._is_first = timer, True
        side = _SIDE if timer.device == "cpu" else 16 * _SIDE
        work = GemmWork(m=side, n=side, k=side, dtype=sizes.compute)
        self._reference = in_turn(product_runs(work, timer))

    def watch(self, take: Callable[[], Result]) -> tuple[Result, Conditions]:
        """Return what `take` returns, and the conditions meanwhile; all ranks take together.

        The first record of a process is marked: it may include what is done only once.
        """
        once = self._timer.once
        reference_s = min(once(self._reference)[1] for _ in range(_NUM_RUNS))
        busy_s, own_s, start_s = _busy_seconds(), time.process_time(), time.perf_counter()
        result = take()
        taken_s = time.perf_counter() - start_s
        # The ranks of this node are taken to be as busy as those of any other.
        own_s = self._timer.ranks.total(time.process_time() - own_s) / self._timer.ranks.num_nodes
        others = None
        if busy_s is not None and (now_s := _busy_seconds()) is not None:
            others = round(max(0.0, now_s - busy_s - own_s) / taken_s, 2)
        is_first, self._is_first = self._is_first, False
        conditions = Conditions(others=others, reference_s=reference_s, is_first=is_first)
        return result, conditions


def mean_running() -> float | None:
    """The mean number of running processes in the last minute; None if the system lacks it."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows
        return None


def load_average() -> dict[str, str]:
    """The load of this machine in words; empty if the system does not say it."""
    running = mean_running()
    if running is None:
        return {}
    return {"load average": f"{running:.2f} of {os.cpu_count()} processors"}


def _busy_seconds() -> float | None:
    """Seconds of all processors since the start that were not idle; None outside Linux."""
    try:
        times = [
            int(ticks) for ticks in _STAT.read_text(encoding="ascii").split("\n")[0].split()[1:]
        ]
    except OSError:
        return None
    busy = sum(times[:_NUM_COUNTED]) - sum(times[_IDLE])
    return busy / os.sysconf("SC_CLK_TCK")
