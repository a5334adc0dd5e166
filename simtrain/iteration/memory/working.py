"""Memory of passes: replays the ops of a pass, and the passes of an iteration.

A tensor is allocated by the op that saves or recomputes it, and freed after the last op that reads
it. Each op adds the activations and gradients that it reads and writes. A segment is replayed once
for each different set of tensors at its start, so equal layers take no further time.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simtrain.base.values import dataclass, replace
from simtrain.iteration.plan import PassKey, PassOrder, Plan
from simtrain.schedules import KINDS
from simtrain.workload.issue import Segment
from simtrain.workload.ops import Phase, Tensor
from simtrain.workload.pass_record import ExchangedBytes, PassRecord
from simtrain.workload.passes import MergedPass, Pass, PassOptions, record_merged, record_pass
from simtrain.workload.sharding import Sharding
from simtrain.workload.work import Product

Tensors = frozenset[Tensor]
Live = Mapping[int, Tensors]
"""Saved tensors, by the place of their block in the chunk."""


@dataclass(frozen=True, slots=True)
class PassMemory:
    """Memory of a pass of one microbatch on one chunk.

    Args:
        saved_bytes: saved tensors after a forward pass, or before any other pass.
        remaining_bytes: saved tensors after the pass.
        extra_bytes: memory above `saved_bytes` at the peak of the pass.
        recomputed_bytes: recomputed tensors in `extra_bytes`.
        op: name of the op at the peak.
        buffer_bytes: bytes that its ops need of the framework's global buffer.
        gathered_bytes, bucket_bytes, gradients_bytes: parameters that are gathered, gradients that
            are not reduced, and reduced gradients of the pass, in `extra_bytes`
            (`times_exchanges`).
    """

    saved_bytes: int
    remaining_bytes: int
    extra_bytes: int
    recomputed_bytes: int
    op: str
    buffer_bytes: int
    gathered_bytes: int = 0
    bucket_bytes: int = 0
    gradients_bytes: int = 0


@functools.lru_cache(maxsize=65536)
def pass_memory(pass_: Pass) -> PassMemory:
    """Return the memory of a pass. A backward pass starts with the tensors of its forward pass.

    Tensors that ZeRO gathers and reduces count as buffers (`memory.buffers`).
    """
    return _replayed(unsharded(pass_))[0]


@functools.lru_cache(maxsize=4096)
def merged_memory(merged: MergedPass) -> PassMemory:
    """Return the memory of merged passes.

    `saved_bytes` are those of both, after the forward pass and before the backward pass, or fewer
    if the backward pass frees its tensors before the forward pass has saved all of its own. While
    ops of one pass run, the other one holds what its latest op holds.
    """
    passes = merged.forward, merged.backward
    memories = [*map(pass_memory, passes)]
    moments = [moments_of(unsharded(pass_)) for pass_ in passes]
    of_ops = [0] * len(moments[0]) + [1] * len(moments[1])
    every = [*moments[0], *moments[1]]
    saved_bytes = sum(memory.saved_bytes for memory in memories)
    before = Moment(0, 0, ""), Moment(memories[1].saved_bytes, 0, "")
    latest, peak, recomputed_bytes, peak_op = [*before], -1, 0, ""
    for place in record_merged(merged).order:
        latest[of_ops[place]] = every[place]
        held_bytes = sum(moment.held_bytes for moment in latest)
        if held_bytes > peak:
            peak, peak_op = held_bytes, every[place].op
            recomputed_bytes = sum(moment.recomputed_bytes for moment in latest)
    saved_bytes = min(saved_bytes, peak)
    beyond = peak - saved_bytes
    return PassMemory(
        saved_bytes,
        sum(memory.remaining_bytes for memory in memories),
        beyond,
        min(beyond, recomputed_bytes),
        peak_op if beyond else "",
        max(memory.buffer_bytes for memory in memories),
    )


class Moment(NamedTuple):
    """The tensors of a pass while an op runs: all of them, and recomputed ones."""

    held_bytes: int
    recomputed_bytes: int
    op: str


def moments_of(pass_: Pass) -> list[Moment]:
    """Return [ops], the tensors of a pass while each of its ops runs."""
    live, record = _live_before(pass_), record_pass(pass_)
    saved, recomputed = dict(live), dict[int, Tensors]()
    held_bytes = sum(map(_total_bytes, saved.values()))
    recomputed_bytes, nothing = 0, Tensors()
    moments: list[Moment] = []
    for segment, owner in zip(record.segments, record.owners, strict=True):
        effect = _replay_segment(segment, saved.get(owner, nothing), recomputed.get(owner, nothing))
        moments += (
            Moment(
                held_bytes + of_op.held_bytes, recomputed_bytes + of_op.recomputed_bytes, of_op.op
            )
            for of_op in effect.moments
        )
        saved[owner], recomputed[owner] = effect.saved, effect.recomputed
        held_bytes += effect.change_bytes
        recomputed_bytes += effect.recomputed_change_bytes
    return moments


def unsharded(pass_: Pass) -> Pass:
    """Return the pass without the collectives of ZeRO."""
    options = pass_.options
    plain = PassOptions(options.microbatch, options.overlap) if options.sharding else options
    return Pass(pass_.chunk, pass_.kind, pass_.recompute, plain)


@functools.lru_cache(maxsize=16384)
def _replayed(pass_: Pass) -> tuple[PassMemory, Live]:
    return replay(record_pass(pass_), _live_before(pass_), counts_left=pass_.kind == "F")


def _live_before(pass_: Pass) -> Live:
    """Return the tensors that the pass before leaves: of F for B and I, of I for W."""
    if pass_.kind == "F":
        return {}
    return _replayed(replace(pass_, kind="I" if pass_.kind == "W" else "F"))[1]


def replay(
    record: PassRecord, live: Live, *, counts_left: bool
) -> tuple[PassMemory, dict[int, Tensors]]:
    """Replay the ops of a pass; return its memory and the tensors at its end.

    Args:
        record: the pass.
        live: tensors at its start.
        counts_left: `saved_bytes` counts the tensors at the end instead of the start.
    """
    saved = dict(live)
    recomputed: dict[int, Tensors] = {}
    start_bytes = held_bytes = sum(map(_total_bytes, saved.values()))
    recomputed_bytes = buffer_bytes = 0
    peak_bytes, peak_recomputed_bytes, peak_op = -1, 0, ""
    nothing: Tensors = frozenset()
    for segment, owner in zip(record.segments, record.owners, strict=True):
        effect = _replay_segment(segment, saved.get(owner, nothing), recomputed.get(owner, nothing))
        if held_bytes + effect.peak_bytes > peak_bytes:
            peak_bytes, peak_op = held_bytes + effect.peak_bytes, effect.op
            peak_recomputed_bytes = recomputed_bytes + effect.peak_recomputed_bytes
        saved[owner], recomputed[owner] = effect.saved, effect.recomputed
        held_bytes += effect.change_bytes
        recomputed_bytes += effect.recomputed_change_bytes
        buffer_bytes = max(buffer_bytes, effect.buffer_bytes)
    saved_bytes = held_bytes if counts_left else start_bytes
    beyond = max(0, peak_bytes - saved_bytes)
    memory = PassMemory(
        saved_bytes,
        held_bytes,
        beyond,
        min(beyond, peak_recomputed_bytes),
        peak_op if beyond else "",
        buffer_bytes,
    )
    return memory, {owner: tensors for owner, tensors in saved.items() if tensors}


@dataclass(frozen=True, slots=True, eq=False)
class _Effect:
    """The effect of a segment on the memory of its block.

    `peak_bytes` is its peak relative to its start. `peak_recomputed_bytes` is the change of
    recomputed tensors at this peak. `moments` are all its ops, relative to its start.
    """

    saved: Tensors
    recomputed: Tensors
    change_bytes: int
    recomputed_change_bytes: int
    peak_bytes: int
    peak_recomputed_bytes: int
    op: str
    buffer_bytes: int
    moments: tuple[Moment, ...]


@functools.lru_cache(maxsize=8192)
def _replay_segment(segment: Segment, saved: Tensors, recomputed: Tensors) -> _Effect:
    live, recomputed_tensors = set(saved), set(recomputed)
    live_bytes = recomputed_bytes = 0
    peak_bytes, peak_recomputed_bytes, peak_op = -1, 0, ""
    moments: list[Moment] = []
    freed_by_op = segment.frees or ((),) * len(segment.ops)
    ops = zip(segment.ops, segment.waiting_bytes, freed_by_op, strict=True)
    for op, waiting_bytes, frees in ops:
        new = {*op.saves} - live
        live |= new
        live_bytes += _total_bytes(new)
        if op.phase is Phase.RECOMPUTE:
            recomputed_tensors |= new
            recomputed_bytes += _total_bytes(new)
        own_bytes = _total_bytes({*op.saves, *frees})
        held_bytes = live_bytes + op.working_bytes(own_bytes) + waiting_bytes
        moments.append(Moment(held_bytes, recomputed_bytes, op.name))
        if held_bytes > peak_bytes:
            peak_bytes, peak_recomputed_bytes, peak_op = held_bytes, recomputed_bytes, op.name
        live_bytes -= _total_bytes(live.intersection(frees))
        recomputed_bytes -= _total_bytes(recomputed_tensors.intersection(frees))
        live.difference_update(frees)
        recomputed_tensors.difference_update(frees)
    return _Effect(
        frozenset(live),
        frozenset(recomputed_tensors),
        live_bytes,
        recomputed_bytes,
        peak_bytes,
        peak_recomputed_bytes,
        peak_op,
        max((op.buffer_bytes for op in segment.ops), default=0),
        tuple(moments),
    )


def _total_bytes(tensors: Tensors | set[Tensor]) -> int:
    return sum(tensor.num_bytes for tensor in tensors)


# Memory of the passes of PyTorch's fully_shard, with its gathers and reductions at their times.
#
# Other forms of ZeRO count the peaks of both as buffers of the whole iteration (`memory.buffers`).
# With fully_shard a pass has them when its ops need them: the loss is computed while parameters are
# resharded, and a step that keeps no gradients (`zero_grad(set_to_none=True)`) starts without any.
# So the loss of a large vocabulary and the gradients of layers are not held at the same time.
#
# The root's parameters are resharded when the model returns its logits, and gathered again by a
# hook that runs when the gradient of the logits arrives (torch/distributed/fsdp/_fully_shard/
# _fsdp_state.py, `_post_forward` and `_pre_backward`). So the loss, which is not part of the model,
# runs without them.

_NOTHING = ExchangedBytes(0, 0, 0, 0)


def times_exchanges(plan: Plan) -> bool:
    """Whether the memory of a plan's passes includes what fully_shard gathers and reduces."""
    sharding = plan.options.sharding
    return sharding is not None and _is_timed(sharding)


def makes_gradients(plan: Plan) -> bool:
    """Whether the only backward pass makes the gradients, which no pass starts with."""
    sharding = plan.options.sharding
    return times_exchanges(plan) and sharding is not None and sharding.is_only_microbatch


def _is_timed(sharding: Sharding) -> bool:
    is_in_passes = sharding.reduces and sharding.accumulates and sharding.shards_parameters
    return sharding.fully_shards and is_in_passes


@functools.lru_cache(maxsize=65536)
def memory_with_exchanges(pass_: Pass) -> PassMemory:
    """Return the memory of a pass with what it gathers and reduces at each of its ops."""
    memory, sharding = pass_memory(pass_), pass_.options.sharding
    assert sharding is not None, "parameters are sharded"
    counts_reduced = sharding.is_only_microbatch  # otherwise gradients stay for the iteration
    peak_bytes, result = -1, memory
    ops = zip(moments_of(pass_), _exchanged(pass_), strict=True)
    for (held_bytes, recomputed_bytes, op), exchanged in ops:
        reduced_bytes = exchanged.reduced * counts_reduced
        total_bytes = held_bytes + exchanged.gathered + exchanged.bucket + reduced_bytes
        if total_bytes <= peak_bytes:
            continue
        peak_bytes = total_bytes
        extra_bytes = max(0, total_bytes - memory.saved_bytes)
        result = replace(
            memory,
            extra_bytes=extra_bytes,
            recomputed_bytes=recomputed_bytes,
            op=op,
            gathered_bytes=exchanged.gathered,
            bucket_bytes=exchanged.bucket,
            gradients_bytes=reduced_bytes,
        )
    return result


def _exchanged(pass_: Pass) -> Iterator[ExchangedBytes]:
    """Yield what a pass holds besides shards while each of its ops runs."""
    record, sharding = record_pass(pass_), pass_.options.sharding
    starts = [each.start for each in record.exchanged]
    stays = sharding is None or sharding.unsharded_until_backward
    loss = range(0) if stays else _ops_of_loss(record, is_backward=pass_.kind == "B")
    for number, segment in enumerate(record.segments):
        place = bisect_right(starts, number)
        exchanged = record.exchanged[place - 1] if place else _NOTHING
        for op in range(record.starts[number], record.starts[number] + len(segment.ops)):
            yield _NOTHING if op in loss else exchanged


def _ops_of_loss(record: PassRecord, *, is_backward: bool) -> range:
    """Return the ops after the last product of the last block, or before its first gradient's."""
    blocks = [number for number, owner in enumerate(record.owners) if owner >= 0]
    number = blocks[0 if is_backward else -1]
    ops, start, end = record.segments[number].ops, *record.starts[number : number + 2]
    outside = takewhile(
        lambda op: not isinstance(op.work, Product), ops if is_backward else reversed(ops)
    )
    length = len([*outside])
    return range(start, start + length) if is_backward else range(end - length, end)


# Activations of each stage, action by action: replays the schedule.
#
# A stage runs its actions one after another, so their order determines its memory. The timeline
# only adds the times. Merged actions run together: the tensors of both are alive.

Bytes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryReplay:
    """Activations during each action, in the order of the schedule (stage by stage).

    Args:
        pass_order: order of each stage's actions, and their passes.
        passes: memory of the passes, by the keys of `Plan.passes`.
        merged: memory of merged passes, by the keys of both.
        running_bytes: [actions], saved tensors during an action; a forward pass includes its own.
        extra_bytes: [actions], memory above `running_bytes` at the peak of the action, or of the
            merged actions.
        after_bytes: [actions], saved tensors after the action.
    """

    pass_order: PassOrder
    passes: Mapping[PassKey, PassMemory]
    merged: Mapping[tuple[PassKey, PassKey], PassMemory]
    running_bytes: Bytes
    extra_bytes: Bytes
    after_bytes: Bytes

    @classmethod
    def of(cls, plan: Plan) -> MemoryReplay:
        """Replay the schedule of a plan and add up the tensors that its passes save and free."""
        order, most = plan.pass_order, 0
        memory_of = memory_with_exchanges if times_exchanges(plan) else pass_memory
        passes = {key: memory_of(pass_) for key, pass_ in plan.passes.items()}
        # Both arrays have the axes of `_shape` and a value for each kind of pass:
        # `change` is the growth of the saved tensors, `beyond` the memory above them at the peak.
        change, beyond = np.zeros((2, *_shape(order)), object)
        for (chunk, kind, saves_all), memory in passes.items():
            place = chunk, int(saves_all), KINDS.index(kind)
            output = _output_bytes(plan, chunk)
            # I leaves the tensors that W reads.
            left = memory.remaining_bytes - memory.saved_bytes
            changes = {
                "F": memory.remaining_bytes + output,
                "B": left - output,
                "I": left - output,
                "W": left,
            }
            change[place], beyond[place] = changes[kind], memory.extra_bytes
            most = max(most, memory.saved_bytes + output + memory.extra_bytes)
        # Sums above 64 bits use Python integers, which are exact and slow.
        if most * len(order.actions.kind) < np.iinfo(np.int64).max:
            change, beyond = change.astype(np.int64), beyond.astype(np.int64)
        places, is_forward = _places(order)
        growth: Bytes = np.subtract(change.ravel()[places], _turning_bytes(plan))
        beyond_bytes: Bytes = beyond.ravel()[places]
        # Each stage ends with 0 bytes, so one cumulative sum covers all stages.
        after = np.cumsum(growth)
        running = after - np.where(is_forward, 0, growth)
        merged = {keys: merged_memory(pair) for keys, pair in plan.merged_passes.items()}
        replay = cls(order, passes, merged, running, beyond_bytes, after)
        if merged:
            replay._join_merged()
        return replay

    def _join_merged(self) -> None:
        """Set the memory during merged actions, in which the tensors of both passes are alive."""
        second = np.flatnonzero(self.pass_order.actions.follows_merged)
        places, _ = _places(self.pass_order)
        pairs = places[second - 1] * math.prod(_shape(self.pass_order)) + places[second]
        _, examples, number = np.unique(pairs, return_index=True, return_inverse=True)
        more, extra = [], []
        for place in second[examples].tolist():
            memory, keys = self.memory(place), map(self._key, (place - 1, place))
            more.append(memory.saved_bytes - sum(self.passes[key].saved_bytes for key in keys))
            extra.append(memory.extra_bytes)
        for action in (second - 1, second):
            self.running_bytes[action] = self.after_bytes[second - 1] + np.array(more)[number]
            self.extra_bytes[action] = np.array(extra)[number]

    @property
    def dynamic_bytes(self) -> Bytes:
        """[actions], all activations and working tensors at the peak of each action."""
        return self.running_bytes + self.extra_bytes

    def fullest_actions(self) -> list[int]:
        """Return the place of the first action with the highest peak, for each stage."""
        starts = self.pass_order.actions.rank_starts
        stages = np.split(self.dynamic_bytes, starts[1:-1])
        return [int(start + stage.argmax()) for start, stage in zip(starts, stages, strict=False)]

    def memory(self, place: int) -> PassMemory:
        """Return the memory of the pass or the merged passes that an action runs."""
        schedule = self.pass_order.actions
        if schedule.follows_merged[place]:
            return self.merged[self._key(place - 1), self._key(place)]
        if schedule.merges is not None and schedule.merges[place]:
            return self.merged[self._key(place), self._key(place + 1)]
        return self.passes[self._key(place)]

    def _key(self, place: int) -> PassKey:
        return _key_at(self.pass_order, place)


def _key_at(order: PassOrder, place: int) -> PassKey:
    shape, (places, _) = _shape(order), _places(order)
    chunk, saves_all, kind = np.unravel_index(places[place], shape)
    return int(chunk), KINDS[kind], bool(saves_all)


def _output_bytes(plan: Plan, chunk: int) -> int:
    """Return the bytes of a chunk's output if it stays allocated: 2sbh, or this rank's part of it.

    Without `deallocate_outputs` it stays until the backward pass (paper, Appendix B).
    """
    last = plan.order.placement.num_virtual_stages - 1
    is_sent = chunk in plan.model_chunks.numbers[:last]
    if plan.scenario.memory.deallocate_outputs or plan.mesh.pp == 1 or not is_sent:
        return 0
    states = plan.contents.sent_states[plan.model_chunks.numbers.index(chunk)]
    return states * plan.microbatch.local_bytes


def _turning_bytes(plan: Plan) -> Bytes | int:
    """Return [actions], growth by outputs that are inputs of the rank's next chunk, or 0 without.

    The next chunk saves them, so they do not stay twice.
    """
    placement = plan.order.placement
    steps = np.ones(placement.num_virtual_stages, np.int32)
    steps[: len(placement.steps)] = placement.steps
    if steps.all():
        return 0
    schedule, chunks = plan.schedule, np.array(plan.pass_order.chunks)
    outputs = np.array([_output_bytes(plan, chunk) for chunk in range(chunks.max() + 1)])
    outputs = np.where(steps == 0, outputs[chunks], 0)
    signs = np.array([{"F": 1, "B": -1, "I": -1, "W": 0}[kind] for kind in KINDS])
    growth: Bytes = signs[schedule.kind] * outputs[schedule.virtual_stage]
    return growth


@functools.lru_cache(maxsize=512)
def _places(order: PassOrder) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return each action's flat index in `_shape`, and whether it is forward."""
    actions = order.actions
    kinds, chunks = actions.kind, np.array(order.chunks)[actions.virtual_stage]
    columns = chunks, order.saves_all, kinds
    places = np.ravel_multi_index(columns, _shape(order))
    return places, kinds == KINDS.index("F")


def _shape(order: PassOrder) -> tuple[int, int, int]:
    return max(order.chunks) + 1, 2, len(KINDS)
