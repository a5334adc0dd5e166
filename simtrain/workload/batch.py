"""Loading a microbatch, which every stage does before each forward pass.

Megatron-LM's `get_batch` of 2022 runs on every stage and for every chunk: the sizes and then the
tokens are broadcast over the tensor-parallel ranks, and `get_ltor_masks_and_position_ids` builds
the causal mask, the loss mask and the positions. The kernels are small, but their launches take
time: the GPU has just been synchronized and waits for the host. Under context parallelism each rank
then takes its two slices of every sequence (`get_batch_on_this_cp_rank`).
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.workload.blocks.dropout import MASK_BYTES
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Tensor, collective, elementwise
from simtrain.workload.tape import Microbatch, Tape
from simtrain.workload.work import FP32_BYTES, Collective, CollectiveKind

_INT64_BYTES = 8


@dataclass(frozen=True, slots=True)
class GetBatch:
    """Loads the tokens and masks of a microbatch; has no gradients.

    With `causal_mask` it builds an [s, s] mask, which fused attention does not need.
    """

    causal_mask: bool = True
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the kernels; return the hidden states of the previous chunk unchanged."""

        def forward(order: IssueOrder) -> None:
            _get_batch(order, tape.microbatch, causal_mask=self.causal_mask)

        tape.record("get_batch", (), (), forward, None)
        return x


def _get_batch(order: IssueOrder, batch: Microbatch, *, causal_mask: bool) -> None:
    length = batch.whole_length
    text = batch.sequences * (length + 1) * _INT64_BYTES
    mask = length**2
    order.compute(elementwise("sizes to device", 0, _INT64_BYTES))
    _broadcast(order, batch, "sizes", _INT64_BYTES)
    order.compute(elementwise("sizes to host", _INT64_BYTES, 0))
    order.compute(elementwise("tokens joined", text, text))
    order.compute(elementwise("tokens to device", 0, text))
    _broadcast(order, batch, "tokens", text)
    order.compute(elementwise("labels", text, text))
    order.compute(elementwise("inputs", text, text))
    if causal_mask:
        order.compute(elementwise("mask ones", 0, mask * FP32_BYTES))
        order.compute(elementwise("mask triangle", mask * FP32_BYTES, mask * FP32_BYTES))
    order.compute(elementwise("loss mask", 0, batch.sequences * length * FP32_BYTES))
    order.compute(elementwise("positions", 0, length * _INT64_BYTES))
    if causal_mask:
        order.compute(elementwise("mask below one half", mask * FP32_BYTES, mask * MASK_BYTES))
    if batch.context:
        _take_slices(order, batch)


def _take_slices(order: IssueOrder, batch: Microbatch) -> None:
    """For each tensor, copy the indices of the rank's slices to the GPU, then copy the slices."""
    sizes = {
        "inputs": batch.tokens * _INT64_BYTES,
        "labels": batch.tokens * _INT64_BYTES,
        "loss mask": batch.tokens * FP32_BYTES,
        "positions": batch.tokens * _INT64_BYTES,
    }
    for name, size in sizes.items():
        order.compute(elementwise(f"{name} slices to device", 0, 2 * _INT64_BYTES))
        order.compute(elementwise(f"{name} slices", size, size))


def _broadcast(order: IssueOrder, batch: Microbatch, name: str, num_bytes: int) -> None:
    """Issue a broadcast. It is so small that latency dominates, as in an all-gather of its size."""
    work = Collective(CollectiveKind.ALL_GATHER, num_bytes, batch.tensor)
    order.block(collective(f"{name} broadcast", work))
