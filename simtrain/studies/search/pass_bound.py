"""Lower bound of the time of a pass, from the ops of its blocks, without simulating the pass.

A segment is ready when its last kernel and all collectives that the next segment waits for have
ended. All ops of the next segment start later, because kernels run one after another and a
collective waits for the kernel before it. A pass therefore takes at least the largest of these
sums over its segments:

- the time until each segment is ready if it runs alone
- the time of all launches on the host
- the time of all ops on each stream

Ops that share the GPU take longer than in this bound, never less time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace

from simtrain.iteration.programs.seconds import Machine
from simtrain.scenario import RecomputePolicy
from simtrain.workload.chunk import Chunk, chunk_of
from simtrain.workload.issue import Segment, Stream, stream_of
from simtrain.workload.passes import Pass, PassKind, PassOptions
from simtrain.workload.record import record_pass
from simtrain.workload.tape import Block

_Sums = tuple[float, ...]
"""Sums of seconds until ready, of launches, and of seconds on each stream."""

_KINDS: tuple[PassKind, ...] = ("F", "B")

_NOTHING: _Sums = (0.0,) * (2 + len(Stream))


class PassBounds:
    """Lower bounds of the times of passes on a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._of_pass = functools.cache(self._sums_of_pass)
        self._of_segment = functools.cache(self._sums_of_segment)

    def both_s(self, chunk: Chunk, recompute: RecomputePolicy, options: PassOptions) -> float:
        """Lower bound of the time of a chunk's forward and backward pass of one microbatch."""
        return sum(self.duration_s(chunk, kind, recompute, options) for kind in _KINDS)

    def kernels_s(self, chunk: Chunk, recompute: RecomputePolicy, options: PassOptions) -> float:
        """Time of the kernels of a chunk's forward and backward pass of one microbatch."""
        _, _, *streams_s = _total(
            (self._of_block(block, kind, recompute, options), number)
            for kind in _KINDS
            for block, number in chunk.runs
        )
        return streams_s[Stream.COMPUTE]

    def duration_s(
        self, chunk: Chunk, kind: PassKind, recompute: RecomputePolicy, options: PassOptions
    ) -> float:
        """Lower bound of the duration of a pass.

        Args:
            chunk, kind, options: fields of the pass.
            recompute: the least that every layer of the chunk recomputes, in units of one layer.
        """
        ready_s, num_launches, *streams_s = _total(
            (self._of_block(block, kind, recompute, options), number)
            for block, number in chunk.runs
        )
        launch_s = self.machine.host_issue_s(options.launch_s)
        return max(ready_s, num_launches * launch_s, *streams_s)

    def _of_block(
        self, block: Block, kind: PassKind, recompute: RecomputePolicy, options: PassOptions
    ) -> _Sums:
        # ZeRO joins the collectives of all blocks outside layers. The bound counts them as 0.
        if options.sharding and not block.is_unit:
            options = replace(options, sharding=None)
        return self._of_pass(Pass(chunk_of([block]), kind, recompute, options))

    def _sums_of_pass(self, one: Pass) -> _Sums:
        record = record_pass(one)
        sums = [(self._of_segment(segment), 1) for segment in record.segments]
        # ZeRO's collectives are segments of one op, and the next segment waits for a blocking one.
        # An asynchronous collective counts as 0: in longer passes, other segments hide it.
        for awaited in {awaited for number, awaited in record.waits if number == awaited + 1}:
            (op,) = record.segments[awaited].ops
            if not one.options.overlap.hides(op):
                sums.append(((self.machine.model.seconds(op.work), *_NOTHING[1:]), 1))
        return _total(sums)

    def _sums_of_segment(self, segment: Segment) -> _Sums:
        """Run a segment alone, after the host has launched all of its ops."""
        ends_s: list[float] = []
        stream_ends_s, streams_s = [0.0] * len(Stream), [0.0] * len(Stream)
        for op, awaited in zip(segment.ops, segment.waits, strict=True):
            stream, own_s = stream_of(op), self.machine.model.seconds(op.work)
            awaited_s = (ends_s[place] for place in awaited)
            start_s = max(stream_ends_s[stream], stream_ends_s[Stream.COMPUTE], *awaited_s)
            ends_s.append(start_s + own_s)
            stream_ends_s[stream] = start_s + own_s
            streams_s[stream] += own_s
        last_s = (ends_s[place] for place in segment.awaited)
        return max(stream_ends_s[Stream.COMPUTE], 0.0, *last_s), len(ends_s), *streams_s


def _total(sums: Iterable[tuple[_Sums, int]]) -> _Sums:
    """Add up tuples of sums, each multiplied by a count."""
    total = [*_NOTHING]
    for one, number in sums:
        for place, value in enumerate(one):
            total[place] += number * value
    return tuple(total)
