"""Records a pass: its blocks' segments in order, and what is exchanged between replicas."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from simtrain.scenario import RecomputePolicy
from simtrain.workload.chunk import Chunk, unit_parameters
from simtrain.workload.issue import Handle, OverlapPolicy, Segment, Stream, stream_of
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.passes import Pass, PassRecord
from simtrain.workload.recompute import Unit, units
from simtrain.workload.segments import (
    KEEP,
    BackwardKind,
    BlockRun,
    Treatment,
    again_segment,
    backward_segment,
    forward_segment,
)
from simtrain.workload.sharding import ROOT, ShardedPass
from simtrain.workload.tape import Block, Microbatch, record
from simtrain.workload.work import Collective, CollectiveKind


@functools.lru_cache(maxsize=1024)
def record_pass(one: Pass) -> PassRecord:
    """Issue the ops of a pass."""
    recorder = _Recorder(one)
    if one.kind == "F":
        recorder.forward()
    else:
        recorder.backward(one.kind)
    shards = recorder.shards
    return recorder.builder.record(shards.gathered_bytes, shards.bucket_bytes)


@dataclass
class _Builder:
    """Puts segments and single ops one after another."""

    overlap: OverlapPolicy
    _segments: list[Segment] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _owners: list[int] = field(default_factory=list)
    _joints: list[tuple[int, int]] = field(default_factory=list)
    _layer_ends: list[int] = field(default_factory=list)
    _position: int = 0
    _awaited: tuple[int, ...] = ()

    def add(self, segment: Segment, owner: int = -1) -> None:
        """Issue a segment, whose first ops wait for what is awaited."""
        start, awaited = self._position, self._awaited
        if awaited:
            num_waiting, has_kernel = _first_ops(segment)
            waiting = range(start, start + num_waiting)
            self._joints.extend(itertools.product(waiting, awaited))
            if has_kernel:
                self._awaited = ()
        if segment.awaited:
            self._awaited += tuple([start + place for place in segment.awaited])
        self._segments.append(segment)
        self._starts.append(start)
        self._owners.append(owner)
        self._position += len(segment.ops)

    def compute(self, op: Op, owner: int = -1) -> None:
        """Run a kernel."""
        self.add(_alone(op), owner)

    def launch(self, op: Op, owner: int = -1) -> Handle | None:
        """Start a collective; a rank alone has none."""
        assert isinstance(op.work, Collective), "only collectives are launched"
        if op.work.group.num_ranks == 1:
            return None
        self.add(_alone(op), owner)
        handle = Handle(self._position - 1)
        if not self.overlap.hides(op):
            self.wait(handle)
        return handle

    def wait(self, handle: Handle | None) -> None:
        """Let whatever is issued next wait for a collective."""
        if handle is not None and handle.position not in self._awaited:
            self._awaited += (handle.position,)

    def end_layer(self) -> None:
        """Note that a layer's work ends here."""
        self._layer_ends.append(self._position)

    def record(self, gathered_bytes: int, bucket_bytes: int) -> PassRecord:
        """All that was issued."""
        return PassRecord(
            tuple(self._segments),
            tuple(self._starts),
            tuple(self._owners),
            tuple(self._joints),
            tuple(self._layer_ends),
            gathered_bytes,
            bucket_bytes,
        )


@functools.lru_cache(maxsize=4096)
def _first_ops(segment: Segment) -> tuple[int, bool]:
    """How many ops wait for what is awaited before a segment, and whether one is a kernel.

    A kernel and what comes before it wait; what comes after it, waits for the kernel.
    """
    for place, op in enumerate(segment.ops):
        if stream_of(op) is Stream.COMPUTE:
            return place + 1, True
    return len(segment.ops), False


@functools.lru_cache(maxsize=4096)
def _alone(op: Op) -> Segment:
    """A segment of one op, after which nothing reads what it reads."""
    return Segment((op,), ((),), (), (0,), (op.reads,))


@dataclass(frozen=True)
class _Part:
    """Consecutive blocks with their places in the chunk: a unit's layers, or one other block."""

    blocks: tuple[tuple[int, Block], ...]
    unit: Unit | None = None

    @cached_property
    def layers(self) -> list[tuple[int, int, Block, Treatment]]:
        """The layers of the unit: number, place, block, what it drops."""
        unit = self.unit
        if unit is None:
            return []
        numbered = zip(unit.layers, self.blocks, strict=True)
        return [(number, *block, unit.treatment(number)) for number, block in numbered]

    @property
    def others(self) -> tuple[tuple[int, Block], ...]:
        """Blocks that are no layers."""
        return () if self.unit else self.blocks


@functools.lru_cache(maxsize=512)
def _parts(chunk: Chunk, recompute: RecomputePolicy) -> tuple[_Part, ...]:
    """The chunk's blocks in order, its layers by units of recompute."""
    numbered = [*enumerate(chunk.blocks)]
    layers = [(place, block) for place, block in numbered if block.is_unit]
    starts = {unit.first: unit for unit in units(recompute, len(layers))}
    parts: list[_Part] = []
    number = 0
    for place, block in numbered:
        if not block.is_unit:
            parts.append(_Part(((place, block),)))
            continue
        if unit := starts.get(number):
            parts.append(_Part(tuple(layers[i] for i in unit.layers), unit))
        number += 1
    return tuple(parts)


class _Recorder:
    """Issues a pass part by part."""

    def __init__(self, one: Pass) -> None:
        options, batch = one.options, one.options.microbatch
        self.options, self.batch, self.builder = options, batch, _Builder(options.overlap)
        self.parts = _parts(one.chunk, one.recompute)
        self._segments: dict[tuple[int, int, bool], Segment] = {}
        self.shards = ShardedPass(
            self.builder,
            options.sharding,
            unit_parameters(one.chunk, batch) if options.sharding else {},
            batch,
            self.used(one) if options.sharding else [],
            overlaps="dp" in options.overlap.asynchronous,
            is_forward=one.kind == "F",
        )

    def used(self, one: Pass) -> list[int]:
        """Units in the order in which the pass first needs their parameters."""
        if one.kind == "W":
            return []  # Weight gradients need no parameters.
        if one.kind == "F":
            return [ROOT, *range(one.chunk.num_layers)]
        numbers = [part.unit.layers_of_backward for part in reversed(self.parts) if part.unit]
        return [ROOT, *itertools.chain.from_iterable(numbers)]

    def segment(
        self,
        segment_of: Callable[[BlockRun], Segment],
        block: Block,
        treatment: Treatment = KEEP,
        *,
        again: bool = False,
    ) -> Segment:
        """What `segment_of` gives for a block, which is told apart from others by identity.

        `again` tells the forward pass in a backward pass apart from the backward pass.
        """
        key = id(block), id(treatment), again
        found = self._segments.get(key)
        if found is None:
            run = BlockRun(block, self.batch, self.options.overlap, treatment)
            found = self._segments[key] = segment_of(run)
        return found

    def forward(self) -> None:
        """All parts, first to last; what has parameters finds the root unit gathered."""
        for part in self.parts:
            for number, place, block, treatment in part.layers:
                self.shards.need(ROOT)
                self.shards.need(number)
                self.builder.add(self.segment(forward_segment, block, treatment), place)
                self.builder.end_layer()
                self.shards.free(number)
            if part.unit and part.unit.distribute:
                self.builder.compute(_split_input(self.batch), part.blocks[0][0])
            for place, block in part.others:
                if record(block, self.batch).parameters:
                    self.shards.need(ROOT)
                self.builder.add(self.segment(forward_segment, block), place)

    def backward(self, kind: BackwardKind) -> None:
        """All parts, last to first; input gradients (`I`) leave nothing to reduce."""
        shards, segment_of = self.shards, functools.partial(backward_segment, kind=kind)
        shards.need(ROOT)
        if kind != "I":
            shards.begin(ROOT)
        for part in reversed(self.parts):
            if kind != "W":
                self.run_again(part)
            for number, place, block, treatment in reversed(part.layers):
                shards.need(number)
                if kind != "I":
                    shards.begin(number)
                self.builder.add(self.segment(segment_of, block, treatment), place)
                self.builder.end_layer()
                shards.free(number)
                if kind != "I":
                    shards.reduce(number)
            for place, block in part.others:
                self.builder.add(self.segment(segment_of, block), place)
        if kind != "I":
            shards.reduce(ROOT)
            shards.finish()

    def run_again(self, part: _Part) -> None:
        """The forward pass of a unit that dropped all; a distributed input is gathered first."""
        if part.unit is None or not part.unit.again:
            return
        if part.unit.distribute:
            self.builder.wait(self.builder.launch(_gather_input(self.batch), part.blocks[0][0]))
        segment_of = functools.partial(again_segment, waiting_bytes=self.batch.local_bytes)
        for number, place, block, treatment in part.layers:
            self.shards.need(number)
            self.builder.add(self.segment(segment_of, block, treatment, again=True), place)


def _input_part(batch: Microbatch) -> Tensor:
    part = batch.activation_bytes // batch.tensor.num_ranks
    return Tensor("distributed unit input", part, 1, 1, number=0, storage=0)


def _split_input(batch: Microbatch) -> Op:
    """Copy this rank's part of the unit's input, which is all that is kept of it."""
    part = _input_part(batch)
    return elementwise("unit input split", part.num_bytes, part.num_bytes, saves=(part,))


def _gather_input(batch: Microbatch) -> Op:
    """The extra all-gather of a unit's input (paper, Section 5)."""
    work = Collective(CollectiveKind.ALL_GATHER, batch.activation_bytes, batch.tensor)
    reads = (_input_part(batch),)
    return collective("unit input gather", work, Phase.RECOMPUTE, reads=reads, is_extra=True)
