"""The router: chooses the experts of each token, and their probabilities.

Source: Megatron-LM's `TopKRouter` (core/transformer/moe/router.py) and
`topk_routing_with_score_function` (moe_utils.py), with the auxiliary load-balancing loss. Its
kernels take the time of the memory that they read and write.
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


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """How a router chooses experts; fields as in the scenario's model.experts.

    Args:
        sigmoid: scores are sigmoids of the logits; otherwise a softmax over the chosen experts.
        has_bias: a bias is added to the scores that choose.
        groups, group_top_k: groups of experts, and how many of them a token chooses; or None.
    """

    sigmoid: bool = False
    has_bias: bool = False
    groups: int | None = None
    group_top_k: int | None = None


OF_CHOSEN = ExpertChoice()
"""A softmax over the best top_k experts."""


def route(
    tape: Tape,
    x: Tensor,
    num_experts: int,
    top_k: int,
    choice: ExpertChoice,
    *,
    fp32: bool,
) -> Routing:
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
    sigmoids = tape.tensor("sigmoids", x.rows, num_experts, FP32_BYTES) if choice.sigmoid else None
    routing = Routing(probabilities, token_map)
    picked, whole = chosen.num_bytes + indices.num_bytes, logits.num_bytes

    def forward(order: IssueOrder) -> None:
        """Issue the choice of experts, the scatter of its scores and the auxiliary loss."""
        saves = (chosen, indices)
        if sigmoids is not None:
            _sigmoid(order, logits, sigmoids, choice)
        if choice.groups is not None:
            _limit_groups(order, sigmoids or logits, choice, top_k)
        if sigmoids is not None:
            each = sigmoids.num_bytes
            order.compute(elementwise("router top-k", each, picked))
            if choice.has_bias:
                order.compute(elementwise("router scores", picked, chosen.num_bytes))
            name = "router normalization"
            order.compute(elementwise(name, chosen.num_bytes, chosen.num_bytes, saves=saves))
        else:
            order.compute(elementwise("router top-k softmax", whole, picked, saves=saves))
        scattered = sum(tensor.num_bytes for tensor in routing.saved)
        order.compute(elementwise("router scatter", picked, scattered, saves=routing.saved))
        name, written = "auxiliary loss", scores.num_bytes
        order.compute(elementwise(name, whole + token_map.num_bytes, written, saves=(scores,)))
        if choice.has_bias:
            name, written = "tokens per expert", num_experts * FP32_BYTES
            order.compute(elementwise(name, token_map.num_bytes, written))

    def backward(order: IssueOrder) -> None:
        """Issue the gradients of the auxiliary loss and of the chosen scores."""
        phase, name = Phase.INPUT_GRADIENT, "auxiliary loss gradient"
        order.compute(elementwise(name, scores.num_bytes, whole, phase, reads=(scores,)))
        reads = (chosen, indices)
        if sigmoids is None:
            name = "router top-k softmax gradient"
            order.compute(elementwise(name, whole + picked, whole, phase, reads=reads))
            return
        name, each = "router normalization gradient", sigmoids.num_bytes
        order.compute(elementwise(name, whole + picked, each, phase, reads=reads))
        name = "router sigmoid gradient"
        order.compute(elementwise(name, 2 * each, each, phase, reads=(sigmoids,)))
        if not fp32:
            order.compute(elementwise("router logits gradient cast", each, whole, phase))

    tape.record("router", (logits,), (probabilities,), forward, backward)
    return routing


def _sigmoid(order: IssueOrder, logits: Tensor, sigmoids: Tensor, choice: ExpertChoice) -> None:
    """Issue the scores of all experts, in fp32 (`topk_routing_with_score_function`)."""
    each = sigmoids.num_bytes
    if logits.num_bytes != each:
        order.compute(elementwise("router logits cast", logits.num_bytes, each))
    order.compute(elementwise("router sigmoid", each, each, saves=(sigmoids,)))
    if choice.has_bias:
        order.compute(elementwise("router bias", each, each))


def _limit_groups(order: IssueOrder, scores: Tensor, choice: ExpertChoice, top_k: int) -> None:
    """Issue the mask of the experts outside the best groups (`group_limited_topk`).

    A group has the sum of its best scores, top_k / group_top_k of them.
    """
    groups, group_top_k = choice.groups or 1, choice.group_top_k or 1
    size, rows, each = scores.element_bytes, scores.rows, scores.num_bytes
    best = rows * groups * (top_k // group_top_k)
    of_groups, picked = rows * groups * size, rows * group_top_k * (size + INDEX_BYTES)
    order.compute(elementwise("best of each group", each, best * (size + INDEX_BYTES)))
    order.compute(elementwise("group scores", best * size, of_groups))
    order.compute(elementwise("group top-k", of_groups, picked))
    order.compute(elementwise("group mask", picked, each))
    order.compute(elementwise("masked scores", 2 * each, each))


def _product(tape: Tape, x: Tensor, logits: Tensor, *, fp32: bool) -> None:
    batch, size = tape.microbatch, logits.element_bytes
    rows, hidden, experts = x.rows, x.width, logits.width
    held = x.num_bytes + logits.num_bytes

    def forward(order: IssueOrder) -> None:
        """Issue the product of tokens and router weights."""
        sizes = batch.element_bytes, size
        work = Gemm(rows, experts, hidden, 1, *sizes)
        held = logits.num_bytes
        saves = (x,)
        order.compute(
            Op("router", work, Phase.FORWARD, saves, holds_bytes=held, counts_saved=False)
        )

    def backward(order: IssueOrder) -> None:
        """Issue the input gradient and the weight gradient."""
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
