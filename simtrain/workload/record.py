"""Records a pass: its blocks' segments in order, and what is exchanged between replicas."""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass, field, replace

from simtrain.scenario import RecomputePolicy
from simtrain.workload.chunk import Chunk, unit_parameters
from simtrain.workload.issue import Handle, OverlapPolicy, Segment, Stream, stream_of
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.passes import Pass, PassOptions, PassRecord
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
from simtrain.workload.sharding import ROOT, GradientReductions, ParameterGathers
from simtrain.workload.tape import Block, Microbatch
from simtrain.workload.work import Collective, CollectiveKind


@functools.lru_cache(maxsize=1024)
def record_pass(one: Pass) -> PassRecord:
    """Issue the ops of a pass."""
    builder = _Builder(one.options.overlap)
    issued = _Forward(one, builder) if one.kind == "F" else _Backward(one, builder, one.kind)
    issued.issue()
    batch = one.options.microbatch
    reductions = issued.reductions.most_elements if issued.reductions else 0
    return replace(
        builder.record(),
        gathered_bytes=issued.gathers.most_elements * batch.element_bytes,
        bucket_bytes=reductions * batch.gradient_bytes,
    )


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
        start = self._position
        if self._awaited:
            # A kernel and what comes before it wait; what comes after it, waits for the kernel.
            for place, op in enumerate(segment.ops):
                self._joints.extend((start + place, awaited) for awaited in self._awaited)
                if stream_of(op) is Stream.COMPUTE:
                    self._awaited = ()
                    break
        self._awaited += tuple(start + place for place in segment.awaited)
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

    def record(self) -> PassRecord:
        """All that was issued."""
        return PassRecord(
            tuple(self._segments),
            tuple(self._starts),
            tuple(self._owners),
            tuple(self._joints),
            tuple(self._layer_ends),
        )


@functools.lru_cache(maxsize=4096)
def _alone(op: Op) -> Segment:
    """A segment of one op, after which nothing reads what it reads."""
    return Segment((op,), ((),), (), (0,), (op.reads,))


class _Runs(dict[tuple[int, Treatment], BlockRun]):
    """The blocks of a pass under the treatments that they get, each once."""

    def __init__(self, options: PassOptions) -> None:
        self.options = options

    def of(self, block: Block, treatment: Treatment = KEEP) -> BlockRun:
        """A block of the chunk, told apart from others by identity."""
        key = id(block), treatment
        if key not in self:
            options = self.options
            self[key] = BlockRun(block, options.microbatch, options.overlap, treatment)
        return self[key]


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive blocks: one that is no layer, or the layers of a unit of recompute.

    `blocks` come with their places in the chunk.
    """

    blocks: tuple[tuple[int, Block], ...]
    unit: Unit | None = None


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


def _gathers(
    one: Pass, builder: _Builder, phase: Phase, layers: list[int], uses_parameters: bool = True
) -> ParameterGathers:
    """The gathers of a pass that uses these layers in this order; none without ZeRO stage 3."""
    options = one.options
    sharding, batch = options.sharding, options.microbatch
    elements = unit_parameters(one.chunk, batch)
    shards = uses_parameters and sharding is not None and sharding.shards_parameters
    upcoming = [*([ROOT] if elements[ROOT] else []), *layers] if shards else []
    return ParameterGathers(
        builder,
        sharding.data if sharding else batch.tensor,
        batch.element_bytes,
        elements,
        phase,
        deque(upcoming),
        prefetches="dp" in options.overlap.asynchronous,
    )


class _Forward:
    """Issues a forward pass."""

    reductions = None

    def __init__(self, one: Pass, builder: _Builder) -> None:
        self.batch, self.builder, self.runs = one.options.microbatch, builder, _Runs(one.options)
        self.parts = _parts(one.chunk, one.recompute)
        layers = [*range(one.chunk.num_layers)]
        self.gathers = _gathers(one, builder, Phase.FORWARD, layers)

    def issue(self) -> None:
        """All parts, first to last; what has parameters finds the root unit gathered."""
        for part in self.parts:
            if part.unit:
                self.gathers.need(ROOT)
                self.layers(part.unit, part.blocks)
                continue
            ((place, block),) = part.blocks
            run = self.runs.of(block)
            if run.recording.parameters:
                self.gathers.need(ROOT)
            self.builder.add(forward_segment(run), place)

    def layers(self, unit: Unit, blocks: tuple[tuple[int, Block], ...]) -> None:
        """The layers of a unit."""
        for number, (place, block) in zip(unit.layers, blocks, strict=True):
            self.gathers.need(number)
            run = self.runs.of(block, unit.treatment(number))
            self.builder.add(forward_segment(run), place)
            self.builder.end_layer()
            self.gathers.free(number)
        if unit.distribute:
            self.builder.compute(_split_input(self.batch), blocks[0][0])


class _Backward:
    """Issues a backward pass, or a half of it."""

    def __init__(self, one: Pass, builder: _Builder, kind: BackwardKind) -> None:
        self.batch, self.builder, self.runs = one.options.microbatch, builder, _Runs(one.options)
        self.kind, self.parts = kind, _parts(one.chunk, one.recompute)[::-1]
        used = [n for part in self.parts if part.unit for n in part.unit.layers_of_backward]
        # Weight gradients need no parameters, and input gradients leave none to reduce.
        self.gathers = _gathers(one, builder, Phase.INPUT_GRADIENT, used, kind != "W")
        self.reductions = _reductions(one, builder) if kind != "I" else None

    def issue(self) -> None:
        """All parts, last to first."""
        self.gathers.need(ROOT)
        if self.reductions:
            self.reductions.begin(ROOT)
        for part in self.parts:
            if part.unit:
                self.layers(part.unit, part.blocks)
                continue
            ((place, block),) = part.blocks
            self.builder.add(backward_segment(self.runs.of(block), self.kind), place)
        if self.reductions:
            self.reductions.reduce(ROOT)
            self.reductions.finish()

    def layers(self, unit: Unit, blocks: tuple[tuple[int, Block], ...]) -> None:
        """The layers of a unit, once they have been run again if they have to be."""
        numbered = [
            (number, place, self.runs.of(block, unit.treatment(number)))
            for number, (place, block) in zip(unit.layers, blocks, strict=True)
        ]
        if unit.again and self.kind != "W":
            if unit.distribute:
                self.builder.wait(self.builder.launch(_gather_input(self.batch), blocks[0][0]))
            for number, place, run in numbered:
                self.gathers.need(number)
                self.builder.add(again_segment(run, self.batch.local_bytes), place)
        for number, place, run in reversed(numbered):
            self.gathers.need(number)
            if self.reductions:
                self.reductions.begin(number)
            self.builder.add(backward_segment(run, self.kind), place)
            self.builder.end_layer()
            self.gathers.free(number)
            if self.reductions:
                self.reductions.reduce(number)


def _reductions(one: Pass, builder: _Builder) -> GradientReductions | None:
    """The reductions of a backward pass; none without ZeRO stage 2 or 3."""
    sharding, batch = one.options.sharding, one.options.microbatch
    if sharding is None:
        return None
    elements = unit_parameters(one.chunk, batch)
    overlaps = "dp" in one.options.overlap.asynchronous
    return GradientReductions(builder, sharding.data, batch.gradient_bytes, elements, overlaps)


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
