"""Memory of a pass: replays its ops one after another.

A tensor is allocated by the op that saves or recomputes it, and freed after the last op that reads
it. Each op adds the activations and gradients that it reads and writes. A segment is replayed once
for each different set of tensors at its start, so equal layers take no further time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from simtrain.workload.issue import Segment
from simtrain.workload.merged_passes import MergedPass, record_merged
from simtrain.workload.ops import Phase, Tensor
from simtrain.workload.passes import Pass, PassKind, PassOptions, PassRecord
from simtrain.workload.record import record_pass

Tensors = frozenset[Tensor]
Live = Mapping[int, Tensors]
"""Saved tensors, by the place of their block in the chunk."""
_DEPTH = 64
"""Slices of sequences that are replayed in a recursion."""


@dataclass(frozen=True, slots=True)
class PassMemory:
    """Memory of a pass of one microbatch on one chunk.

    Args:
        saved_bytes: saved tensors after a forward pass, or before any other pass. A backward pass
            of a slice includes the gradients that later slices have kept for it.
        remaining_bytes: saved tensors after the pass.
        extra_bytes: memory above `saved_bytes` at the peak of the pass.
        recomputed_bytes: recomputed tensors in `extra_bytes`.
        op: name of the op at the peak.
        buffer_bytes: bytes that its ops need of the framework's global buffer.
        gathered_bytes, bucket_bytes, gradients_bytes: parameters that are gathered, gradients that
            are not reduced, and reduced gradients of the pass, in `extra_bytes`
            (`memory.exchanges`).
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
    if options.sharding:
        options = PassOptions(options.microbatch, options.overlap)
    return Pass(pass_.chunk, pass_.kind, pass_.recompute, options)


def saved_tensors(forward: Pass) -> Live:
    """Return the tensors that a forward pass saves, by the place of their block in the chunk."""
    return _replayed(unsharded(forward))[1]


@functools.lru_cache(maxsize=16384)
def _replayed(pass_: Pass) -> tuple[PassMemory, Live]:
    return replay(record_pass(pass_), _live_before(pass_), counts_left=pass_.kind == "F")


def _live_before(pass_: Pass) -> Live:
    """Return the tensors that the pass before leaves: of F for B and I, of I for W.

    The backward pass of a slice also finds what that of the next slice has kept. Another one may
    have released it before W.
    """
    if pass_.kind == "F":
        return {}
    before: PassKind = "I" if pass_.kind == "W" else "F"
    live = _replayed(replace(pass_, kind=before))[1]
    part = pass_.options.microbatch.part
    if part is None:
        return live
    if pass_.kind == "W":
        return {owner: tensors - _kept(tensors) for owner, tensors in live.items()}
    if part.is_last:
        return live
    # Each slice replays the next one, as deep as there are slices: so replay the last ones first.
    for number in range(len(part.lengths) - 1, part.number, -_DEPTH):
        _replayed(_of_slice(pass_, number))
    kept = _replayed(_of_slice(pass_, part.number + 1))[1]
    nothing: Tensors = frozenset()
    return {
        owner: live.get(owner, nothing) | _kept(kept.get(owner, nothing))
        for owner in {**live, **kept}
    }


def _kept(tensors: Tensors) -> Tensors:
    return frozenset(tensor for tensor in tensors if tensor.is_kept)


def _of_slice(pass_: Pass, number: int) -> Pass:
    """Return the pass of another slice of the sequences."""
    batch = pass_.options.microbatch
    assert batch.part, "sequences are whole"
    batch = batch.slice(replace(batch.part, number=number))
    return replace(pass_, options=replace(pass_.options, microbatch=batch))


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
        new = {*op.saves, *op.keeps} - live
        live |= new
        live_bytes += _total_bytes(new)
        if op.phase is Phase.RECOMPUTE:
            recomputed_tensors |= new
            recomputed_bytes += _total_bytes(new)
        own_bytes = _total_bytes({*op.saves, *op.keeps, *frees})
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
