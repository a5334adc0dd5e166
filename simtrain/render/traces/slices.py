"""Words of traces: threads, kinds of slices, slices and arrows, and sums of passes without kernels.

Readers such as Holistic Trace Analysis measure unions and overlaps of the kernels on a GPU. A pass
has up to thousands of kernels, and an iteration thousands of passes. Its sums, few intervals of
compute, communication and copies, have the same unions and overlaps.

The starts and ends of communication outside of passes (transfers, buckets) cut a pass into pieces.
Within a piece, that communication runs all the time or not at all. So only four sums of the piece
matter: its seconds of compute alone, of both, of communication alone, and of copies alone. They
follow one another in this order, and in reverse in every second piece, so that neighbours join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import busy_before, union_of
from simtrain.engine.compiled import Flags, Floats, Ints
from simtrain.iteration.programs.iteration_tasks import EMBEDDING, MODEL
from simtrain.iteration.programs.pass_tasks import HOST, STREAMS
from simtrain.iteration.programs.pipeline import spread
from simtrain.iteration.report.spans import Spans, StageStream

Nanoseconds: TypeAlias = NDArray[np.int64]

_OF_STAGE = {
    StageStream.OWN: "stage",
    StageStream.SENDS_FORWARD: "sends forward",
    StageStream.RECEIVES_FORWARD: "receives forward",
    StageStream.SENDS_BACKWARD: "sends backward",
    StageStream.RECEIVES_BACKWARD: "receives backward",
    StageStream.BUCKETS: "gradient and parameter buckets",
    StageStream.TO_HOST: "copies to host",
    StageStream.FROM_HOST: "copies from host",
    StageStream.HOST: "update on the host",
    StageStream.NVME_READS: "reads of the update",
    StageStream.NVME_WRITES: "writes of the update",
}
_SHARED = {
    StageStream.EMBEDDING: EMBEDDING,
    StageStream.MODEL: MODEL,
}
THREADS = (*_OF_STAGE.values(), *STREAMS, *_SHARED.values())
"""Threads of a rank by number: of its stage, inside passes, and shared by several stages."""
_NAMES = _OF_STAGE | _SHARED
THREAD_OF = np.array([THREADS.index(_NAMES[stream]) for stream in StageStream], np.int32)
"""[streams of a stage], the thread of each."""
STAGE_THREAD, HOST_THREAD = THREADS.index(_NAMES[StageStream.OWN]), THREADS.index(HOST)
PASS_THREADS = [THREADS.index(name) for name in STREAMS]
_SENDS = [StageStream.SENDS_FORWARD, StageStream.SENDS_BACKWARD]
SEND_THREADS: list[int] = THREAD_OF[_SENDS].tolist()


def nanoseconds(seconds: Floats) -> Nanoseconds:
    """Round seconds to integer nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


class SliceKind(Enum):
    """Kind of a slice: work of the GPU, work of the host, or a pass.

    A copy is a kernel on a stream of collectives: it copies, casts or adds what they exchange.
    """

    KERNEL = "kernel"
    COLLECTIVE = "collective"
    COPY = "copy"
    LAUNCH = "launch"
    HOST_WORK = "host work"
    PASS = "pass"


class Slice(NamedTuple):
    """A task of the iteration, or work inside a pass.

    Args:
        thread: index into `THREADS`.
        number: task of the iteration, or a number above all tasks. A kernel and its launch share a
            number.
        collective: what a collective inside a pass does, and on how many ranks; None for others.
    """

    thread: int
    kind: SliceKind
    name: str
    start_ns: int
    end_ns: int
    number: int
    collective: tuple[str, int] | None = None


class Arrow(NamedTuple):
    """Arrow from a transfer to the pass that waits for it.

    Args:
        transfer, consumer: tasks of the iteration. If buckets cut the pass, its first task.
        thread: thread of the transfer on the sender's rank.
        receiver: stage of the consumer.
        start_ns, end_ns: start of the transfer, and start of the consumer.
    """

    transfer: int
    consumer: int
    thread: int
    receiver: int
    start_ns: int
    end_ns: int


KINDS = SliceKind.KERNEL, SliceKind.COLLECTIVE, SliceKind.COPY
"""Kinds of ops, and of intervals."""
Intervals: TypeAlias = tuple[list[int], list[int], list[int]]
"""Passes, starts and ends of intervals, in nanoseconds and in order of time."""


@dataclass(frozen=True, slots=True, eq=False)
class PassSums:
    """When a GPU computes, communicates and copies in a pass.

    Args:
        unions: sorted, disjoint intervals [n, 2] in seconds from the start of the pass: of compute,
            of communication, of either, and of all.
    """

    unions: tuple[Floats, Floats, Floats, Floats]

    @classmethod
    def of(cls, start_s: Floats, end_s: Floats, kinds: Sequence[SliceKind]) -> PassSums:
        """Sum up a pass, given the start, the end and the kind of each of its ops."""
        intervals = np.stack([start_s, end_s], axis=1)
        is_kernel, is_collective, is_copy = (
            np.array([other is kind for other in kinds], np.bool_) for kind in KINDS
        )
        chosen = is_kernel, is_collective, ~is_copy, slice(None)
        compute, communication, either, everything = (
            union_of(intervals[kinds]) for kinds in chosen
        )
        return cls((compute, communication, either, everything))

    def seconds_before(self, moments_s: Floats) -> Floats:
        """Return [4, moments], seconds of compute alone, of both, of communication, of copies."""
        compute, communication, either, everything = (
            busy_before(moments_s, union) for union in self.unions
        )
        both = compute + communication - either
        return np.stack([compute - both, both, communication - both, everything - either])


def sum_up(
    spans: Spans,
    sum_of: Ints,
    offset_s: Floats,
    sums: Sequence[PassSums],
    communication: Floats,
) -> tuple[Intervals, Intervals, Intervals]:
    """Return the intervals of each of `KINDS`.

    Args:
        spans: of the passes of a stage, in order of time.
        sum_of: [spans], the place of its pass in `sums`.
        offset_s: [spans], seconds of the pass before the span.
        sums: those of the different passes.
        communication: intervals [n, 2] of communication outside of passes.
    """
    span, is_forward, start_s, end_s = _pieces(spans, union_of(communication).ravel())
    seconds, from_s = np.zeros((5, len(span))), offset_s[span] - spans.start_s[span]
    for place, sum_ in enumerate(sums):
        of_sum = np.flatnonzero(sum_of[span] == place)
        before_s = sum_.seconds_before(np.stack([start_s[of_sum], end_s[of_sum]]) + from_s[of_sum])
        seconds[1:, of_sum] = (before_s[:, 1] - before_s[:, 0]).clip(0.0)
    # Where each sum begins, counted from the start of the piece or, in reverse, from its end.
    length_s = end_s - start_s
    edges_s = np.minimum(np.cumsum(seconds, axis=0), length_s)
    owner = spans.pass_number[span]

    def between(first: int, last: int) -> Intervals:
        """Return the intervals from the `first` sum to the `last`."""
        # If the sums fill the piece, the interval ends with it, without a rounding error.
        low, high = edges_s[first], np.where(edges_s[last] < length_s, edges_s[last], np.inf)
        begins_s = np.where(is_forward, start_s + low, np.maximum(end_s - high, start_s))
        ends_s = np.where(is_forward, np.minimum(start_s + high, end_s), end_s - low)
        return _joined(owner, nanoseconds(begins_s), nanoseconds(ends_s))

    return between(0, 2), between(1, 3), between(3, 4)


def _pieces(spans: Spans, edges_s: Floats) -> tuple[Ints, Flags, Floats, Floats]:
    """Cut spans at sorted edges.

    Return the span of each piece, whether its sums are in the order of time, its start and its end.
    """
    first = np.searchsorted(edges_s, spans.start_s, side="right")
    counts = 1 + np.searchsorted(edges_s, spans.end_s, side="left") - first
    span, number = spread(np.arange(len(counts), dtype=np.int32), counts)
    edge, padded_s = first[span] + number, np.concatenate([[-np.inf], edges_s, [np.inf]])
    start_s = np.maximum(padded_s[edge], spans.start_s[span])
    end_s = np.minimum(padded_s[edge + 1], spans.end_s[span])
    return span, number % 2 == 0, start_s, end_s


def _joined(owner: Ints, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Intervals:
    """Join intervals of a pass that follow one another, and drop empty ones."""
    kept = end_ns > start_ns
    owner, start_ns, end_ns = owner[kept], start_ns[kept], end_ns[kept]
    continues = (owner[1:] == owner[:-1]) & (start_ns[1:] == end_ns[:-1])
    is_first = np.append(True, ~continues)[: len(owner)]
    is_last = np.append(~continues, True)[: len(owner)]
    return owner[is_first].tolist(), start_ns[is_first].tolist(), end_ns[is_last].tolist()
