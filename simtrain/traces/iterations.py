"""The iterations of a trace: marked by the profiler's schedule, else by what repeats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from simtrain.engine.compiled import Ints
from simtrain.traces.ranks import RankTrace

Basis = Literal["steps of the profiler", "repetition of kernels", "the whole trace"]
_MOST_MISMATCHES = 0.02
"""Share of the different kernels that may not repeat from iteration to iteration."""


@dataclass(frozen=True, slots=True)
class TracedIteration:
    """An iteration in a trace.

    Args:
        name: the profiler's name of the step, or its number.
        start_us, end_us: moments in the trace.
        kernels: places of its kernels in the trace.
    """

    name: str
    start_us: float
    end_us: float
    kernels: Sequence[int]

    @property
    def seconds(self) -> float:
        """Its time."""
        return (self.end_us - self.start_us) * 1e-6


def iterations_of(trace: RankTrace) -> tuple[Basis, list[TracedIteration]]:
    """Return the iterations of a trace, at least one, and how they were told apart."""
    if marked := _marked(trace):
        return "steps of the profiler", marked
    if repeated := _repeated(trace):
        return "repetition of kernels", repeated
    whole = _between(trace, "whole trace", range(len(trace.kernels)), -math.inf)
    return "the whole trace", [whole]


def median_iteration(iterations: Sequence[TracedIteration]) -> int:
    """Return the place of the iteration with the median time; of two, the faster."""
    order = sorted(range(len(iterations)), key=lambda place: iterations[place].seconds)
    return order[(len(order) - 1) // 2]


def _marked(trace: RankTrace) -> list[TracedIteration]:
    """Cut a trace at the steps of the host: a kernel belongs to the step that launched it.

    The device is behind the host, so an iteration begins when the kernels before it have ended,
    but not before its step.
    """
    if not trace.steps:
        return []
    moments = [
        kernel.start_us if math.isnan(kernel.launched_us) else kernel.launched_us
        for kernel in trace.kernels
    ]
    edges = [step.start_us for step in trace.steps] + [trace.steps[-1].end_us]
    step_of = np.searchsorted(edges, moments, side="right") - 1
    iterations: list[TracedIteration] = []
    ended_us = -math.inf
    for number, step in enumerate(trace.steps):
        kernels = np.flatnonzero(step_of == number).tolist()
        if kernels:
            start_us = max(step.start_us, ended_us)
            ended_us = max(step.end_us, *(trace.kernels[place].end_us for place in kernels))
            iterations.append(TracedIteration(step.name, start_us, ended_us, kernels))
    return iterations


def _repeated(trace: RankTrace) -> list[TracedIteration]:
    """Cut a trace where the kernels of its busiest stream repeat."""
    streams = Counter[str]()
    for kernel in trace.kernels:
        streams[kernel.stream] += 1
    busiest, _ = streams.most_common(1)[0]
    places = [place for place, kernel in enumerate(trace.kernels) if kernel.stream == busiest]
    begins = period_begins([trace.kernels[place].name for place in places])
    if len(begins) < 2:
        return []
    edges = [places[begin] for begin in begins]
    iterations: list[TracedIteration] = []
    for number, (first, end) in enumerate(pairwise(edges)):
        ended_us = iterations[-1].end_us if iterations else -math.inf
        iterations.append(_between(trace, f"repetition {number}", range(first, end), ended_us))
    return iterations


def _between(
    trace: RankTrace, name: str, kernels: Sequence[int], ended_us: float
) -> TracedIteration:
    start_us = trace.kernels[kernels[0]].start_us if ended_us == -math.inf else ended_us
    end_us = max(trace.kernels[place].end_us for place in kernels)
    return TracedIteration(name, start_us, end_us, kernels)


def period_begins(names: Sequence[str]) -> list[int]:
    """Return where the periods of a sequence of names begin; [] if nothing repeats as a whole.

    A layer or a microbatch repeats too, but the steps of the optimizer only with the iteration. So
    periods are sought among the distances of the rarest name that repeats, and a period counts only
    if nearly every different name of its last occurrence stands one period earlier too. What comes
    before the first begin and after the last is cut off.
    """
    counts = Counter(names)
    repeated = [name for name in counts if counts[name] > 1]
    if not repeated:
        return []
    numbers = {name: number for number, name in enumerate(counts)}
    sequence = np.array([numbers[name] for name in names])
    rarest = min(repeated, key=lambda name: counts[name])
    marks = np.flatnonzero(sequence == numbers[rarest]).tolist()
    for stride in range(1, len(marks)):
        period = marks[-1] - marks[-1 - stride]
        if 2 * len(sequence) < 3 * period:
            break
        if _mismatches(sequence[-2 * period :], period) <= _MOST_MISMATCHES:
            return marks[(len(marks) - 1) % stride :: stride]
    return []


def _mismatches(sequence: Ints, period: int) -> float:
    """Return the share of different names that mostly do not stand one period later or earlier."""
    early, late = sequence[:-period], sequence[period:]
    size = int(sequence.max()) + 1
    total = np.maximum(np.bincount(early, minlength=size), np.bincount(late, minlength=size))
    same = np.bincount(early[early == late], minlength=size)
    names = total > 0
    return float(np.mean(2 * same[names] < total[names]))
