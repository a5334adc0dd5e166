"""Builds the record of a pass, segment by segment and op by op."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from simtrain.workload.issue import Handle, OverlapPolicy, Segment
from simtrain.workload.ops import Op
from simtrain.workload.passes import PassRecord
from simtrain.workload.work import Collective


@dataclass
class PassBuilder:
    """Appends segments and single ops to a pass; fields are those of `PassRecord`."""

    overlap: OverlapPolicy
    segments: list[Segment] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    follows: list[tuple[int, int]] = field(default_factory=list)
    layer_ends: list[int] = field(default_factory=list)

    def add(self, segment: Segment, owner: int = -1) -> None:
        """Append a segment."""
        self.segments.append(segment)
        self.owners.append(owner)

    def compute(self, op: Op) -> None:
        """Append a kernel."""
        self.add(one_op_segment(op))

    def launch(self, op: Op, *, after: Handle | None = None) -> Handle | None:
        """Append a collective, after another one if given; a group of one rank has none."""
        assert isinstance(op.work, Collective), "only collectives are launched"
        if op.work.group.num_ranks == 1:
            return None
        handle = len(self.segments)
        self.add(one_op_segment(op))
        if after is not None:
            self.follows.append((handle, after))
        if not self.overlap.hides(op):
            self.wait(handle)
        return handle

    def wait(self, handle: Handle | None) -> None:
        """Make the next segment wait for a collective."""
        if handle is not None:
            self.waits.append((len(self.segments), handle))

    def end_layer(self) -> None:
        """Mark the end of a layer's work."""
        self.layer_ends.append(len(self.segments))

    def record(self, gathered_bytes: int, bucket_bytes: int) -> PassRecord:
        """Return the record of the pass."""
        work = tuple(self.segments), tuple(self.owners), tuple(self.layer_ends)
        waits = tuple(self.waits), tuple(self.follows)
        return PassRecord(*work, *waits, gathered_bytes, bucket_bytes)


@functools.lru_cache(maxsize=4096)
def one_op_segment(op: Op) -> Segment:
    """Return a segment of one op, which frees the tensors that the op reads."""
    return Segment((op,), ((),), (), (0,), (op.reads,))
