"""Times work on a device: warmed up, by the device's clock, on data that no cache holds."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
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

    def copies(self, num_bytes: int) -> int:
        """Number of operands of `num_bytes` to use in turn, so that no cache holds one."""
        return min(math.ceil(_CACHE_BYTES[self.device] / num_bytes) + 1, _MAX_COPIES)

    def time(self, runs: Sequence[Run]) -> Timing:
        """Seconds of one of the runs, which run in turn; a rank outside the group has none.

        The device waits until the host has queued a whole sample: the host's time does not count.
        """
        run = in_turn(runs)
        host_s, total_s = self._warm_up([run])
        repeats = _between(_SAMPLE_S[self.device] / total_s, 1, _MAX_REPEATS)

        def sample() -> None:
            for _ in range(repeats):
                run()

        def take() -> list[float]:
            return [part / repeats for part in self._parts([sample], queued_s=host_s * repeats)]

        return self._undisturbed(take, total_s * repeats)[0]

    def time_parts(self, parts: Sequence[Run]) -> list[Timing]:
        """Seconds of each of several runs in a row, as the host launches them."""
        _, total_s = self._warm_up(parts)
        return self._undisturbed(lambda: self._parts(parts), total_s)

    def _undisturbed(self, take: Callable[[], list[float]], sample_s: float) -> list[Timing]:
        """The fastest round of samples: other work of a machine only slows it.

        Rounds end when the two fastest agree. All ranks see the same times, and end together.
        """
        count = _between(self.budget_s / _MIN_ROUNDS / sample_s, *_NUM_SAMPLES)
        rounds: list[list[Timing]] = []
        while len(rounds) < _MIN_ROUNDS or (len(rounds) < _MAX_ROUNDS and not _agree(rounds)):
            samples = [self.ranks.slowest(take()) for _ in range(count)]
            rounds.append([summary(part) for part in zip(*samples, strict=True)])
        return min(rounds, key=_upper_s)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _warm_up(self, runs: Sequence[Run]) -> tuple[float, float]:
        """Host seconds and all seconds of the second execution of the runs."""
        for _ in range(2):
            self.ranks.meet()
            self.synchronize()
            start_s = time.perf_counter()
            for run in runs:
                run()
            host_s = time.perf_counter() - start_s
            self.synchronize()
            total_s = time.perf_counter() - start_s
        host_s, total_s = self.ranks.slowest([host_s, total_s])
        return host_s, total_s

    def _parts(self, parts: Sequence[Run], queued_s: float = 0.0) -> list[float]:
        self.ranks.meet()
        return _cuda_parts(parts, queued_s) if self.device == "cuda" else _cpu_parts(parts)


def _upper_s(parts: Sequence[Timing]) -> float:
    """Sum of about the upper quartiles: the median of scattered times may be low by chance."""
    return math.fsum(part.median_s + part.spread_s for part in parts)


def _agree(rounds: Sequence[Sequence[Timing]]) -> bool:
    fastest, second, *_ = sorted(map(_upper_s, rounds))
    return second <= (1 + _AGREEMENT) * fastest


def in_turn(runs: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """A run that takes the runs in turn; on a rank outside the group it does nothing."""
    turns = itertools.cycle(runs or [lambda: None])
    return lambda: next(turns)()


def _cpu_parts(parts: Sequence[Run]) -> list[float]:
    marks = [time.perf_counter()]
    for part in parts:
        part()
        marks.append(time.perf_counter())
    return [end - start for start, end in itertools.pairwise(marks)]


def _cuda_parts(parts: Sequence[Run], queued_s: float) -> list[float]:
    torch.cuda.synchronize()
    if queued_s:
        spin(2 * queued_s)
    marks = [_mark()]
    for part in parts:
        part()
        marks.append(_mark())
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(marks)]


def spin(seconds: float) -> None:
    """Keep the current CUDA stream busy for about that time."""
    torch.cuda._sleep(int(min(seconds, _LONGEST_SPIN_S) * _SPIN_HZ))


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(value: float, low: int, high: int) -> int:
    return max(low, min(math.ceil(value), high))


@cache
def random_data(device: str, dtype: torch.dtype) -> RandomData:
    """The random numbers of a device, made once."""
    return RandomData(device, dtype)


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
