"""Where a rank spends an iteration: compute, exposed communication, host gaps, bubble."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simtrain.engine import union_of
from simtrain.engine.compiled import Flags, Floats
from simtrain.traces.kernels import RankKernels
from simtrain.traces.kinds import Role

_LONGEST_START_S = 5e-6
"""A device starts a kernel that waits in its queue within this time; longer it waits for others."""


@dataclass(frozen=True, slots=True)
class Losses:
    """The time of an iteration on a rank by cause; the causes add up to it.

    Args:
        compute_s: kernels that compute, alone or beside others.
        exposed_s: communication that no computing kernel hides, by kind.
        copies_s: copies of memory beside which nothing runs.
        host_gap_s: nothing runs and the host had not launched the next kernel.
        start_gap_s: nothing runs for at most 5 µs, and the next kernel was launched.
        bubble_s: nothing runs, though the next kernel was launched: it waits for others.
    """

    compute_s: float
    exposed_s: Mapping[str, float]
    copies_s: float
    host_gap_s: float
    start_gap_s: float
    bubble_s: float

    @property
    def total_s(self) -> float:
        """The time of the iteration."""
        idle = self.host_gap_s, self.start_gap_s, self.bubble_s
        return math.fsum([self.compute_s, *self.exposed_s.values(), self.copies_s, *idle])


@dataclass(frozen=True, slots=True)
class StreamOverlap:
    """How much communication runs beside compute.

    Args:
        compute_s: time in which a kernel computes.
        communication_s: time in which a rank communicates.
        both_s: time in which it does both.
    """

    compute_s: float
    communication_s: float
    both_s: float

    @property
    def hidden_share(self) -> float:
        """Share of the communication's time in which a kernel computes."""
        return self.both_s / self.communication_s if self.communication_s else 0.0


def losses_of(kernels: RankKernels) -> Losses:
    """Divide the time of an iteration."""
    busy = _union(kernels, kernels.of_role(Role.COMPUTE))
    compute_s, exposed_s = _length(busy), {}
    for kind in kernels.kinds:
        if kind.role is Role.COMMUNICATION:
            # Where several kinds are exposed, the time counts to the first of them.
            wider = _joined(busy, _union(kernels, kernels.of_kind(kind)))
            exposed_s[kind.name] = _length(wider) - _length(busy)
            busy = wider
    with_copies = _joined(busy, _union(kernels, kernels.of_role(Role.COPY)))
    copies_s = _length(with_copies) - _length(busy)
    return Losses(compute_s, exposed_s, copies_s, *_idle_s(kernels, with_copies))


def overlap_of(kernels: RankKernels) -> StreamOverlap:
    """Return how much communication runs beside compute."""
    compute = _union(kernels, kernels.of_role(Role.COMPUTE))
    communication = _union(kernels, kernels.of_role(Role.COMMUNICATION))
    both_s = _length(compute) + _length(communication) - _length(_joined(compute, communication))
    return StreamOverlap(_length(compute), _length(communication), max(both_s, 0.0))


def exposed_of(kernels: RankKernels, chosen: Flags) -> float:
    """Return the time of some kernels in which no kernel computes."""
    compute = _union(kernels, kernels.of_role(Role.COMPUTE))
    return _length(_joined(compute, _union(kernels, chosen))) - _length(compute)


def _idle_s(kernels: RankKernels, busy: Floats) -> tuple[float, float, float]:
    """Return the seconds of host gaps, of starts and of the bubble.

    Args:
        kernels: the kernels of the iteration.
        busy: sorted, disjoint intervals in which something runs.
    """
    host_s: list[float] = []
    start_s: list[float] = []
    bubble_s: list[float] = []
    # After the last kernel a host that launches all of them is behind; else others are waited for.
    is_by_host = not np.isnan(kernels.launched_s).any()
    launched_s = np.append(kernels.launched_s, math.inf if is_by_host else math.nan)
    begins = np.append(0.0, busy[:, 1])
    ends = np.append(busy[:, 0], kernels.iteration_s)
    next_launched_s = launched_s[np.searchsorted(kernels.start_s, ends, side="left")]
    idle = zip(begins.tolist(), ends.tolist(), next_launched_s.tolist(), strict=True)
    for begin, end, moment_s in idle:
        if end <= begin:
            continue
        if moment_s > begin:  # not if it is NaN
            host_s.append(end - begin)
        else:
            (start_s if end - begin <= _LONGEST_START_S else bubble_s).append(end - begin)
    return math.fsum(host_s), math.fsum(start_s), math.fsum(bubble_s)


def _union(kernels: RankKernels, chosen: Flags) -> Floats:
    """Return when any of some kernels runs within the iteration."""
    limits_s = 0.0, kernels.iteration_s
    times = kernels.start_s[chosen].clip(*limits_s), kernels.end_s[chosen].clip(*limits_s)
    return union_of(np.stack(times, axis=1))


def _joined(intervals: Floats, others: Floats) -> Floats:
    return union_of(np.concatenate([intervals, others]))


def _length(intervals: Floats) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())
