"""Records a pass: its blocks' segments in order, and what is exchanged between replicas."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from simtrain.scenario import RecomputePolicy
from simtrain.workload.chunk import Chunk, unit_parameters, units_in_fp8
from simtrain.workload.issue import Handle, OverlapPolicy, Segment
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.passes import Pass, PassKind, PassOptions, PassRecord
from simtrain.workload.recompute import Unit, treatment_outside, units
from simtrain.workload.segments import (
    KEEP,
    BlockRun,
    Treatment,
    again_segment,
    backward_segment,
    forward_segment,
)
from simtrain.workload.sharding import ROOT, ShardedPass, Sharding
from simtrain.workload.tape import Block, Microbatch, record
from simtrain.workload.work import Collective, CollectiveKind


@functools.lru_cache(maxsize=1024)
def record_pass(one: Pass) -> PassRecord:
    """Issue the ops of a pass."""
    if one.kind == "R" and one.options.sharding:
        return _reduction(one, one.options.sharding)
    steps = _steps(one.chunk, one.kind, one.recompute)
    segments = [source.segment(one.kind, one.options) for source in steps.sources]
    if one.options.sharding:
        return _sharded(one, one.options.sharding, steps, segments)
    issued = tuple([segments[step.source] for step in steps.steps])
    return PassRecord(issued, steps.owners, steps.layer_ends)


class _Role(Enum):
    """What a step does for its block."""

    RUN = "the pass itself"
    RUN_AGAIN = "the forward pass again, within a backward pass"
    SPLIT_INPUT = "keep this rank's part of its unit's input"
    GATHER_INPUT = "gather the parts of its unit's input"


@dataclass(frozen=True, slots=True)
class _Source:
    """What a segment follows from, beside the kind and the options of its pass."""

    block: Block
    role: _Role = _Role.RUN
    treatment: Treatment = KEEP

    def segment(self, kind: PassKind, options: PassOptions) -> Segment:
        """The segment in a pass."""
        batch = options.microbatch
        run = BlockRun(self.block, batch, options.overlap, self.treatment)
        match self.role:
            case _Role.RUN:
                return forward_segment(run) if kind == "F" else backward_segment(run, kind)
            case _Role.RUN_AGAIN:
                return again_segment(run, batch.local_bytes)
            case _Role.SPLIT_INPUT:
                return _alone(_split_input(batch))
            case _Role.GATHER_INPUT:
                return replace(_alone(_gather_input(batch)), awaited=(0,))


@dataclass(frozen=True, slots=True)
class _Step:
    """A segment of a pass.

    Args:
        source: the number of its source among the different ones.
        place: the place of its block in the chunk.
        layer: the number of the layer that it runs, None if it runs none.
        ends_layer: whether that layer's work ends with it.
    """

    source: int
    place: int
    layer: int | None
    ends_layer: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """What a pass runs, block by block; `owners` and `layer_ends` as in a record without ZeRO."""

    sources: tuple[_Source, ...]
    steps: tuple[_Step, ...]
    owners: tuple[int, ...]
    layer_ends: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _steps(chunk: Chunk, kind: PassKind, recompute: RecomputePolicy) -> _Steps:
    """The steps of a pass of a chunk, whatever its microbatch."""
    numbers: dict[_Source, int] = {}
    steps = []
    parts = _parts(chunk, recompute)
    for part in parts if kind == "F" else reversed(parts):
        for place, layer, source in part.forward() if kind == "F" else part.backward(kind):
            number = numbers.setdefault(source, len(numbers))
            ends_layer = layer is not None and source.role is _Role.RUN
            steps.append(_Step(number, place, layer, ends_layer))
    owners = tuple([step.place for step in steps])
    ends = tuple([end for end, step in enumerate(steps, 1) if step.ends_layer])
    return _Steps(tuple(numbers), tuple(steps), owners, ends)


_PlacedSource = tuple[int, int | None, _Source]
"""The place of a block in its chunk, the number of the layer that is run, and the source."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive blocks with their places in the chunk: a unit's layers, or one other block."""

    blocks: tuple[tuple[int, Block], ...]
    unit: Unit | None = None
    treatment: Treatment = KEEP

    def forward(self) -> Iterator[_PlacedSource]:
        """The steps of a forward pass."""
        yield from self._run()
        if self.unit and self.unit.distribute:
            yield self._of_first(_Role.SPLIT_INPUT)

    def backward(self, kind: PassKind) -> Iterator[_PlacedSource]:
        """The steps of a backward pass: a unit that dropped all is run again first, first to last.

        Weight gradients (`W`) find what input gradients (`I`) have run again.
        """
        if self.unit and self.unit.again and kind != "W":
            if self.unit.distribute:
                yield self._of_first(_Role.GATHER_INPUT)
            for (place, block), layer in zip(self.blocks, self.unit.layers, strict=True):
                treatment = self.unit.treatment(layer)
                yield place, layer, _Source(block, _Role.RUN_AGAIN, treatment)
        yield from reversed([*self._run()])

    def _run(self) -> Iterator[_PlacedSource]:
        if self.unit is None:
            for place, block in self.blocks:
                yield place, None, _Source(block, treatment=self.treatment)
            return
        for (place, block), layer in zip(self.blocks, self.unit.layers, strict=True):
            yield place, layer, _Source(block, treatment=self.unit.treatment(layer))

    def _of_first(self, role: _Role) -> _PlacedSource:
        place, block = self.blocks[0]
        return place, None, _Source(block, role)


def _parts(chunk: Chunk, recompute: RecomputePolicy) -> tuple[_Part, ...]:
    """The chunk's blocks in order, its layers by units of recompute."""
    numbered = [*enumerate(chunk.blocks)]
    layers = [(place, block) for place, block in numbered if block.is_unit]
    starts = {unit.first: unit for unit in units(recompute, len(layers))}
    parts: list[_Part] = []
    outside, number = treatment_outside(recompute), 0
    for place, block in numbered:
        if not block.is_unit:
            parts.append(_Part(((place, block),), treatment=outside))
            continue
        if unit := starts.get(number):
            parts.append(_Part(tuple(layers[i] for i in unit.layers), unit))
        number += 1
    return tuple(parts)


def _sharded(
    one: Pass, sharding: Sharding, steps: _Steps, segments: Sequence[Segment]
) -> PassRecord:
    """A pass of segments, each with a source, and what ZeRO exchanges between them.

    What has parameters finds those of the root unit gathered. Input gradients (`I`) leave nothing
    to reduce, and weight gradients (`W`) need no parameters.
    """
    batch, builder = one.options.microbatch, _Builder(one.options.overlap)
    reduces = one.kind in ("B", "W")
    layers = dict.fromkeys([step.layer for step in steps.steps if step.layer is not None])
    shards = _shards(one, builder, sharding, [] if one.kind == "W" else [ROOT, *layers])
    if one.kind != "F":
        shards.need(ROOT)
    if reduces:
        shards.begin(ROOT)
    for step in steps.steps:
        if record(steps.sources[step.source].block, batch).parameters:
            shards.need(ROOT)
        if step.layer is not None:
            shards.need(step.layer)
            if reduces and step.ends_layer:
                shards.begin(step.layer)
        builder.add(segments[step.source], step.place)
        if step.layer is not None and step.ends_layer:
            builder.end_layer()
            shards.free(step.layer)
            if reduces:
                shards.reduce(step.layer)
    if reduces:
        shards.reduce(ROOT)
        shards.finish()
    return builder.record(shards.gathered_bytes, shards.bucket_bytes)


def _reduction(one: Pass, sharding: Sharding) -> PassRecord:
    """Reduce a chunk's gradients, unit after unit (`perform_reduce_grad` of PyTorch's stages).

    All of the chunk's parameters are still whole.
    """
    builder, units = _Builder(one.options.overlap), [ROOT, *range(one.chunk.num_layers)]
    shards = _shards(one, builder, replace(sharding, keeps_gathered=True), units)
    for unit in units:
        shards.reduce(unit)
    shards.finish()
    return builder.record(shards.gathered_bytes, shards.bucket_bytes)


def _shards(one: Pass, order: _Builder, sharding: Sharding, used: Sequence[int]) -> ShardedPass:
    batch, overlap = one.options.microbatch, one.options.overlap
    elements, gathers_fp8 = unit_parameters(one.chunk, batch), batch.fp8_weights == "gathered"
    return ShardedPass(
        order,
        sharding,
        elements,
        units_in_fp8(one.chunk, batch) if gathers_fp8 else dict.fromkeys(elements, 0),
        batch,
        used,
        overlaps="dp" in overlap.asynchronous,
        is_forward=one.kind == "F",
    )


@dataclass
class _Builder:
    """Puts segments and single ops one after another."""

    overlap: OverlapPolicy
    segments: list[Segment] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    follows: list[tuple[int, int]] = field(default_factory=list)
    layer_ends: list[int] = field(default_factory=list)

    def add(self, segment: Segment, owner: int = -1) -> None:
        """Issue a segment."""
        self.segments.append(segment)
        self.owners.append(owner)

    def compute(self, op: Op) -> None:
        """Run a kernel."""
        self.add(_alone(op))

    def launch(self, op: Op, *, after: Handle | None = None) -> Handle | None:
        """Start a collective, after another one if given; a rank alone has none."""
        assert isinstance(op.work, Collective), "only collectives are launched"
        if op.work.group.num_ranks == 1:
            return None
        self.add(_alone(op))
        handle = Handle(len(self.segments) - 1)
        if after is not None:
            self.follows.append((handle.position, after.position))
        if not self.overlap.hides(op):
            self.wait(handle)
        return handle

    def wait(self, handle: Handle | None) -> None:
        """Let whatever is issued next wait for a collective."""
        if handle is not None:
            self.waits.append((len(self.segments), handle.position))

    def end_layer(self) -> None:
        """Note that a layer's work ends here."""
        self.layer_ends.append(len(self.segments))

    def record(self, gathered_bytes: int, bucket_bytes: int) -> PassRecord:
        """All that was issued."""
        return PassRecord(
            tuple(self.segments),
            tuple(self.owners),
            tuple(self.layer_ends),
            tuple(self.waits),
            tuple(self.follows),
            gathered_bytes,
            bucket_bytes,
        )


@functools.lru_cache(maxsize=4096)
def _alone(op: Op) -> Segment:
    """A segment of one op, after which nothing reads what it reads."""
    return Segment((op,), ((),), (), (0,), (op.reads,))


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
