"""Loading a microbatch, which every stage does before each forward pass.

Megatron-LM's `get_batch` of 2022 runs on every stage and for every chunk: the sizes and then the
tokens are broadcast over the tensor-parallel ranks, and `get_ltor_masks_and_position_ids` builds
the causal mask, the loss mask and the positions. The kernels are small, but their launches take
time: the GPU has just been synchronized and waits for the host. Under context parallelism each rank
then takes its two slices of every sequence (`get_batch_on_this_cp_rank`), or its only one, which
needs no indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.workload.blocks.dropout import MASK_BYTES
from simtrain.workload.ops import Op, Tensor, collective, elementwise
from simtrain.workload.tape import Microbatch, Tape
from simtrain.workload.work import FP32_BYTES, CollectiveKind

_INT64_BYTES = 8


@dataclass(frozen=True, slots=True)
class GetBatch:
    """Loads the tokens and masks of a microbatch; has no gradients.

    With `causal_mask` it builds an [s, s] mask, which fused attention does not need. If sequences
    are cut, their first slice loads all of them; the others are views.
    """

    causal_mask: bool = True
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the kernels; return the hidden states of the previous chunk unchanged."""
        part = tape.microbatch.part
        if part is None or part.number == 0:
            ops = [*_get_batch(tape.microbatch, causal_mask=self.causal_mask)]
            tape.record("get_batch", (), (), ops)
        return x


def _get_batch(batch: Microbatch, *, causal_mask: bool) -> Iterator[Op]:
    length, sequences = batch.whole_length, batch.sequences
    if batch.grid:  # ranks that divide sequences load all of them
        sequences *= batch.grid.ranks_of_sequences
    text = sequences * (length + 1) * _INT64_BYTES
    mask = length**2
    yield elementwise("sizes to device", 0, _INT64_BYTES)
    yield _broadcast(batch, "sizes", _INT64_BYTES)
    yield elementwise("sizes to host", _INT64_BYTES, 0)
    yield elementwise("tokens joined", text, text)
    yield elementwise("tokens to device", 0, text)
    yield _broadcast(batch, "tokens", text)
    yield elementwise("labels", text, text)
    yield elementwise("inputs", text, text)
    if causal_mask:
        yield elementwise("mask ones", 0, mask * FP32_BYTES)
        yield elementwise("mask triangle", mask * FP32_BYTES, mask * FP32_BYTES)
    yield elementwise("loss mask", 0, sequences * length * FP32_BYTES)
    yield elementwise("positions", 0, length * _INT64_BYTES)
    if causal_mask:
        yield elementwise("mask below one half", mask * FP32_BYTES, mask * MASK_BYTES)
    if batch.context:
        yield from _slices(batch, batch.context.exchange.slices)


def _slices(batch: Microbatch, number: int) -> Iterator[Op]:
    """For each tensor, copy the indices of the rank's slices to the GPU, then copy the slices."""
    for name in ("inputs", "labels", "loss mask", "positions"):
        size = batch.tokens * (FP32_BYTES if name == "loss mask" else _INT64_BYTES)
        if number > 1:
            yield elementwise(f"{name} slices to device", 0, number * _INT64_BYTES)
        yield elementwise(f"{name} slices", size, size)


def _broadcast(batch: Microbatch, name: str, num_bytes: int) -> Op:
    """Return a broadcast, so small that its latency dominates, like an all-gather of its size."""
    group = batch.grid.everyone if batch.grid else batch.tensor
    return collective(f"{name} broadcast", CollectiveKind.ALL_GATHER, num_bytes, group)
