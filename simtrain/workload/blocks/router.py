"""The router: chooses the experts of each token, and their probabilities.

Source: Megatron-LM's `TopKRouter` (core/transformer/moe/router.py) with a softmax over the chosen
experts and the auxiliary load-balancing loss.
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import FP32_BYTES, Gemm

INDEX_BYTES = 8
"""Bytes of an index (int64)."""
_MAP_BYTES = 1


@dataclass(frozen=True, slots=True)
class Routing:
    """Result of the router, saved until the gradient of the permuted probabilities.

    Args:
        probabilities: of each expert for each token; zero for experts that were not chosen.
        token_map: booleans of the same shape, true for chosen experts.
    """

    probabilities: Tensor
    token_map: Tensor

    @property
    def saved(self) -> tuple[Tensor, Tensor]:
        """Both tensors."""
        return self.probabilities, self.token_map


def route(tape: Tape, x: Tensor, num_experts: int, top_k: int, *, fp32: bool) -> Routing:
    """Choose `top_k` of `num_experts` experts for each token.

    With `fp32`, the product reads 16-bit tokens and writes fp32, and both gradients are products of
    fp32 operands, for which the tokens are cast.
    """
    batch = tape.microbatch
    size = FP32_BYTES if fp32 else batch.element_bytes
    logits = tape.tensor("router logits", x.rows, num_experts, size)
    _product(tape, x, logits, fp32=fp32)
    probabilities = tape.tensor("router probabilities", x.rows, num_experts, size)
    chosen = tape.tensor("chosen probabilities", x.rows, top_k, FP32_BYTES)
    indices = tape.tensor("chosen experts", x.rows, top_k, INDEX_BYTES)
    scores = tape.tensor("auxiliary loss scores", x.rows, num_experts, FP32_BYTES)
    token_map = tape.tensor("token map", x.rows, num_experts, _MAP_BYTES)
    routing = Routing(probabilities, token_map)
    picked, whole = chosen.num_bytes + indices.num_bytes, logits.num_bytes

    def forward(order: IssueOrder) -> None:
        name, saves = "router top-k softmax", (chosen, indices)
        order.compute(elementwise(name, whole, picked, saves=saves))
        scattered = sum(tensor.num_bytes for tensor in routing.saved)
        order.compute(elementwise("router scatter", picked, scattered, saves=routing.saved))
        name, written = "auxiliary loss", scores.num_bytes
        order.compute(elementwise(name, whole + token_map.num_bytes, written, saves=(scores,)))

    def backward(order: IssueOrder) -> None:
        phase, name = Phase.INPUT_GRADIENT, "auxiliary loss gradient"
        order.compute(elementwise(name, scores.num_bytes, whole, phase, reads=(scores,)))
        name, reads = "router top-k softmax gradient", (chosen, indices)
        order.compute(elementwise(name, whole + picked, whole, phase, reads=reads))

    tape.record("router", (logits,), (probabilities,), forward, backward)
    return routing


def _product(tape: Tape, x: Tensor, logits: Tensor, *, fp32: bool) -> None:
    batch, size = tape.microbatch, logits.element_bytes
    rows, hidden, experts = x.rows, x.width, logits.width
    held = x.num_bytes + logits.num_bytes

    def forward(order: IssueOrder) -> None:
        sizes = batch.element_bytes, size
        work = Gemm(rows, experts, hidden, 1, *sizes)
        held = logits.num_bytes
        saves = (x,)
        order.compute(
            Op("router", work, Phase.FORWARD, saves, holds_bytes=held, counts_saved=False)
        )

    def backward(order: IssueOrder) -> None:
        phase = Phase.INPUT_GRADIENT
        work = Gemm(rows, hidden, experts, 1, size, batch.element_bytes)
        name = "router input gradient"
        order.compute(Op(name, work, phase, holds_bytes=held, counts_saved=False))
        phase = Phase.WEIGHT_GRADIENT
        if fp32:
            cast_bytes = FP32_BYTES * rows * hidden
            order.compute(elementwise("router cast", x.num_bytes, cast_bytes, phase, reads=(x,)))
        work = Gemm(experts, hidden, rows, 1, size, batch.gradient_bytes, accumulate=True)
        name = "router weight gradient"
        order.compute(Op(name, work, phase, reads=(x,), holds_bytes=held, counts_saved=False))

    tape.record(
        "router product",
        (x,),
        (logits,),
        forward,
        backward,
        parameters=(Parameter(experts * hidden, is_whole=True),),
        deferred_gradient_bytes=logits.num_bytes,
    )
