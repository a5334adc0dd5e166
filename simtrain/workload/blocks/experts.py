"""Mixture of experts instead of an MLP: router, dispatch, grouped products, combination.

Source: Megatron-LM's `MoELayer` with `TopKRouter`, `MoEAlltoAllTokenDispatcher` or
`MoEAllGatherTokenDispatcher`, `TEGroupedMLP` and `SharedExpertMLP` (core/transformer/moe). Tokens
are dispatched with their probabilities, and the activation multiplies by the probability.

Experts have another mesh (`Microbatch.experts`). The simulated rank is the one with the most
tokens: `imbalance` times the average, spread evenly over its experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from simtrain.mesh import Group
from simtrain.workload.blocks.activation import activation
from simtrain.workload.blocks.dispatch import RoutedTokens, cast, permute, sort_chunks, unpermute
from simtrain.workload.blocks.exchange import all_gather, all_to_all, reduce_scatter
from simtrain.workload.blocks.grouped import (
    ExpertLoad,
    grouped_linear,
    pad_rows,
    weighted_activation,
)
from simtrain.workload.blocks.linear import column_linear, row_linear
from simtrain.workload.blocks.overlap import overlap_exchange
from simtrain.workload.blocks.router import OF_CHOSEN, ExpertChoice, Routing, route
from simtrain.workload.fp8 import recipe_or_none
from simtrain.workload.ops import Phase, Tensor, elementwise, gradient
from simtrain.workload.tape import ExpertGroups, Parameter, Tape

MOE_ACT, SHARED_EXPERTS = "moe_act", "shared_experts"
"""Names of regions: the activation of routed experts, and the shared expert."""


@dataclass(frozen=True, slots=True)
class ExpertMlp:
    """The experts of a layer.

    Args:
        num, top_k, ffn, shared_ffn, shared_gate, capacity_factor, imbalance: as in the scenario's
            model.experts.
        kernel: name of the activation.
        gated: whether the activation has a gate.
        fp32_router: the router's product writes fp32.
        choice: how the router chooses experts.
        dispatch: as in the scenario's parallelism.expert_dispatch.
        overlaps_shared: as in the scenario's overlap.shared_expert.
    """

    num: int
    top_k: int
    ffn: int
    kernel: str
    gated: bool
    shared_ffn: int = 0
    shared_gate: bool = False
    capacity_factor: float | None = None
    imbalance: float = 1.0
    fp32_router: bool = False
    choice: ExpertChoice = OF_CHOSEN
    dispatch: Literal["all_to_all", "all_gather"] = "all_to_all"
    overlaps_shared: bool = False

    def capacity(self, tokens: int) -> int | None:
        """Capacity of an expert for tokens of one rank (`get_capacity`); None without capacity."""
        if self.capacity_factor is None:
            return None
        return math.ceil(tokens * self.top_k / self.num * self.capacity_factor)

    def sent(self, tokens: int) -> int:
        """Number of rows that a rank sends to experts, padding included."""
        capacity = self.capacity(tokens)
        return tokens * self.top_k if capacity is None else self.num * capacity

    def load(self, tokens: int, groups: ExpertGroups) -> ExpertLoad:
        """Return the load of a rank's experts if each rank of their mesh has `tokens` tokens."""
        mean = self.sent(tokens) * groups.tensor.num_ranks
        model = min(mean, tokens * self.top_k * groups.tensor.num_ranks)
        received = round(self.imbalance * self.sent(tokens)) * groups.tensor.num_ranks
        return ExpertLoad(self.num // groups.parallel.num_ranks, received, mean, model)


def experts(tape: Tape, x: Tensor, mlp: ExpertMlp) -> Tensor:
    """Record a mixture of experts, with the shared expert if there is one.

    Raises:
        ValueError: the microbatch has no expert groups.
    """
    groups = tape.microbatch.experts
    if groups is None:
        raise ValueError("experts need a scenario with model.experts")
    routing = route(tape, x, mlp.num, mlp.top_k, mlp.choice, fp32=mlp.fp32_router)
    if mlp.dispatch == "all_gather":
        y = _all_gather_dispatch(tape, x, routing, mlp, groups)
    elif mlp.overlaps_shared:
        return _overlapping_shared(tape, x, routing, mlp, groups)
    else:
        y = _all_to_all_dispatch(tape, x, routing, mlp, groups)
    if mlp.shared_ffn:
        with tape.region(SHARED_EXPERTS):
            shared = _gate(tape, x, _shared(tape, x, mlp), mlp)
        y = _sum(tape, shared, y)
    return y


def _all_gather_dispatch(
    tape: Tape, x: Tensor, routing: Routing, mlp: ExpertMlp, groups: ExpertGroups
) -> Tensor:
    """All-gather the tokens; each rank permutes the tokens of its experts."""
    both, size = groups.both, routing.probabilities.element_bytes
    everything = all_gather(tape, x, both, "token gather")
    chances = all_gather(tape, routing.probabilities, both, "probability gather")
    load = mlp.load(x.rows, groups)
    routed, order = permute(tape, everything, chances, routing, load.rows, None)
    y = unpermute(tape, _run_experts(tape, routed, load, mlp, groups), order, everything.rows)
    if both.num_ranks == 1:
        return y
    y = reduce_scatter(tape, cast(tape, y, size), both, "token reduce-scatter")
    return cast(tape, y, x.element_bytes)


def _all_to_all_dispatch(
    tape: Tape, x: Tensor, routing: Routing, mlp: ExpertMlp, groups: ExpertGroups
) -> Tensor:
    """Exchange tokens with the ranks of their experts by all-to-alls, and back."""
    load, routed, order = _permute_local(tape, x, routing, mlp, groups)
    received = _dispatch(tape, routed, load, groups)
    y = _run_received(tape, received, load, mlp, groups)
    return unpermute(tape, _combine(tape, y, routed[0], groups), order, x.rows)


def _overlapping_shared(
    tape: Tape, x: Tensor, routing: Routing, mlp: ExpertMlp, groups: ExpertGroups
) -> Tensor:
    """Overlap the shared expert's products with the all-to-alls; its collectives are exposed."""
    tensor = tape.microbatch.tensor
    whole = all_gather(tape, x, tensor, "shared expert gather")
    load, routed, order = _permute_local(tape, x, routing, mlp, groups)
    one = ExpertLoad(1, whole.rows, whole.rows, whole.rows)
    width = (1 + mlp.gated) * mlp.shared_ffn // tensor.num_ranks

    def begin() -> tuple[Tensor, ...]:
        y = grouped_linear(tape, whole, width, one, "shared expert up", is_expert=False)
        return (activation(tape, y, f"shared {mlp.kernel}", gated=mlp.gated),)

    def end() -> tuple[Tensor, ...]:
        down = "shared expert down"
        return (grouped_linear(tape, hidden, x.width, one, down, is_expert=False),)

    name = "dispatch and shared expert"
    (*received, hidden) = overlap_exchange(
        tape, lambda: _dispatch(tape, routed, load, groups), begin, name
    )
    y = _run_received(tape, (received[0], received[1]), load, mlp, groups)
    name = "combination and shared expert"
    combined, shared = overlap_exchange(
        tape, lambda: (_combine(tape, y, routed[0], groups),), end, name
    )
    y = unpermute(tape, combined, order, x.rows)
    shared = reduce_scatter(tape, shared, tensor, "shared expert reduce-scatter")
    return _sum(tape, _gate(tape, x, shared, mlp), y)


def _permute_local(
    tape: Tape, x: Tensor, routing: Routing, mlp: ExpertMlp, groups: ExpertGroups
) -> tuple[ExpertLoad, RoutedTokens, Tensor]:
    """Sort the rank's tokens by expert. With a capacity, ranks exchange no counts."""
    alone = groups.both.num_ranks == 1 or mlp.capacity_factor is not None
    counts = None if alone else groups.both
    rows = mlp.sent(x.rows)
    routed, order = permute(tape, x, routing.probabilities, routing, rows, counts)
    return mlp.load(x.rows, groups), routed, order


def _dispatch(
    tape: Tape, routed: RoutedTokens, load: ExpertLoad, groups: ExpertGroups
) -> tuple[Tensor, Tensor]:
    rows = load.rows // groups.tensor.num_ranks
    tokens, chances = (
        all_to_all(tape, one, groups.parallel, name, rows)
        for one, name in zip(routed, ("dispatch", "probability dispatch"), strict=True)
    )
    return tokens, chances


def _combine(tape: Tape, y: Tensor, sent: Tensor, groups: ExpertGroups) -> Tensor:
    return all_to_all(tape, y, groups.parallel, "combination", sent.rows)


def _run_received(
    tape: Tape, received: RoutedTokens, load: ExpertLoad, mlp: ExpertMlp, groups: ExpertGroups
) -> Tensor:
    """Run the experts on received tokens; return the rows to send back."""
    tokens, chances = received
    tensor: Group = groups.tensor
    if tensor.num_ranks > 1:
        tokens = all_gather(tape, tokens, tensor, "expert gather")
        chances = all_gather(tape, chances, tensor, "expert probability gather")
    if load.experts > 1:
        tokens, chances = sort_chunks(tape, (tokens, chances), "sort by expert")
    y = _run_experts(tape, (tokens, chances), load, mlp, groups)
    if load.experts > 1:
        (y,) = sort_chunks(tape, (y,), "sort by rank")
    if tensor.num_ranks == 1:
        return y
    y = cast(tape, y, chances.element_bytes)
    y = reduce_scatter(tape, y, tensor, "expert reduce-scatter")
    return cast(tape, y, tokens.element_bytes)


def _run_experts(
    tape: Tape, routed: RoutedTokens, load: ExpertLoad, mlp: ExpertMlp, groups: ExpertGroups
) -> Tensor:
    """Run the MLPs of this rank's experts."""
    rows = load.rows
    if fp8 := recipe_or_none(tape.microbatch):
        load = load.padded(fp8.row_multiple, has_capacity=mlp.capacity_factor is not None)
    tokens, chances = routed
    tokens = pad_rows(tape, tokens, load.rows, "experts padding")
    chances = pad_rows(tape, chances, load.rows, "experts probability padding")
    width = (1 + mlp.gated) * mlp.ffn // groups.tensor.num_ranks
    y = grouped_linear(tape, tokens, width, load, "experts up")
    with tape.region(MOE_ACT) as region:
        y = weighted_activation(tape, y, chances, f"experts {mlp.kernel}", gated=mlp.gated)
    y = region.discarded_after = grouped_linear(tape, y, tokens.width, load, "experts down")
    return pad_rows(tape, y, rows, "experts padding dropped")


def _shared(tape: Tape, x: Tensor, mlp: ExpertMlp) -> Tensor:
    """Run the shared expert, an MLP over the tensor-parallel group."""
    width = (1 + mlp.gated) * mlp.shared_ffn
    y = column_linear(tape, x, width, "shared expert up", "shared expert", bias=False)
    y = activation(tape, y, f"shared {mlp.kernel}", gated=mlp.gated)
    return row_linear(tape, y, "shared expert down", "shared expert", bias=False)


def _gate(tape: Tape, x: Tensor, y: Tensor, mlp: ExpertMlp) -> Tensor:
    """Multiply `y` by a sigmoid of each token, if there is a gate."""
    if not mlp.shared_gate:
        return y
    z = tape.tensor("gated shared expert", y.rows, y.width)
    gate = tape.tensor("shared gate", x.rows, 1)
    given, size, weight_bytes = x.num_bytes, y.num_bytes, x.width * x.element_bytes
    forward = (
        elementwise("shared gate", given, gate.num_bytes, saves=(x, gate)),
        elementwise("shared gate product", size, z.num_bytes, saves=(y,)),
    )
    name, phase = "shared gate weight gradient", Phase.WEIGHT_GRADIENT
    backward = (
        gradient("shared gate product", given + size, size, reads=(y, gate)),
        gradient("shared gate", gate.num_bytes, given, reads=(gate,)),
        elementwise(name, given, weight_bytes, phase, reads=(x,)),
    )
    weight = Parameter(x.width, is_whole=True)
    tape.record("shared gate", (x, y), (z,), forward, backward, parameters=(weight,))
    return z


def _sum(tape: Tape, shared: Tensor, routed: Tensor) -> Tensor:
    y = tape.tensor("experts output", routed.rows, routed.width)
    op = elementwise("shared expert sum", 2 * y.num_bytes, y.num_bytes)
    tape.record(op.name, (shared, routed), (y,), (op,))
    return y
