"""Lower bound of the time of a pass, from the ops of its blocks, without simulating the pass.

A segment is ready when its last kernel has ended, and the collectives that the next segment waits
for. All ops of the next segment start later: kernels run one after another, and a collective waits
for the kernel before it. So the time until a segment, alone, is ready adds up over the segments of
a pass. The launches on the host add up too, and so do the ops on each stream. The pass takes at
least the largest of these sums. Ops that share the GPU only take longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from simtrain.programs.seconds import Machine
from simtrain.scenario import RecomputePolicy
from simtrain.workload.chunk import Chunk, chunk_of
from simtrain.workload.issue import OverlapPolicy, Segment, Stream, stream_of
from simtrain.workload.passes import Pass, PassKind, PassOptions, PassRecord
from simtrain.workload.record import record_pass
from simtrain.workload.tape import Block

_Sums = tuple[float, ...]
"""Seconds until each segment is ready, number of launches, and seconds on each stream, added up."""

_NOTHING: _Sums = (0.0,) * (2 + len(Stream))


@dataclass(frozen=True, eq=False)
class PassBounds:
    """Lower bounds of the times of passes on a machine."""

    machine: Machine
    _segments: dict[Segment, _Sums] = field(default_factory=dict, repr=False)
    _blocks: dict[Pass, _Sums] = field(default_factory=dict, repr=False)

    def both_s(self, chunk: Chunk, recompute: RecomputePolicy, options: PassOptions) -> float:
        """Lower bound of a chunk's forward pass plus its backward pass, for one microbatch."""
        forward_s = self.duration_s(chunk, "F", recompute, options)
        return forward_s + self.duration_s(chunk, "B", recompute, options)

    def duration_s(
        self, chunk: Chunk, kind: PassKind, recompute: RecomputePolicy, options: PassOptions
    ) -> float:
        """Lower bound of the duration of a pass.

        Args:
            chunk, kind, options: of the pass.
            recompute: what every layer of the chunk recomputes at least, in units of one layer.
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
        # ZeRO has joint collectives for all blocks outside the layers; their bound is 0.
        if options.sharding and not block.is_unit:
            options = replace(options, sharding=None)
        one = Pass(chunk_of([block]), kind, recompute, options)
        found = self._blocks.get(one)
        if found is None:
            found = self._blocks[one] = self._of_record(record_pass(one), options.overlap)
        return found

    def _of_record(self, record: PassRecord, overlap: OverlapPolicy) -> _Sums:
        sums = [(self._of_segment(segment), 1) for segment in record.segments]
        # The next segment waits for blocking collectives of ZeRO, which are segments of one op. In
        # a pass of more blocks, other segments come between an asynchronous one and its wait.
        for awaited in {awaited for number, awaited in record.waits if number == awaited + 1}:
            (op,) = record.segments[awaited].ops
            if not overlap.hides(op):
                sums.append(((self.machine.model.seconds(op.work), *_NOTHING[1:]), 1))
        return _total(sums)

    def _of_segment(self, segment: Segment) -> _Sums:
        found = self._segments.get(segment)
        if found is None:
            found = self._segments[segment] = self._run(segment)
        return found

    def _run(self, segment: Segment) -> _Sums:
        """Run a segment alone, with all of its ops launched before."""
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
    """Add up sums, each multiplied by a number."""
    total = [*_NOTHING]
    for one, number in sums:
        for place, value in enumerate(one):
            total[place] += number * value
    return tuple(total)
