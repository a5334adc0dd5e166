"""The router: chooses the experts of each token, and their probabilities.

Source: Megatron-LM's `TopKRouter` (core/transformer/moe/router.py) and
`topk_routing_with_score_function` (moe_utils.py), with the auxiliary load-balancing loss. Its
kernels take the time of the memory that they read and write. Its products are those of
`RouterGatingLinearFunction`, which fuses no sum of gradients. In a 16-bit model, Transformer Engine
multiplies fp32 operands in TF32 (its `cublas_gemm`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.workload.ops import Op, Phase, Tensor, elementwise, gradient
from simtrain.workload.tape import Microbatch, Parameter, Tape
from simtrain.workload.work import FP32_BYTES, Gemm, KernelFamily, ProductType

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

    With `fp32`, the product of 16-bit tokens writes fp32, and both gradients are products of fp32
    operands.
    """
    batch = tape.microbatch
    size = FP32_BYTES if fp32 else batch.element_bytes
    logits = tape.tensor("router logits", x.rows, num_experts, size)
    _product(tape, x, logits)
    probabilities = tape.tensor("router probabilities", x.rows, num_experts, size)
    chosen = tape.tensor("chosen probabilities", x.rows, top_k, FP32_BYTES)
    indices = tape.tensor("chosen experts", x.rows, top_k, INDEX_BYTES)
    scores = tape.tensor("auxiliary loss scores", x.rows, num_experts, FP32_BYTES)
    token_map = tape.tensor("token map", x.rows, num_experts, _MAP_BYTES)
    sigmoids = tape.tensor("sigmoids", x.rows, num_experts, FP32_BYTES) if choice.sigmoid else None
    routing = Routing(probabilities, token_map)
    picked = chosen, indices
    routed_bytes = sum(tensor.num_bytes for tensor in routing.saved)
    forward = [
        *_choose(logits, sigmoids, picked, choice, top_k),
        elementwise("router scatter", _bytes(picked), routed_bytes, saves=routing.saved),
        elementwise(
            "auxiliary loss", _bytes((logits, token_map)), scores.num_bytes, saves=(scores,)
        ),
    ]
    if choice.has_bias:
        written = num_experts * FP32_BYTES
        forward.append(elementwise("tokens per expert", token_map.num_bytes, written))
    backward = (
        gradient("auxiliary loss", scores.num_bytes, logits.num_bytes, reads=(scores,)),
        *_choice_gradients(logits, sigmoids, picked),
    )
    tape.record("router", (logits,), (probabilities,), forward, backward)
    return routing


def _choose(
    logits: Tensor,
    sigmoids: Tensor | None,
    picked: tuple[Tensor, Tensor],
    choice: ExpertChoice,
    top_k: int,
) -> Iterator[Op]:
    """Yield the scores of all experts, and the choice of the best with their probabilities.

    Sigmoids are in fp32 (`topk_routing_with_score_function`).
    """
    if sigmoids is not None:
        each = sigmoids.num_bytes
        if logits.num_bytes != each:
            yield elementwise("router logits cast", logits.num_bytes, each)
        yield elementwise("router sigmoid", each, each, saves=(sigmoids,))
        if choice.has_bias:
            yield elementwise("router bias", each, each)
    if choice.groups is not None:
        yield from _limit_groups(sigmoids or logits, choice, top_k)
    if sigmoids is None:
        yield elementwise("router top-k softmax", logits.num_bytes, _bytes(picked), saves=picked)
        return
    chosen_bytes = picked[0].num_bytes
    yield elementwise("router top-k", sigmoids.num_bytes, _bytes(picked))
    if choice.has_bias:
        yield elementwise("router scores", _bytes(picked), chosen_bytes)
    yield elementwise("router normalization", chosen_bytes, chosen_bytes, saves=picked)


def _choice_gradients(
    logits: Tensor, sigmoids: Tensor | None, picked: tuple[Tensor, Tensor]
) -> Iterator[Op]:
    """Yield the gradient of the chosen probabilities with respect to the logits."""
    whole, read_bytes = logits.num_bytes, logits.num_bytes + _bytes(picked)
    if sigmoids is None:
        yield gradient("router top-k softmax", read_bytes, whole, reads=picked)
        return
    each = sigmoids.num_bytes
    yield gradient("router normalization", read_bytes, each, reads=picked)
    yield gradient("router sigmoid", 2 * each, each, reads=(sigmoids,))
    if each != whole:
        yield elementwise("router logits gradient cast", each, whole, Phase.INPUT_GRADIENT)


def _limit_groups(scores: Tensor, choice: ExpertChoice, top_k: int) -> Iterator[Op]:
    """Yield the mask of the experts outside the best groups (`group_limited_topk`).

    A group has the sum of its best scores, top_k / group_top_k of them.
    """
    groups, group_top_k = choice.groups or 1, choice.group_top_k or 1
    size, rows, each = scores.element_bytes, scores.rows, scores.num_bytes
    best = rows * groups * (top_k // group_top_k)
    of_groups, picked = rows * groups * size, rows * group_top_k * (size + INDEX_BYTES)
    yield elementwise("best of each group", each, best * (size + INDEX_BYTES))
    yield elementwise("group scores", best * size, of_groups)
    yield elementwise("group top-k", of_groups, picked)
    yield elementwise("group mask", picked, each)
    yield elementwise("masked scores", 2 * each, each)


def _bytes(tensors: tuple[Tensor, ...]) -> int:
    return sum(tensor.num_bytes for tensor in tensors)


def _product(tape: Tape, x: Tensor, logits: Tensor) -> None:
    """Record the product of tokens and router weights."""
    batch, rows, hidden, experts = tape.microbatch, x.rows, x.width, logits.width
    sizes = batch.element_bytes, logits.element_bytes
    work = Gemm(rows, experts, hidden, 1, *sizes, dtype=batch.dtype)
    logits_bytes = logits.num_bytes
    forward = Op("router", work, Phase.FORWARD, (x,), holds_bytes=logits_bytes, counts_saved=False)
    tape.record(
        "router product",
        (x,),
        (logits,),
        (forward,),
        (*_product_gradients(batch, x, logits),),
        parameters=(Parameter(experts * hidden, is_whole=True),),
        deferred_gradient_bytes=logits_bytes,
    )


def _product_gradients(batch: Microbatch, x: Tensor, logits: Tensor) -> Iterator[Op]:
    """Yield the ops of both gradients of the product.

    In a 16-bit model, an fp32 router casts weights and tokens to fp32 and both gradients back.
    """
    rows, hidden, experts, size = x.rows, x.width, logits.width, logits.element_bytes
    casts, weights, wide = size != batch.element_bytes, experts * hidden, size * x.elements
    once, buffer = batch.element_bytes * weights, batch.gradient_bytes * weights
    dtype: ProductType = "tf32" if casts else batch.dtype
    inputs, of_weight = Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT
    held_bytes = logits.num_bytes + wide
    if casts:
        yield elementwise("router weight cast", once, size * weights, inputs)
    work = Gemm(rows, hidden, experts, 1, size, size, dtype=dtype, layout="NN")
    name = "router input gradient"
    yield Op(name, work, inputs, holds_bytes=held_bytes, counts_saved=False)
    if casts:
        yield elementwise("router cast", x.num_bytes, wide, of_weight, reads=(x,))
    work = Gemm(experts, hidden, rows, 1, size, size, dtype=dtype, layout="NT")
    name = "router weight gradient"
    yield Op(
        name, work, of_weight, reads=(x,), holds_bytes=held_bytes + wide * casts, counts_saved=False
    )
    if casts:
        yield elementwise("router input gradient cast", wide, x.num_bytes, inputs)
        yield elementwise(f"{name} cast", size * weights, once, of_weight)
    if batch.adds_gradients:
        held_bytes, family = x.num_bytes + once, KernelFamily.STREAM
        moved = once + buffer, buffer
        yield elementwise(f"{name} sum", *moved, of_weight, holds_bytes=held_bytes, family=family)
