"""Getting a microbatch: what every stage does before each forward pass.

Megatron-LM's `get_batch` of 2022 runs on every stage and for every chunk: the sizes and then the
tokens are broadcast over the tensor-parallel ranks, and `get_ltor_masks_and_position_ids` builds
the causal mask, the loss mask and the positions. The kernels are small; launching them is not
free, as the device has just been synchronized and waits for its host.
"""

from __future__ import annotations

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Collective, CollectiveKind, Elementwise, Phase
from simtrain.workload.shape import FP32_BYTES, MASK_BYTES, LayerShape

_INT64_BYTES = 8


def get_batch(order: IssueOrder, shape: LayerShape) -> None:
    """Emit the kernels of one microbatch's tokens and masks."""
    text = shape.microbatch * (shape.seq_length + 1) * _INT64_BYTES
    mask = shape.seq_length**2
    _kernel(order, "sizes to device", 0, _INT64_BYTES)
    _broadcast(order, shape, "sizes", _INT64_BYTES)
    _kernel(order, "sizes to host", _INT64_BYTES, 0)
    _kernel(order, "tokens joined", text, text)
    _kernel(order, "tokens to device", 0, text)
    _broadcast(order, shape, "tokens", text)
    _kernel(order, "labels", text, text)
    _kernel(order, "inputs", text, text)
    _kernel(order, "mask ones", 0, mask * FP32_BYTES)
    _kernel(order, "mask triangle", mask * FP32_BYTES, mask * FP32_BYTES)
    _kernel(order, "loss mask", 0, shape.tokens * FP32_BYTES)
    _kernel(order, "positions", 0, shape.seq_length * _INT64_BYTES)
    _kernel(order, "mask below one half", mask * FP32_BYTES, mask * MASK_BYTES)


def _kernel(order: IssueOrder, name: str, read_bytes: int, write_bytes: int) -> None:
    order.compute(Elementwise(name, read_bytes, write_bytes, Phase.FORWARD))


def _broadcast(order: IssueOrder, shape: LayerShape, name: str, num_bytes: int) -> None:
    """A broadcast of so few bytes is latency, and takes what an all-gather of them takes."""
    order.block(
        Collective(
            f"{name} broadcast", CollectiveKind.ALL_GATHER, num_bytes, shape.tensor, Phase.FORWARD
        )
    )
