"""Memory of passes: replays the ops of a pass, and the passes of an iteration.

A tensor is allocated by the op that saves or recomputes it, and freed after the last op that reads
it. Each op adds the activations and gradients that it reads and writes. A segment is replayed once
for each different set of tensors at its start, so equal layers take no further time.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import takewhile
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simtrain.base.values import dataclass, replace
from simtrain.engine.compiled import Ints
from simtrain.iteration.plan import PassOrder, PassVariant, Plan
from simtrain.schedules import KINDS
from simtrain.workload.issue import Segment
from simtrain.workload.ops import Phase, Tensor
from simtrain.workload.pass_record import ExchangedBytes, PassRecord
from simtrain.workload.passes import MergedPass, Pass, PassOptions, record_merged, record_pass
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
    start_bytes, live = _before(pass_)
    effects = _effects(record_pass(pass_), dict(live), start_bytes)
    return [
        Moment(held_bytes + op_bytes, recomputed_bytes + op_recomputed_bytes, op)
        for effect, held_bytes, recomputed_bytes in effects
        for op_bytes, op_recomputed_bytes, op in effect.moments
    ]


def _effects(
    record: PassRecord, saved: dict[int, Tensors], held_bytes: int
) -> Iterator[tuple[_Effect, int, int]]:
    """Yield the effect of each segment, with the bytes of all and of recomputed tensors before it.

    `saved` are the tensors at the start of the pass, of `held_bytes`, and later those at its end.
    """
    recomputed: dict[int, Tensors] = {}
    recomputed_bytes, nothing = 0, Tensors()
    for segment, owner in zip(record.segments, record.owners, strict=True):
        effect = _replay_segment(segment, saved.get(owner, nothing), recomputed.get(owner, nothing))
        yield effect, held_bytes, recomputed_bytes
        saved[owner], recomputed[owner] = effect.saved, effect.recomputed
        held_bytes += effect.change_bytes
        recomputed_bytes += effect.recomputed_change_bytes


def unsharded(pass_: Pass) -> Pass:
    """Return the pass without the collectives of ZeRO."""
    options = pass_.options
    if not options.sharding:
        return pass_
    return replace(pass_, options=PassOptions(options.microbatch, options.overlap))


@functools.lru_cache(maxsize=16384)
def _replayed(pass_: Pass) -> tuple[PassMemory, Live]:
    return replay(record_pass(pass_), *_before(pass_), counts_left=pass_.kind == "F")


def _before(pass_: Pass) -> tuple[int, Live]:
    """Return the bytes and tensors that the pass before leaves: of F for B and I, of I for W."""
    if pass_.kind == "F":
        return 0, {}
    memory, live = _replayed(replace(pass_, kind="I" if pass_.kind == "W" else "F"))
    return memory.remaining_bytes, live


def replay(
    record: PassRecord, start_bytes: int, live: Live, *, counts_left: bool
) -> tuple[PassMemory, dict[int, Tensors]]:
    """Replay the ops of a pass; return its memory and the tensors at its end.

    `live` are tensors at its start, of `start_bytes`. With `counts_left`, `saved_bytes` counts
    those at the end.
    """
    saved, left_bytes, buffer_bytes = dict(live), start_bytes, 0
    peak_bytes, peak_recomputed_bytes, peak_op = -1, 0, ""
    for effect, held_bytes, recomputed_bytes in _effects(record, saved, start_bytes):
        op_bytes, op_recomputed_bytes, op = effect.peak
        if held_bytes + op_bytes > peak_bytes:
            peak_bytes, peak_op = held_bytes + op_bytes, op
            peak_recomputed_bytes = recomputed_bytes + op_recomputed_bytes
        left_bytes = held_bytes + effect.change_bytes
        buffer_bytes = max(buffer_bytes, effect.buffer_bytes)
    saved_bytes = left_bytes if counts_left else start_bytes
    beyond = max(0, peak_bytes - saved_bytes)
    memory = PassMemory(
        saved_bytes,
        left_bytes,
        beyond,
        min(beyond, peak_recomputed_bytes),
        peak_op if beyond else "",
        buffer_bytes,
    )
    return memory, {owner: tensors for owner, tensors in saved.items() if tensors}


@dataclass(frozen=True, slots=True, eq=False)
class _Effect:
    """The effect of a segment on the memory of its block.

    `moments` are its ops, relative to its start, and `peak` is the first of the highest ones.
    """

    saved: Tensors
    recomputed: Tensors
    change_bytes: int
    recomputed_change_bytes: int
    peak: tuple[int, int, str]
    buffer_bytes: int
    moments: tuple[tuple[int, int, str], ...]


@functools.lru_cache(maxsize=8192)
def _replay_segment(segment: Segment, saved: Tensors, recomputed: Tensors) -> _Effect:
    # Tensors by number, which tells those of a block apart.
    live = {tensor.number: tensor for tensor in saved}
    again = {tensor.number: tensor for tensor in recomputed}
    live_bytes = recomputed_bytes = 0
    moments: list[tuple[int, int, str]] = []
    freed_by_op = segment.frees or ((),) * len(segment.ops)
    ops = zip(segment.ops, segment.waiting_bytes, freed_by_op, strict=True)
    for op, waiting_bytes, frees in ops:
        sizes, working_bytes = {}, op.holds_bytes
        if op.saves or frees:
            sizes = {tensor.number: tensor.num_bytes for tensor in (*op.saves, *frees)}
            working_bytes = op.working_bytes(sum(sizes.values()))
        for tensor in op.saves:
            if (number := tensor.number) in live:
                continue
            live[number] = tensor
            live_bytes += sizes[number]
            if op.phase is Phase.RECOMPUTE:
                again[number] = tensor
                recomputed_bytes += sizes[number]
        held_bytes = live_bytes + working_bytes + waiting_bytes
        moments.append((held_bytes, recomputed_bytes, op.name))
        for tensor in frees:
            live_bytes -= sizes[tensor.number] if live.pop(tensor.number, None) else 0
            recomputed_bytes -= sizes[tensor.number] if again.pop(tensor.number, None) else 0
    return _Effect(
        frozenset(live.values()),
        frozenset(again.values()),
        live_bytes,
        recomputed_bytes,
        max(moments, key=itemgetter(0), default=(-1, 0, "")),
        max([op.buffer_bytes for op in segment.ops], default=0),
        (*moments,),
    )


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
    if sharding is None or not sharding.fully_shards:
        return False
    return sharding.reduces and sharding.accumulates and sharding.shards_parameters


def makes_gradients(plan: Plan) -> bool:
    """Whether the only backward pass makes the gradients, which no pass starts with."""
    sharding = plan.options.sharding
    return times_exchanges(plan) and sharding is not None and sharding.is_only_microbatch


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
        result = replace(
            memory,
            extra_bytes=max(0, total_bytes - memory.saved_bytes),
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
_LARGEST = int(np.iinfo(np.int64).max)
_CHANGES = np.array([{"F": (1, 0), "B": (-1, 0), "I": (-1, 1), "W": (0, -1)}[x] for x in KINDS])
"""[kinds, 2], change of the microbatches that a rank holds after F, and of those after I."""
Flow = tuple[int, bool, bool]
"""Microbatches that hold equally many bytes between their passes: the number of their chunk;
whether they save everything; whether the next chunk, on the same rank, saves the output."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The different moments of a pipeline: a stage runs a pass while it holds some microbatches.

    A microbatch holds what its forward pass left until its backward pass (B). If that is split, it
    then holds what the input gradients (I) left until the weight gradients (W). So the bytes of a
    moment are a sum over a few flows: microbatches that are held, times bytes of one. An order has
    many actions but few moments, and scenarios of one order share them.

    Args:
        flows: the different flows.
        freed, pass_of: action i frees the microbatches `freed[pass_of[i]]`, as in `held`.
        works, work_of: moment i runs `works[work_of[i]]`: a pass, or two that are merged.
        held: [moments, 2 * flows], microbatches after F and after I of each flow. A forward pass
            holds its own.
        places: [moments], the first action of each, ascending.
        moment_of: [actions], the moment of each.
        stage_starts: stage s has the moments `stage_starts[s]` to `stage_starts[s + 1] - 1`.
        chunks: [stages], the chunks of each stage.
    """

    flows: tuple[Flow, ...]
    freed: NDArray[np.int64]
    pass_of: Ints
    works: tuple[PassVariant, ...]
    work_of: Ints
    held: NDArray[np.int64]
    places: Ints
    moment_of: Ints
    stage_starts: Ints
    chunks: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, order: PassOrder) -> Moments:
        """Walk through the actions of all stages, and keep each different moment once."""
        actions, placement, chunks = order.actions, order.order.placement, np.array(order.chunks)
        turns = np.append(placement.steps, 1) == 0
        of_actions = chunks[actions.virtual_stage], order.saves_all, turns[actions.virtual_stage]
        shape = int(chunks.max()) + 1, 2, 2, len(KINDS)
        codes = np.ravel_multi_index((*of_actions, actions.kind), shape)
        codes, pass_of = np.unique(codes, return_inverse=True)
        passes = np.stack(np.unravel_index(codes, shape), axis=1).tolist()
        flows = [*dict.fromkeys((chunk, bool(x), bool(y)) for chunk, x, y, _ in passes)]
        of_flows = np.zeros((len(passes), len(flows), 2), np.int64)
        for number, (*flow, kind) in enumerate(passes):
            of_flows[number, flows.index((*flow,))] = _CHANGES[kind]
        changes = of_flows.reshape(len(passes), -1)
        freed = np.where(np.array(passes)[:, 3:] == KINDS.index("F"), 0, -changes)
        # Each stage ends without microbatches, so one cumulative sum covers all stages.
        after = changes[pass_of].cumsum(axis=0)
        during = after + freed[pass_of]
        second, pairs = np.flatnonzero(actions.follows_merged), pass_of.copy()
        during[second] = after[second - 1]
        for action in (second - 1, second):
            pairs[action] = len(passes) * (1 + pass_of[second - 1]) + pass_of[second]
        different, work_of = np.unique(pairs, return_inverse=True)
        works = [divmod(pair, len(passes)) for pair in different.tolist()]
        variants = [
            PassVariant(chunk, KINDS[kind], bool(saves_all)) for chunk, saves_all, _, kind in passes
        ]
        places, moment_of = _first_rows(np.column_stack([actions.rank, work_of, during]))
        return cls(
            (*flows,),
            freed,
            pass_of.astype(np.int32),
            tuple(
                variants[pair - 1]._replace(beside=variants[last]) if pair else variants[last]
                for pair, last in works
            ),
            work_of[places],
            during[places],
            places,
            moment_of.astype(np.int32),
            np.searchsorted(actions.rank[places], np.arange(actions.num_stages + 1)),
            tuple(tuple(chunks[[*stages]].tolist()) for stages in placement.virtual_stages),
        )


moments_of_order = functools.lru_cache(maxsize=512)(Moments.of)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryReplay:
    """Activations while a pipeline runs: a plan's bytes at the moments of its order.

    Args:
        moments: of the order.
        passes: memory of the passes, by the keys of `Plan.passes`.
        memories: [works], memory of the pass or of the merged passes.
        flow_bytes: [2 * flows], bytes of a microbatch, as in `Moments.held`.
        running_bytes: [moments], saved tensors during a moment; merged passes may hold fewer.
        peak_bytes: [moments], all activations and working tensors at the peak.
    """

    moments: Moments
    passes: Mapping[PassVariant, PassMemory]
    memories: tuple[PassMemory, ...]
    flow_bytes: Bytes
    running_bytes: Bytes
    peak_bytes: Bytes

    @classmethod
    def of(cls, plan: Plan) -> MemoryReplay:
        """Add up what the passes of a plan hold at each moment, and what they need beyond."""
        moments = moments_of_order(plan.pass_order)
        memory_of = memory_with_exchanges if times_exchanges(plan) else pass_memory
        passes = {key: memory_of(pass_) for key, pass_ in plan.passes.items()}
        flow_bytes = [size for flow in moments.flows for size in _bytes_after(plan, passes, flow)]
        memories, more = [], []
        for variant in moments.works:
            if variant.beside and isinstance(merged := plan.variants[variant], MergedPass):
                memory = merged_memory(merged)
                parts = variant._replace(beside=None), variant.beside
                more.append(memory.saved_bytes - sum(passes[part].saved_bytes for part in parts))
            else:
                memory = passes[variant]
                more.append(0)
            memories.append(memory)
        beyond = [memory.extra_bytes for memory in memories]
        # Sums above 64 bits use Python integers, which are exact and slow.
        largest = max(flow_bytes) * len(moments.moment_of) + max(beyond)
        kind: Any = np.int64 if largest < _LARGEST else object
        sizes = np.array(flow_bytes, kind)
        numbers = moments.held.astype(kind, copy=False)
        running = numbers @ sizes + np.array(more, kind)[moments.work_of]
        peak = running + np.array(beyond, kind)[moments.work_of]
        return cls(moments, passes, (*memories,), sizes, running, peak)

    @property
    def after_bytes(self) -> Bytes:
        """[actions], saved tensors after each action."""
        moments = self.moments
        running, freed = (numbers @ self.flow_bytes for numbers in (moments.held, moments.freed))
        after: Bytes = running[moments.moment_of] - freed[moments.pass_of]
        return after

    @property
    def dynamic_bytes(self) -> Bytes:
        """[actions], all activations and working tensors at the peak of each action."""
        return self.peak_bytes[self.moments.moment_of]

    @property
    def stage_peaks(self) -> list[int]:
        """[stages], the highest peak of each stage."""
        starts = self.moments.stage_starts[:-1]
        peaks: list[int] = np.maximum.reduceat(self.peak_bytes, starts).tolist()
        return peaks

    def fullest_moments(self) -> list[int]:
        """Return the first moment with the highest peak, for each stage."""
        pairs = itertools.pairwise(self.moments.stage_starts.tolist())
        return [start + int(self.peak_bytes[start:end].argmax()) for start, end in pairs]


def _bytes_after(
    plan: Plan, passes: Mapping[PassVariant, PassMemory], flow: Flow
) -> tuple[int, int]:
    """Return what a microbatch holds after its forward pass, and after its input gradients."""
    chunk, saves_all, turns = flow
    left = passes[PassVariant(chunk, "F", saves_all)].remaining_bytes
    inputs = passes.get(PassVariant(chunk, "I", saves_all))
    output = 0 if turns else _output_bytes(plan, chunk)
    return left + output, inputs.remaining_bytes if inputs else 0


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


def _first_rows(rows: NDArray[np.int64]) -> tuple[Ints, Ints]:
    """Return the places of the different rows, ascending, and the number of each row's equal."""
    codes, size = np.zeros(len(rows), np.int64), 1
    for column in rows.T:
        size *= int(column.max()) + 1
        if size >= _LARGEST:
            codes = np.unique(codes, return_inverse=True)[1]
            size = len(rows) * (int(column.max()) + 1)
        codes = codes * (int(column.max()) + 1) + column
    _, places, number_of = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(places)
    return places[order], np.argsort(order)[number_of]
