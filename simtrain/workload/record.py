"""Records the passes of a chunk: the segments of its blocks, and the collectives of ZeRO."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from simtrain.scenario import RecomputePolicy
from simtrain.workload.chunk import ROOT, Chunk
from simtrain.workload.issue import Segment
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.passes import (
    Pass,
    PassBuilder,
    PassKind,
    PassOptions,
    PassRecord,
    one_op_segment,
)
from simtrain.workload.recompute import (
    NO_RECOMPUTE,
    BlockRecompute,
    RecomputeUnit,
    recompute_outside_layers,
    recompute_units,
)
from simtrain.workload.segments import (
    BlockRun,
    backward_segment,
    forward_segment,
    recompute_segment,
)
from simtrain.workload.shard_groups import Sharding
from simtrain.workload.sharding import ShardedPass
from simtrain.workload.tape import Block, Microbatch, record
from simtrain.workload.work import CollectiveKind


@functools.lru_cache(maxsize=1024)
def record_pass(pass_: Pass) -> PassRecord:
    """Record the ops of a pass in issue order."""
    if recorded := pass_.options.recorded:
        return recorded.record_of(pass_)
    if pass_.kind == "R" and pass_.options.sharding:
        return _reduction(pass_, pass_.options.sharding)
    if pass_.kind == "G" and pass_.options.sharding:
        return _gathering(pass_, pass_.options.sharding)
    outline = _outline(pass_.chunk, pass_.kind, pass_.recompute)
    segments = [key.segment(pass_.kind, pass_.options) for key in outline.keys]
    issued = tuple([segments[number] for number in outline.numbers])
    if pass_.options.sharding:
        return _sharded(pass_, pass_.options.sharding, outline.segments, issued)
    return PassRecord(issued, outline.owners, outline.layer_ends)


class _Role(Enum):
    """What a segment does for its block."""

    RUN = "the forward pass, or the backward pass"
    RECOMPUTE = "the forward pass within a backward pass"
    SPLIT_INPUT = "save this rank's part of the unit's input"
    GATHER_INPUT = "gather the parts of the unit's input"


@dataclass(frozen=True, slots=True)
class _SegmentKey:
    """What determines a segment, together with the kind and the options of its pass."""

    block: Block
    role: _Role = _Role.RUN
    block_recompute: BlockRecompute = NO_RECOMPUTE

    def segment(self, kind: PassKind, options: PassOptions) -> Segment:
        """Return the segment in a pass of this kind."""
        batch = options.microbatch
        run = BlockRun(self.block, batch, options.overlap, self.block_recompute)
        match self.role:
            case _Role.RUN if kind == "F":
                return forward_segment(run)
            case _Role.RUN:
                is_deferred = options.defers_output_gradient and kind == "B"
                defers = is_deferred and getattr(self.block, "is_output_layer", False)
                return backward_segment(run, "I" if defers else kind)
            case _Role.RECOMPUTE:
                return recompute_segment(run, batch.local_bytes)
            case _Role.SPLIT_INPUT:
                return one_op_segment(_split_input(batch))
            case _Role.GATHER_INPUT:
                return replace(one_op_segment(_gather_input(batch)), awaited=(0,))


@dataclass(frozen=True, slots=True)
class _PlacedSegment:
    """A segment at its place in a pass.

    Args:
        place: place of its block in the chunk.
        layer: number of the layer that it runs; None if its block is not a layer.
        key: what determines it.
    """

    place: int
    layer: int | None
    key: _SegmentKey

    @property
    def ends_layer(self) -> bool:
        """Whether the layer's work ends with this segment."""
        return self.layer is not None and self.key.role is _Role.RUN


@dataclass(frozen=True, slots=True, eq=False)
class _PassOutline:
    """The segments of a pass, without those of ZeRO.

    Args:
        segments: in issue order.
        keys: the different keys.
        numbers: for each segment, the number of its key.
        owners, layer_ends: as in a `PassRecord` without ZeRO.
    """

    segments: tuple[_PlacedSegment, ...]
    keys: tuple[_SegmentKey, ...]
    numbers: tuple[int, ...]
    owners: tuple[int, ...]
    layer_ends: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _outline(chunk: Chunk, kind: PassKind, recompute: RecomputePolicy) -> _PassOutline:
    """Return the segments of a pass of a chunk, which do not depend on the microbatch."""
    groups = _block_groups(chunk, recompute)
    if kind == "F":
        segments = [placed for group in groups for placed in group.forward()]
    else:
        segments = [placed for group in reversed(groups) for placed in group.backward(kind)]
    number_of: dict[_SegmentKey, int] = {}
    numbers = tuple([number_of.setdefault(placed.key, len(number_of)) for placed in segments])
    owners = tuple([placed.place for placed in segments])
    ends = tuple([end for end, placed in enumerate(segments, 1) if placed.ends_layer])
    return _PassOutline(tuple(segments), tuple(number_of), numbers, owners, ends)


@dataclass(frozen=True, slots=True)
class _BlockGroup:
    """The segments of a recompute unit's blocks, or of a block outside the units (no unit)."""

    unit: RecomputeUnit | None
    run: list[_PlacedSegment] = field(default_factory=list)

    def forward(self) -> Iterator[_PlacedSegment]:
        """Yield the segments of a forward pass."""
        yield from self.run
        if self.unit and self.unit.distribute:
            yield self._of_first(_Role.SPLIT_INPUT)

    def backward(self, kind: PassKind) -> Iterator[_PlacedSegment]:
        """Yield the segments of a backward pass.

        A unit that recomputes runs all of its blocks forward first. Weight gradients (`W`) read the
        tensors that the input gradients (`I`) have recomputed.
        """
        if self.unit and self.unit.recomputes and kind != "W":
            if self.unit.distribute:
                yield self._of_first(_Role.GATHER_INPUT)
            for placed in self.run:
                yield replace(placed, key=replace(placed.key, role=_Role.RECOMPUTE))
        yield from reversed(self.run)

    def _of_first(self, role: _Role) -> _PlacedSegment:
        first = self.run[0]
        return _PlacedSegment(first.place, None, _SegmentKey(first.key.block, role))


def _block_groups(chunk: Chunk, recompute: RecomputePolicy) -> list[_BlockGroup]:
    """Return the blocks of a chunk in order, with layers grouped by recompute unit.

    A block between two layers of a unit belongs to the unit and is recomputed with it.
    """
    units = recompute_units(recompute, chunk.num_layers)
    unit_of_layer = {layer: unit for unit in units for layer in unit.layers}
    outside = recompute_outside_layers(recompute)
    groups: list[_BlockGroup] = []
    layer = 0
    for place, block in enumerate(chunk.blocks):
        unit = unit_of_layer.get(layer)
        is_between = unit is not None and layer > unit.first
        if unit is None or not (block.is_unit or is_between):
            key = _SegmentKey(block, block_recompute=outside)
            groups.append(_BlockGroup(None, [_PlacedSegment(place, None, key)]))
            continue
        if not is_between:
            groups.append(_BlockGroup(unit))
        key = _SegmentKey(block, block_recompute=unit.block_recompute(layer))
        placed = _PlacedSegment(place, layer if block.is_unit else None, key)
        groups[-1].run.append(placed)
        layer += block.is_unit
    return groups


def _sharded(
    pass_: Pass,
    sharding: Sharding,
    outline: Sequence[_PlacedSegment],
    issued: Sequence[Segment],
) -> PassRecord:
    """Record a pass with the collectives of ZeRO between its segments.

    Blocks with parameters wait for the root unit's gather. Input gradients (`I`) leave nothing to
    reduce, and weight gradients (`W`) need no parameters. `issued` are the segments of `outline`.
    """
    batch, builder = pass_.options.microbatch, PassBuilder(pass_.options.overlap)
    reduces = pass_.kind in ("B", "W")
    placed_layers = [placed.layer for placed in outline if placed.layer is not None]
    layers = dict.fromkeys(placed_layers)
    used = [] if pass_.kind == "W" else [ROOT, *layers]
    shards = ShardedPass(builder, pass_, sharding, used)
    if pass_.kind != "F":
        shards.need(ROOT)
    if reduces:
        shards.begin(ROOT)
    for placed, segment in zip(outline, issued, strict=True):
        if record(placed.key.block, batch).parameters:
            shards.need(ROOT)
        if placed.layer is not None:
            shards.need(placed.layer)
            if reduces and placed.ends_layer:
                shards.begin(placed.layer)
        builder.add(segment, placed.place)
        if placed.layer is not None and placed.ends_layer:
            builder.end_layer()
            shards.free(placed.layer)
            if reduces:
                shards.reduce(placed.layer)
    if reduces:
        shards.reduce(ROOT)
        shards.finish()
    peaks = shards.gathered_bytes, shards.bucket_bytes, shards.staged_bytes
    return builder.record(*peaks, shards.exchanged)


def _reduction(pass_: Pass, sharding: Sharding) -> PassRecord:
    """Record the reduction of a chunk's gradients, unit after unit.

    All parameters of the chunk are still unsharded. Source: PyTorch's pipeline stages
    (`perform_reduce_grad`).
    """
    builder, units = PassBuilder(pass_.options.overlap), [ROOT, *range(pass_.chunk.num_layers)]
    sharding = replace(sharding, unsharded_until_backward=True)
    shards = ShardedPass(builder, pass_, sharding, units)
    for unit in units:
        shards.reduce(unit)
    shards.finish()
    return builder.record(shards.gathered_bytes, shards.bucket_bytes, shards.staged_bytes)


def _gathering(pass_: Pass, sharding: Sharding) -> PassRecord:
    """Record the gather of a chunk's parameters, unit after unit (`FSDPModule.unshard`)."""
    builder, units = PassBuilder(pass_.options.overlap), [ROOT, *range(pass_.chunk.num_layers)]
    shards = ShardedPass(builder, pass_, sharding, units)
    for unit in units:
        shards.need(unit)
    return builder.record(shards.gathered_bytes, shards.bucket_bytes)


def _input_part(batch: Microbatch) -> Tensor:
    part = batch.activation_bytes // batch.tensor.num_ranks
    return Tensor("distributed unit input", part, 1, 1, number=0, storage=0)


def _split_input(batch: Microbatch) -> Op:
    """Copy and save this rank's part of the unit's input."""
    part = _input_part(batch)
    return elementwise("unit input split", part.num_bytes, part.num_bytes, saves=(part,))


def _gather_input(batch: Microbatch) -> Op:
    """Gather a unit's input before it is recomputed (paper, Section 5)."""
    work = CollectiveKind.ALL_GATHER, batch.activation_bytes, batch.tensor
    gather = collective("unit input gather", *work, Phase.RECOMPUTE)
    return gather.replace(reads=(_input_part(batch),), is_extra=True)
