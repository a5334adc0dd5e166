"""The router chooses the experts of each token; how many tokens ranks exchange.

Source: Megatron-LM's `TopKRouter` (core/transformer/moe/router.py) and
`topk_routing_with_score_function` (moe_utils.py), with the auxiliary load-balancing loss. Its
kernels take the time of the memory that they read and write. Its products are those of
`RouterGatingLinearFunction`, which fuses no sum of gradients. In a 16-bit model, Transformer Engine
multiplies fp32 operands in TF32 (its `cublas_gemm`).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Self

from simtrain.base.mesh import Group
from simtrain.base.values import dataclass
from simtrain.scenario.dispatchers import ExpertDispatch
from simtrain.scenario.model import Experts, Lora
from simtrain.workload.blocks.grouped import ExpertLoad
from simtrain.workload.fp8 import Fp8Recipe, recipe_of
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise, gradient
from simtrain.workload.tape import ExpertGroups, Microbatch, Parameter, Tape
from simtrain.workload.work import (
    FP32_BYTES,
    CollectiveKind,
    Gemm,
    KernelFamily,
    ProductType,
    TokenExchange,
)

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
        return self.probabilities, self.token_map


def route(tape: Tape, x: Tensor, section: Experts) -> Routing:
    """Choose experts for each token.

    With a router in fp32, the product of 16-bit tokens writes fp32, and both gradients are products
    of fp32 operands.
    """
    num_experts, top_k = section.num, section.top_k
    size = FP32_BYTES if section.router_dtype == "fp32" else tape.microbatch.element_bytes
    logits = tape.tensor("router logits", x.rows, num_experts, size)
    _product(tape, x, logits)
    probabilities = tape.tensor("router probabilities", x.rows, num_experts, size)
    chosen = tape.tensor("chosen probabilities", x.rows, top_k, FP32_BYTES)
    indices = tape.tensor("chosen experts", x.rows, top_k, INDEX_BYTES)
    scores = tape.tensor("auxiliary loss scores", x.rows, num_experts, FP32_BYTES)
    token_map = tape.tensor("token map", x.rows, num_experts, _MAP_BYTES)
    scored = section.router_score == "sigmoid"
    sigmoids = tape.tensor("sigmoids", x.rows, num_experts, FP32_BYTES) if scored else None
    routing = Routing(probabilities, token_map)
    picked = chosen, indices
    routed_bytes = sum(tensor.num_bytes for tensor in routing.saved)
    forward = [
        *_choose(logits, sigmoids, picked, section),
        elementwise("router scatter", _bytes(picked), routed_bytes, saves=routing.saved),
        elementwise(
            "auxiliary loss", _bytes((logits, token_map)), scores.num_bytes, saves=(scores,)
        ),
    ]
    if section.router_bias:
        written = num_experts * FP32_BYTES
        forward.append(elementwise("tokens per expert", token_map.num_bytes, written))
    backward = (
        gradient("auxiliary loss", scores.num_bytes, logits.num_bytes, reads=(scores,)),
        *_choice_gradients(logits, sigmoids, picked),
    )
    tape.record("router", (logits,), (probabilities,), forward, backward)
    return routing


def _choose(
    logits: Tensor, sigmoids: Tensor | None, picked: tuple[Tensor, Tensor], section: Experts
) -> Iterator[Op]:
    """Yield the scores of all experts, and the choice of the best with their probabilities.

    Sigmoids are in fp32 (`topk_routing_with_score_function`).
    """
    if sigmoids is not None:
        each = sigmoids.num_bytes
        if logits.num_bytes != each:
            yield elementwise("router logits cast", logits.num_bytes, each)
        yield elementwise("router sigmoid", each, each, saves=(sigmoids,))
        if section.router_bias:
            yield elementwise("router bias", each, each)
    if section.router_groups is not None:
        yield from _limit_groups(sigmoids or logits, section)
    if sigmoids is None:
        yield elementwise("router top-k softmax", logits.num_bytes, _bytes(picked), saves=picked)
        return
    chosen_bytes = picked[0].num_bytes
    yield elementwise("router top-k", sigmoids.num_bytes, _bytes(picked))
    if section.router_bias:
        yield elementwise("router scores", _bytes(picked), chosen_bytes)
    yield elementwise("router normalization", chosen_bytes, chosen_bytes, saves=picked)


def _choice_gradients(
    logits: Tensor, sigmoids: Tensor | None, picked: tuple[Tensor, Tensor]
) -> Iterator[Op]:
    whole, read_bytes = logits.num_bytes, logits.num_bytes + _bytes(picked)
    if sigmoids is None:
        yield gradient("router top-k softmax", read_bytes, whole, reads=picked)
        return
    each = sigmoids.num_bytes
    yield gradient("router normalization", read_bytes, each, reads=picked)
    yield gradient("router sigmoid", 2 * each, each, reads=(sigmoids,))
    if each != whole:
        yield elementwise("router logits gradient cast", each, whole, Phase.INPUT_GRADIENT)


def _limit_groups(scores: Tensor, section: Experts) -> Iterator[Op]:
    """Yield the mask of the experts outside the best groups (`group_limited_topk`).

    A group has the sum of its best scores, top_k / group_top_k of them.
    """
    groups, group_top_k = section.router_groups or 1, section.router_group_top_k or 1
    size, rows, each = scores.element_bytes, scores.rows, scores.num_bytes
    best = rows * groups * (section.top_k // group_top_k)
    of_groups, picked = rows * groups * size, rows * group_top_k * (size + INDEX_BYTES)
    yield elementwise("best of each group", each, best * (size + INDEX_BYTES))
    yield elementwise("group scores", best * size, of_groups)
    yield elementwise("group top-k", of_groups, picked)
    yield elementwise("group mask", picked, each)
    yield elementwise("masked scores", 2 * each, each)


def _bytes(tensors: tuple[Tensor, ...]) -> int:
    return sum(tensor.num_bytes for tensor in tensors)


def _product(tape: Tape, x: Tensor, logits: Tensor) -> None:
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


@dataclass(frozen=True, slots=True)
class ExpertMlp:
    """The experts of a layer.

    Args:
        section: the scenario's model.experts.
        kernel: name of the activation.
        gated: whether the activation has a gate.
        dispatch: name of the dispatcher (the scenario's parallelism.expert_dispatch).
        overlaps_shared: as in the scenario's overlap.shared_expert.
        fp8_dispatch: as in the scenario's precision.fp8_dispatch.
        lora: adapters; None without.
    """

    section: Experts
    kernel: str
    gated: bool
    dispatch: ExpertDispatch
    overlaps_shared: bool
    fp8_dispatch: bool
    lora: Lora | None = None

    @property
    def has_adapters(self) -> bool:
        return self.lora is not None and any(map(self.lora.adapts, ("linear_fc1", "linear_fc2")))

    def capacity(self, tokens: int) -> int | None:
        section, factor = self.section, self.section.capacity_factor
        return None if factor is None else math.ceil(tokens * section.top_k / section.num * factor)

    def sent(self, tokens: int) -> int:
        """Number of rows that a rank sends to experts, padding included."""
        capacity = self.capacity(tokens)
        section = self.section
        return tokens * section.top_k if capacity is None else section.num * capacity

    def load(self, tokens: int, groups: ExpertGroups) -> ExpertLoad:
        """Return the load of a rank's experts if each rank of their mesh has `tokens` tokens."""
        mean = self.sent(tokens) * groups.tensor.num_ranks
        model = min(mean, tokens * self.section.top_k * groups.tensor.num_ranks)
        received = round(self.section.imbalance * self.sent(tokens)) * groups.tensor.num_ranks
        return ExpertLoad(self.section.num // groups.parallel.num_ranks, received, mean, model)

    def reached(self, places: int) -> float:
        """Return how many of `places` ranks or nodes a token reaches (`expected_places`)."""
        section = self.section
        groups = section.router_groups or 1, section.router_group_top_k or 1
        return expected_places(RandomChoice(section.num, section.top_k, *groups), places)


# How many ranks or nodes a token reaches, on average, if routing is uniform.
#
# A router chooses groups of experts uniformly, and then top_k different experts of these groups
# uniformly. Without limited groups, all experts are one group.


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """A choice of `top_k` of `num` experts, out of `chosen` of `groups` equal groups."""

    num: int
    top_k: int
    groups: int = 1
    chosen: int = 1

    @property
    def group_size(self) -> int:
        return self.num // self.groups


@functools.lru_cache(maxsize=1024)
def expected_places(choice: RandomChoice, places: int) -> float:
    """Return the expected number of different places of a token's experts.

    Args:
        choice: how the experts are chosen.
        places: ranks or nodes, each with an equal number of neighbouring experts. A number that
            does not divide the experts leaves the last place with fewer.

    A place is missed if none of its experts is chosen. With x of its experts in chosen groups, that
    is C(n - x, k) of C(n, k) choices, n being all experts of the chosen groups.
    """
    size = -(-choice.num // places)
    starts = range(0, choice.num, size)
    misses = (_chance_to_miss(choice, start, min(start + size, choice.num)) for start in starts)
    return len(starts) - math.fsum(misses)


def _chance_to_miss(choice: RandomChoice, start: int, end: int) -> float:
    group, k = choice.group_size, choice.top_k
    overlaps = [
        min(end, first + group) - max(start, first)
        for first in range(start // group * group, end, group)
    ]
    candidates = choice.chosen * group
    others = choice.groups - len(overlaps)
    missing = sum(
        ways * math.comb(others, choice.chosen - groups) * math.comb(candidates - experts, k)
        for (groups, experts), ways in _subsets(overlaps).items()
        if groups <= choice.chosen
    )
    return missing / (math.comb(choice.groups, choice.chosen) * math.comb(candidates, k))


def _subsets(overlaps: Sequence[int]) -> Counter[tuple[int, int]]:
    """Return the number of subsets of groups, by their number and the sum of their overlaps."""
    ways = Counter({(0, 0): 1})
    for overlap in overlaps:
        ways += Counter({(n + 1, x + overlap): count for (n, x), count in ways.items()})
    return ways


# Exchanges that send a token once to each node and rank of its experts, as nodes of a tape.
#
# Sources: DeepEP's normal kernels (deepseek-ai/DeepEP) in Megatron-LM's `_DeepepManager` and
# `_HybridEPManager` (core/transformer/moe/token_dispatcher.py, fused_a2a.py). A dispatch sends
# tokens with the indices and probabilities of their experts; a combination adds up outputs on their
# way back. The backward pass of each is the other one.

_BOOL_BYTES = 1


@dataclass(frozen=True, slots=True)
class TokenPath:
    """The way of a rank's tokens to their experts.

    Args:
        dispatcher: name of the dispatcher.
        group: all ranks of experts.
        rows: tokens that the simulated rank receives, each once.
        sent_rows: tokens that it sends to nodes, its own included, each once for each node.
        top_k: experts of a token.
        fp8: the recipe of tokens that travel in fp8; None for the compute type.
    """

    dispatcher: str
    group: Group
    rows: int
    sent_rows: int
    top_k: int
    fp8: Fp8Recipe | None

    @classmethod
    def of(cls, batch: Microbatch, mlp: ExpertMlp, groups: ExpertGroups, x: Tensor) -> Self:
        """Return the way of the tokens `x`.

        All ranks that share an expert receive its tokens. The simulated rank receives and forwards
        `imbalance` times the mean.
        """
        group = groups.parallel if groups.tensor.num_ranks == 1 else groups.both
        shares, tokens = groups.tensor.num_ranks, mlp.section.imbalance * x.rows
        # An expert that several nodes share is one place, which all of these nodes reach.
        nodes_of_expert = max(1, min(group.num_nodes, shares // group.ranks_per_node))
        nodes = mlp.reached(group.num_nodes // nodes_of_expert) * nodes_of_expert
        return cls(
            mlp.dispatch,
            group,
            round(tokens * mlp.reached(groups.parallel.num_ranks) * shares),
            round(tokens * nodes),
            mlp.section.top_k,
            recipe_of(batch) if mlp.fp8_dispatch else None,
        )

    def choose(self, tape: Tape, routing: Routing, *, informs_host: bool) -> Tensor:
        """Record the choice of the ranks of each token, and the exchange of their counts.

        Returns:
            The probabilities of each token's experts.
        """
        dense, rows = routing.probabilities, routing.probabilities.rows
        chosen = tape.tensor("dispatched choice", rows, self.top_k, FP32_BYTES)
        indices = tape.tensor("dispatched experts", rows, self.top_k, INDEX_BYTES)
        ranks_bytes, counts_bytes = _BOOL_BYTES * rows * self.group.num_ranks, 4 * dense.width
        written = chosen.num_bytes + indices.num_bytes
        counts = CollectiveKind.ALL_TO_ALL, counts_bytes, self.group
        forward = (
            elementwise("dispatch choice", dense.num_bytes, written, saves=(indices,)),
            elementwise("dispatch layout", indices.num_bytes, ranks_bytes),
            collective("dispatch notify", *counts).replace(informs_host=informs_host),
        )
        reads = (indices, *routing.saved)
        backward = gradient("dispatch choice", chosen.num_bytes, dense.num_bytes, reads=reads)
        return tape.record("dispatch choice", (dense,), chosen, forward, (backward,))

    def gather_map(
        self, tape: Tape, routing: Routing, experts: int, *, informs_host: bool
    ) -> tuple[Tensor, ...]:
        """Record the gather of the map of all tokens to experts, and the kernel that reads it.

        Returns:
            The map of the received tokens to the rank's `experts`, which is saved.
        """
        size = routing.token_map.num_bytes * self.group.num_ranks
        received = tape.tensor("received map", self.rows, experts, _BOOL_BYTES)
        scan = elementwise("dispatch scan", size, received.num_bytes, saves=(received,))
        forward = (
            collective("routing map gather", CollectiveKind.ALL_GATHER, size, self.group),
            scan.replace(informs_host=informs_host),
        )
        tape.record("routing map", (), (), forward)
        return (received,)

    def cast(self, tape: Tape, x: Tensor) -> Tensor:
        if self.fp8 is None:
            return x
        y = tape.tensor("cast tokens", x.rows, x.width)
        size, family = self.fp8.copy_bytes(x.elements), KernelFamily.CAST
        forward = elementwise("dispatch to fp8", x.num_bytes, size, family=family)
        return tape.record(forward.name, (x,), y, (forward,))

    def send(
        self,
        tape: Tape,
        x: Tensor,
        probabilities: Tensor,
        reads: tuple[Tensor, ...],
        *,
        needs_host: bool,
    ) -> tuple[Tensor, ...]:
        """Record the dispatch; return the received tokens and the probabilities of their experts.

        Args:
            tape: the tape.
            x: the rank's tokens.
            probabilities: of their experts.
            reads: saved tensors that the gradient of the probabilities reads.
            needs_host: as in `Op`.
        """
        y = tape.tensor("dispatched tokens", self.rows, x.width)
        received = tape.tensor("dispatched probabilities", self.rows, self.top_k, FP32_BYTES)
        held_bytes, of_choice = x.num_bytes + y.num_bytes, FP32_BYTES * self.top_k
        out_bytes = self._travelling_bytes(x) + of_choice + INDEX_BYTES * self.top_k
        forward = self._exchange("dispatch", out_bytes, held_bytes)
        phase, back_bytes = Phase.INPUT_GRADIENT, x.width * x.element_bytes + of_choice
        backward = self._exchange("dispatch gradient", back_bytes, held_bytes, phase)
        return tape.record(
            "dispatch",
            (x, probabilities),
            (y, received),
            (forward.replace(needs_host=needs_host),),
            (backward.replace(reads=reads),),
        )

    def map_received(
        self, tape: Tape, probabilities: Tensor, experts: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Record the map of received tokens to the rank's `experts`, from their indices.

        Returns:
            Probabilities of the experts, and the map, which is saved.
        """
        dense = tape.tensor("received probabilities", self.rows, experts, FP32_BYTES)
        received = tape.tensor("received map", self.rows, experts, _BOOL_BYTES)
        read = probabilities.num_bytes + INDEX_BYTES * self.rows * self.top_k
        written, name = dense.num_bytes + received.num_bytes, "received map"
        forward = elementwise(name, read, written, saves=(received,))
        backward = gradient(name, dense.num_bytes, probabilities.num_bytes, reads=(received,))
        tape.record(name, (probabilities,), (dense,), (forward,), (backward,))
        return dense, (received,)

    def send_back(self, tape: Tape, x: Tensor, rows: int) -> Tensor:
        """Record the combination of the outputs `x` to the sums of the rank's `rows` tokens."""
        y = tape.tensor("combination output", rows, x.width)
        held_bytes, phase = x.num_bytes + y.num_bytes, Phase.INPUT_GRADIENT
        forward = self._exchange("combination", x.width * x.element_bytes, held_bytes)
        out_bytes, name = self._travelling_bytes(x), "combination gradient"
        backward = [self._exchange(name, out_bytes, held_bytes, phase)]
        if self.fp8:
            size = y.num_bytes, self.fp8.copy_bytes(y.elements)
            cast = elementwise(f"{name} to fp8", *size, phase, family=KernelFamily.CAST)
            backward.insert(0, cast)
        return tape.record("combination", (x,), y, (forward,), backward)

    def _travelling_bytes(self, x: Tensor) -> int:
        return self.fp8.copy_bytes(x.width) if self.fp8 else x.width * x.element_bytes

    def _exchange(
        self, name: str, row_bytes: int, held_bytes: int, phase: Phase = Phase.FORWARD
    ) -> Op:
        received_bytes, sent_bytes = self.rows * row_bytes, self.sent_rows * row_bytes
        work = TokenExchange(
            CollectiveKind.ALL_TO_ALL,
            *(received_bytes, self.group, self.dispatcher, received_bytes, sent_bytes),
            self.rows,
        )
        return Op(name, work, phase, holds_bytes=held_bytes)
