"""Memory of a pass: replays its ops one after another.

A tensor is allocated by the op that saves or recomputes it, and freed after the last op that reads
it. Each op adds the activations and gradients that it reads and writes. A segment is replayed once
for each different set of tensors at its start, so equal layers take no further time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from simtrain.workload.issue import Segment
from simtrain.workload.ops import Phase, Tensor
from simtrain.workload.passes import Pass, PassKind, PassOptions, PassRecord
from simtrain.workload.record import record_pass

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
    """

    saved_bytes: int
    remaining_bytes: int
    extra_bytes: int
    recomputed_bytes: int
    op: str
    buffer_bytes: int


def pass_memory(pass_: Pass) -> PassMemory:
    """Return the memory of a pass. A backward pass starts with the tensors of its forward pass.

    Tensors that ZeRO gathers and reduces count as buffers (`memory.buffers`).
    """
    options = pass_.options
    if options.sharding:
        options = PassOptions(options.microbatch, options.overlap)
    return _replayed(Pass(pass_.chunk, pass_.kind, pass_.recompute, options))[0]


@functools.lru_cache(maxsize=16384)
def _replayed(pass_: Pass) -> tuple[PassMemory, Live]:
    """Return the memory of a pass, and the tensors that remain after it."""
    live: Live = {}
    if pass_.kind != "F":
        before: PassKind = "I" if pass_.kind == "W" else "F"
        live = _replayed(Pass(pass_.chunk, before, pass_.recompute, pass_.options))[1]
    return replay(record_pass(pass_), live, counts_left=pass_.kind == "F")


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
    recomputed tensors at this peak.
    """

    saved: Tensors
    recomputed: Tensors
    change_bytes: int
    recomputed_change_bytes: int
    peak_bytes: int
    peak_recomputed_bytes: int
    op: str
    buffer_bytes: int


@functools.lru_cache(maxsize=8192)
def _replay_segment(segment: Segment, saved: Tensors, recomputed: Tensors) -> _Effect:
    live, recomputed_tensors = set(saved), set(recomputed)
    live_bytes = recomputed_bytes = 0
    peak_bytes, peak_recomputed_bytes, peak_op = -1, 0, ""
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
    )


def _total_bytes(tensors: Tensors | set[Tensor]) -> int:
    return sum(tensor.num_bytes for tensor in tensors)
