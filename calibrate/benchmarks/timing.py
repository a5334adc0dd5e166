"""Times work on a device: warmed up, by the device's clock, on data that no cache holds."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from calibrate.benchmarks.ranks import Ranks
from calibrate.records.schema import Timing

Run = Callable[[], object]

_SAMPLE_S = {"cuda": 2e-3, "cpu": 5e-3}
"""Least length of a sample, so that clock, start and scheduler do not count."""
_MAX_REPEATS = 200
_NUM_SAMPLES = 5, 50
_FEWEST_SAMPLES = 3
"""Samples of work that takes longer than its budget."""
_MOST_BUDGETS = 2
"""Time budgets of samples after which no further round begins."""
_MOST_ELAPSED = 5
"""Time budgets after which no further sample begins: on a busy machine ranks wait for each other
much longer than the samples take."""
_MIN_ROUNDS, _MAX_ROUNDS = 2, 4
_AGREEMENT = 0.05
_MAX_COPIES = 64
_CACHE_BYTES = {"cuda": 256 << 20, "cpu": 64 << 20}
"""More than twice the last cache of any device but the largest CPUs of servers."""
_SPIN_HZ = 2e9
"""The highest clock of a GPU; slower ones spin longer."""
_LONGEST_SPIN_S = 0.1


def summary(samples: Sequence[float]) -> Timing:
    """Median and half the distance between the quartiles of two samples or more."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median_s=middle, spread_s=(high - low) / 2, num_samples=len(samples))


@dataclass(frozen=True, slots=True)
class Timer:
    """Times work on one device, about `budget_s` long; a time is that of the slowest rank."""

    device: str
    budget_s: float
    ranks: Ranks = field(default_factory=Ranks)
    clock: Callable[[], float] = time.perf_counter

    def copies(self, num_bytes: int) -> int:
        return min(math.ceil(_CACHE_BYTES[self.device] / num_bytes) + 1, _MAX_COPIES)

    def time(self, runs: Sequence[Run]) -> Timing:
        """Seconds of one of the runs, which run in turn; a rank outside the group has none.

        The device waits until the host has queued a whole sample: the host's time does not count.
        """
        run = in_turn(runs)
        self.once(run)
        host_s, total_s = self.once(run)
        repeats = _between(_SAMPLE_S[self.device] / total_s, 1, _MAX_REPEATS)

        def sample() -> None:
            for _ in range(repeats):
                run()

        def take() -> list[float]:
            return [part / repeats for part in self._parts([sample], queued_s=host_s * repeats)]

        return self._undisturbed(take, total_s * repeats)[0]

    def time_parts(self, parts: Sequence[Run]) -> list[Timing]:
        """Seconds of each of several runs in a row, as the host launches them."""
        self.once(*parts)
        _, total_s = self.once(*parts)
        return self._undisturbed(lambda: self._parts(parts), total_s)

    def _undisturbed(self, take: Callable[[], list[float]], sample_s: float) -> list[Timing]:
        """The fastest round of samples: other work of a machine only slows it.

        Rounds end when the two fastest agree, or after two budgets. All ranks see the same times,
        and end together.
        """
        least, most = _NUM_SAMPLES
        if least * sample_s > self.budget_s:
            least = _FEWEST_SAMPLES
        count = _between(self.budget_s / _MIN_ROUNDS / sample_s, least, most)
        spent_s, is_late, start_s = 0.0, False, self.clock()
        rounds: list[tuple[float, list[Timing]]] = []
        for number in range(_MAX_ROUNDS):
            samples = list[list[float]]()
            while len(samples) < count and (len(samples) < 2 or not is_late):
                *taken, elapsed_s = self.ranks.slowest([*take(), self.clock() - start_s])
                is_late = elapsed_s >= _MOST_ELAPSED * self.budget_s
                samples.append(taken)
            parts = [summary(part) for part in zip(*samples, strict=True)]
            # About the upper quartiles: the median of scattered times may be low by chance.
            rounds.append((math.fsum(part.median_s + part.spread_s for part in parts), parts))
            rounds.sort(key=itemgetter(0))
            # Spent by the shared times, so that all ranks stop at the same round.
            spent_s += count * sample_s
            agree = number and rounds[1][0] <= (1 + _AGREEMENT) * rounds[0][0]
            if agree or is_late or spent_s >= _MOST_BUDGETS * self.budget_s:
                break
        return rounds[0][1]

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def once(self, *runs: Run) -> list[float]:
        """Host seconds and all seconds of runs in a row, which all ranks begin together."""
        self.ranks.meet()
        self.synchronize()
        start_s = time.perf_counter()
        for run in runs:
            run()
        host_s = time.perf_counter() - start_s
        self.synchronize()
        return self.ranks.slowest([host_s, time.perf_counter() - start_s])

    def _parts(self, parts: Sequence[Run], queued_s: float = 0.0) -> list[float]:
        """Seconds of each part, by the device's clock; it is busy until `queued_s` are queued."""
        self.ranks.meet()
        on_gpu = self.device == "cuda"
        if on_gpu:
            torch.cuda.synchronize()
            spin(2 * queued_s)
        mark: Callable[[], Any] = _event if on_gpu else time.perf_counter
        marks = [mark()]
        for part in parts:
            part()
            marks.append(mark())
        pairs = itertools.pairwise(marks)
        if not on_gpu:
            return [end - start for start, end in pairs]
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def in_turn(runs: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """A run that takes the runs in turn; on a rank outside the group it does nothing."""
    turns = itertools.cycle(runs or [lambda: None])
    return lambda: next(turns)()


def spin(seconds: float) -> None:
    """Keep the current CUDA stream busy for about that time."""
    torch.cuda._sleep(int(min(seconds, _LONGEST_SPIN_S) * _SPIN_HZ))


def _between(value: float, low: int, high: int) -> int:
    return max(low, min(math.ceil(value), high))


class RandomData:
    """Random numbers on a device, handed out in turn and never written to."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        size = _CACHE_BYTES[device] // dtype.itemsize
        generator = torch.Generator(device).manual_seed(1)
        self._values = torch.randn(size, device=device, dtype=dtype, generator=generator)
        self._next = 0

    def take(self, *sizes: int) -> Tensor:
        """A contiguous tensor of these sizes, with the next numbers while they last."""
        count = math.prod(sizes)
        if count > len(self._values):
            return self._values.repeat(math.ceil(count / len(self._values)))[:count].view(sizes)
        if self._next + count > len(self._values):
            self._next = 0
        start, self._next = self._next, self._next + count
        return self._values[start : start + count].view(sizes)


@cache
def random_data(device: str, dtype: torch.dtype) -> RandomData:
    """The random numbers of a device, made once."""
    return RandomData(device, dtype)
