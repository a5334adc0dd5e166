"""The passes of a chunk: recorded ops, segment by segment, ZeRO's collectives and merged passes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Literal, TypeAlias

from simtrain.base.values import dataclass, field, replace
from simtrain.scenario import RecomputePolicy
from simtrain.workload.chunk import ROOT, Chunk
from simtrain.workload.hashing import hashed_once
from simtrain.workload.issue import OverlapPolicy, Segment, Stream, stream_of
from simtrain.workload.ops import Op, Phase
from simtrain.workload.pass_record import PassBuilder, PassRecord
from simtrain.workload.recompute import (
    BlockRecompute,
    RecomputeUnit,
    recompute_outside_layers,
    recompute_units,
)
from simtrain.workload.recorded_step import RecordedStep
from simtrain.workload.segments import (
    BlockRun,
    backward_segment,
    block_parameters,
    forward_segment,
    recompute_segment,
)
from simtrain.workload.sharding import ShardedPass, Sharding
from simtrain.workload.tape import Block, Microbatch
from simtrain.workload.work import Collective, CollectiveKind

PassKind = Literal["F", "B", "I", "W", "R"]
"""F: forward pass. B: whole backward pass. I, W: its input gradients, its weight gradients. R: the
reduction of gradients after all backward passes.
"""


@hashed_once
@dataclass(frozen=True)
class PassOptions:
    """Options shared by all passes of a rank.

    Args:
        microbatch: the hidden states on this rank.
        overlap: which collectives are asynchronous.
        sharding: model states that ZeRO stages 2 and 3 shard; None otherwise.
        launch_s: host time to launch a kernel; 0 with CUDA graphs, None for the hardware profile's.
        call_s: host time of a call of the framework in addition to its launches.
        runs_ahead: the host does not wait for the GPU between passes.
        blocks: the host waits for each kernel and each collective that it launches.
        recorded: the recorded program whose passes these are; None for other models.
    """

    microbatch: Microbatch
    overlap: OverlapPolicy
    sharding: Sharding | None = None
    launch_s: float | None = None
    call_s: float = 0.0
    runs_ahead: bool = False
    blocks: bool = False
    recorded: RecordedStep | None = None


@hashed_once
@dataclass(frozen=True)
class Pass:
    """A forward or backward pass of a chunk, for one microbatch, under a recompute policy."""

    chunk: Chunk
    kind: PassKind
    recompute: RecomputePolicy
    options: PassOptions


@functools.lru_cache(maxsize=1024)
def record_pass(pass_: Pass) -> PassRecord:
    """Record the ops of a pass in issue order."""
    if recorded := pass_.options.recorded:
        return recorded.forward if pass_.kind == "F" else recorded.backward
    if pass_.kind == "R" and pass_.options.sharding:
        return _reduction(pass_, pass_.options.sharding)
    outline = _outline(pass_.chunk, pass_.kind, pass_.recompute)
    segments = [key.segment(pass_.kind, pass_.options) for key in outline.keys]
    issued = tuple([segments[number] for number in outline.numbers])
    if pass_.options.sharding:
        return _sharded(pass_, pass_.options.sharding, outline.segments, issued)
    return PassRecord(issued, outline.owners, outline.layer_ends)


@dataclass(frozen=True, slots=True)
class _SegmentKey:
    """What determines a segment, together with the kind and the options of its pass."""

    block: Block
    block_recompute: BlockRecompute
    is_recompute: bool = False

    def segment(self, kind: PassKind, options: PassOptions) -> Segment:
        batch = options.microbatch
        run = BlockRun(self.block, batch, options.overlap, self.block_recompute)
        if self.is_recompute:
            return recompute_segment(run)
        return forward_segment(run) if kind == "F" else backward_segment(run, kind)


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
        return self.layer is not None and not self.key.is_recompute


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
    groups = _block_groups(chunk, recompute)
    if kind == "F":
        segments = [placed for group in groups for placed in group.run]
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

    def backward(self, kind: PassKind) -> Iterator[_PlacedSegment]:
        """Yield the segments of a backward pass.

        A unit that recomputes runs all of its blocks forward first. Weight gradients (`W`) read the
        tensors that the input gradients (`I`) have recomputed.
        """
        if self.unit and self.unit.recomputes and kind != "W":
            for placed in self.run:
                yield replace(placed, key=replace(placed.key, is_recompute=True))
        yield from reversed(self.run)


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
            key = _SegmentKey(block, outside)
            groups.append(_BlockGroup(None, [_PlacedSegment(place, None, key)]))
            continue
        if not is_between:
            groups.append(_BlockGroup(unit))
        key = _SegmentKey(block, unit.block_recompute(layer))
        placed = _PlacedSegment(place, layer if block.is_unit else None, key)
        groups[-1].run.append(placed)
        layer += block.is_unit
    return groups


def _sharded(
    pass_: Pass, sharding: Sharding, outline: Sequence[_PlacedSegment], issued: Sequence[Segment]
) -> PassRecord:
    """Record a pass with the collectives of ZeRO between its segments.

    Blocks with parameters wait for the root unit's gather. Input gradients (`I`) leave nothing to
    reduce, and weight gradients (`W`) need no parameters. `issued` are the segments of `outline`.
    """
    batch, builder = pass_.options.microbatch, PassBuilder(pass_.options.overlap)
    reduces = pass_.kind in ("B", "W")
    placed_layers = [placed.layer for placed in outline if placed.layer is not None]
    layers = placed_layers if sharding.lists_tensors else dict.fromkeys(placed_layers)
    used = [] if pass_.kind == "W" else [ROOT, *layers]
    is_forward = pass_.kind == "F"
    shards = ShardedPass(builder, pass_.chunk, batch, sharding, used, is_forward=is_forward)
    if not is_forward:
        shards.need(ROOT)
    if reduces:
        shards.begin(ROOT)
    for placed, segment in zip(outline, issued, strict=True):
        if block_parameters(BlockRun(placed.key.block, batch)):
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
    return builder.record(shards.gathered_bytes, shards.bucket_bytes, shards.exchanged)


def _reduction(pass_: Pass, sharding: Sharding) -> PassRecord:
    """Record the reduction of a chunk's gradients, unit after unit.

    All parameters of the chunk are still unsharded. Source: PyTorch's pipeline stages
    (`perform_reduce_grad`).
    """
    chunk, batch = pass_.chunk, pass_.options.microbatch
    builder, units = PassBuilder(pass_.options.overlap), [ROOT, *range(chunk.num_layers)]
    sharding = replace(sharding, unsharded_until_backward=True)
    shards = ShardedPass(builder, chunk, batch, sharding, units, is_forward=False)
    for unit in units:
        shards.reduce(unit)
    shards.finish()
    return builder.record(shards.gathered_bytes, shards.bucket_bytes)


# Merged passes: a forward and a backward pass of two microbatches, side by side on one rank.
#
# The rank has one compute stream and one stream of collectives, on which it issues the ops of both
# passes in turn. An op waits for collectives of its own pass only, so that the exchanges of one
# pass with the experts run beside kernels of the other. Sources: Megatron-LM's
# `TransformerLayerSchedulePlan.run` (models/common/model_chunk_schedule_plan.py), whose events
# order the nodes of one pass; DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", Figure 4.


@hashed_once
@dataclass(frozen=True)
class MergedPass:
    """A forward pass of one microbatch and a backward pass (B or I) of another.

    Args:
        forward, backward: the passes.
        delays_weight_gradients: weight gradients follow the exchange after them
            (`issue_order`).
    """

    forward: Pass
    backward: Pass
    delays_weight_gradients: bool = False

    @property
    def options(self) -> PassOptions:
        return self.forward.options


@dataclass(frozen=True, eq=False)
class MergedRecord:
    """The ops of both passes.

    Args:
        records: the forward and the backward pass.
        order: [ops] for each op in the order of issue, its place among the ops of the forward and
            then the backward pass.
    """

    records: tuple[PassRecord, PassRecord]
    order: tuple[int, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(chain.from_iterable(record.segments for record in self.records))

    @property
    def ops(self) -> Iterator[Op]:
        ops = [*chain.from_iterable(record.ops for record in self.records)]
        return (ops[place] for place in self.order)


RankPass: TypeAlias = Pass | MergedPass
"""What a rank runs at a time."""
RankRecord: TypeAlias = PassRecord | MergedRecord


def record_of(rank_pass: RankPass) -> RankRecord:
    """Record a pass or a merged pass."""
    return record_merged(rank_pass) if isinstance(rank_pass, MergedPass) else record_pass(rank_pass)


@functools.lru_cache(maxsize=1024)
def record_merged(merged: MergedPass) -> MergedRecord:
    """Record the ops of merged passes in issue order."""
    forward, backward = record_pass(merged.forward), record_pass(merged.backward)
    order = issue_order(
        [*forward.ops], [*backward.ops], delays_weight_gradients=merged.delays_weight_gradients
    )
    return MergedRecord((forward, backward), tuple(order))


def issue_order(
    forward: Sequence[Op], backward: Sequence[Op], *, delays_weight_gradients: bool = False
) -> list[int]:
    """Return the order in which a rank issues two passes; places of the backward pass come last.

    Each pass is cut into stretches of kernels that end with an exchange between experts. The rank
    issues a stretch of the backward pass, one of the forward pass, and so on; when one pass ends,
    the other continues alone. In a layer with experts these stretches are (forward) attention and
    dispatch, experts and combination; (backward) experts and dispatch, attention and the
    combination of the layer before.

    With `delays_weight_gradients`, kernels of weight gradients of a stretch are issued after its
    exchange (Megatron-LM's --delay-wgrad-compute), which then does not wait for them.
    """
    before = _stretches(forward)
    after = _stretches(backward)
    if delays_weight_gradients:
        after = [sorted(stretch, key=lambda i: _is_delayed(backward[i])) for stretch in after]
    order: list[int] = []
    for of_backward, of_forward in zip_longest(after, before, fillvalue=()):
        order += (len(forward) + place for place in of_backward)
        order += of_forward
    return order


def is_expert_exchange(op: Op) -> bool:
    """Return whether an op moves tokens to their experts, or back.

    An exchange of counts, which the host reads, is part of the stretch before.
    """
    work = op.work
    if not isinstance(work, Collective) or work.kind is not CollectiveKind.ALL_TO_ALL:
        return False
    if op.informs_host:
        return False
    return "ep" in work.group.axes


def _stretches(ops: Sequence[Op]) -> list[Sequence[int]]:
    """Return the places of each stretch: up to the last of consecutive exchanges."""
    stretches: list[Sequence[int]] = []
    start = 0
    for place, op in enumerate(ops):
        ends = place + 1 == len(ops) or not is_expert_exchange(ops[place + 1])
        if is_expert_exchange(op) and ends:
            stretches.append(range(start, place + 1))
            start = place + 1
    if start < len(ops):
        stretches.append(range(start, len(ops)))
    return stretches


def _is_delayed(op: Op) -> bool:
    """Return whether an op is a kernel of a weight gradient.

    Collectives stay in place. Transformer Engine gathers the input of a weight gradient again, and
    waits for it, before it puts the kernel into its `WeightGradStore`: a gather that was delayed
    would follow a kernel that waits for it.
    """
    is_kernel = stream_of(op) is Stream.COMPUTE and not op.is_extra
    return is_kernel and op.phase is Phase.WEIGHT_GRADIENT
