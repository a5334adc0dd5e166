"""What a pass holds: its ops replayed one after another.

Tensors appear with the op that saves them (dropped ones with the op that computes them again) and
go after the op that frees them; beside them stand the activations and gradients that the op reads
and writes. A segment is replayed once for each different set of tensors that it starts with, so
that equal layers cost nothing more.
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
"""Saved tensors by the place of their block in the chunk."""


@dataclass(frozen=True, slots=True)
class PassMemory:
    """Bytes of a pass of one microbatch on one chunk.

    Args:
        saved_bytes: saved tensors that are there after a forward pass, or before any other pass.
        left_bytes: saved tensors that are there after the pass.
        beyond_bytes: what it holds more than `saved_bytes` at its fullest moment.
        recomputed_bytes: how much of that it has computed again.
        op: what it then runs.
        buffer_bytes: what its ops need of the framework's global buffer.
    """

    saved_bytes: int
    remaining_bytes: int
    extra_bytes: int
    recomputed_bytes: int
    op: str
    buffer_bytes: int


def pass_memory(one: Pass) -> PassMemory:
    """What a pass holds; a backward pass starts with what its forward pass leaves.

    What ZeRO gathers and reduces within a pass are no activations (`memory.buffers` has them).
    """
    options = one.options
    if options.sharding:
        options = PassOptions(options.microbatch, options.overlap)
    return _replayed(Pass(one.chunk, one.kind, one.recompute, options))[0]


@functools.lru_cache(maxsize=16384)
def _replayed(one: Pass) -> tuple[PassMemory, Live]:
    """What a pass holds, and the saved tensors that it leaves."""
    live: Live = {}
    if one.kind != "F":
        before: PassKind = "I" if one.kind == "W" else "F"
        live = _replayed(Pass(one.chunk, before, one.recompute, one.options))[1]
    return replay(record_pass(one), live, counts_left=one.kind == "F")


def replay(
    record: PassRecord, live: Live, *, counts_left: bool
) -> tuple[PassMemory, dict[int, Tensors]]:
    """Run through the ops of a pass; also returns the tensors that are there at its end.

    `counts_left` measures against the tensors at the end rather than those at the start.
    """
    saved = dict(live)
    again: dict[int, Tensors] = {}
    start_bytes = held_bytes = sum(map(_total_bytes, saved.values()))
    again_bytes = buffer_bytes = 0
    peak_bytes, peak_again_bytes, peak_op = -1, 0, ""
    nothing: Tensors = frozenset()
    for segment, owner in zip(record.segments, record.owners, strict=True):
        effect = _replay_segment(segment, saved.get(owner, nothing), again.get(owner, nothing))
        if held_bytes + effect.peak_bytes > peak_bytes:
            peak_bytes, peak_op = held_bytes + effect.peak_bytes, effect.op
            peak_again_bytes = again_bytes + effect.peak_again_bytes
        saved[owner], again[owner] = effect.saved, effect.again
        held_bytes += effect.change_bytes
        again_bytes += effect.again_change_bytes
        buffer_bytes = max(buffer_bytes, effect.buffer_bytes)
    saved_bytes = held_bytes if counts_left else start_bytes
    beyond = max(0, peak_bytes - saved_bytes)
    memory = PassMemory(
        saved_bytes,
        held_bytes,
        beyond,
        min(beyond, peak_again_bytes),
        peak_op if beyond else "",
        buffer_bytes,
    )
    return memory, {owner: tensors for owner, tensors in saved.items() if tensors}


@dataclass(frozen=True, slots=True, eq=False)
class _Effect:
    """What a segment does to the tensors of its block.

    `peak_bytes` is the most that exists beyond the tensors that it starts with, `peak_again_bytes`
    what has then been computed again beyond what had been before.
    """

    saved: Tensors
    again: Tensors
    change_bytes: int
    again_change_bytes: int
    peak_bytes: int
    peak_again_bytes: int
    op: str
    buffer_bytes: int


@functools.lru_cache(maxsize=8192)
def _replay_segment(segment: Segment, saved: Tensors, again: Tensors) -> _Effect:
    live, repeated = set(saved), set(again)
    live_bytes = again_bytes = 0
    peak_bytes, peak_again_bytes, peak_op = -1, 0, ""
    freed_by_op = segment.frees or ((),) * len(segment.ops)
    ops = zip(segment.ops, segment.waiting_bytes, freed_by_op, strict=True)
    for op, waiting_bytes, frees in ops:
        new = {*op.saves} - live
        live |= new
        live_bytes += _total_bytes(new)
        if op.phase is Phase.RECOMPUTE:
            repeated |= new
            again_bytes += _total_bytes(new)
        own_bytes = _total_bytes({*op.saves, *frees})
        held = live_bytes + op.working_bytes(own_bytes) + waiting_bytes
        if held > peak_bytes:
            peak_bytes, peak_again_bytes, peak_op = held, again_bytes, op.name
        live_bytes -= _total_bytes(live.intersection(frees))
        again_bytes -= _total_bytes(repeated.intersection(frees))
        live.difference_update(frees)
        repeated.difference_update(frees)
    return _Effect(
        frozenset(live),
        frozenset(repeated),
        live_bytes,
        again_bytes,
        peak_bytes,
        peak_again_bytes,
        peak_op,
        max((op.buffer_bytes for op in segment.ops), default=0),
    )


def _total_bytes(tensors: Tensors | set[Tensor]) -> int:
    return sum(tensor.num_bytes for tensor in tensors)
