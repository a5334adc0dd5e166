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
    layer = _ExpertLayer(tape, mlp, groups)
    routing = route(tape, x, mlp.num, mlp.top_k, mlp.choice, fp32=mlp.fp32_router)
    if mlp.dispatch == "all_gather":
        y = layer.all_gather_dispatch(x, routing)
    elif mlp.overlaps_shared:
        return layer.overlapping_shared(x, routing)
    else:
        y = layer.all_to_all_dispatch(x, routing)
    return layer.add_shared(x, y) if mlp.shared_ffn else y


@dataclass(frozen=True, slots=True)
class _ExpertLayer:
    """Records the parts of a mixture of experts."""

    tape: Tape
    mlp: ExpertMlp
    groups: ExpertGroups

    def all_gather_dispatch(self, x: Tensor, routing: Routing) -> Tensor:
        """All-gather the tokens; each rank permutes the tokens of its experts."""
        tape, both, size = self.tape, self.groups.both, routing.probabilities.element_bytes
        everything = all_gather(tape, x, both, "token gather")
        chances = all_gather(tape, routing.probabilities, both, "probability gather")
        load = self.mlp.load(x.rows, self.groups)
        routed, order = permute(tape, everything, chances, routing, load.rows, None)
        y = unpermute(tape, self._run_experts(routed, load), order, everything.rows)
        if both.num_ranks == 1:
            return y
        y = reduce_scatter(tape, cast(tape, y, size), both, "token reduce-scatter")
        return cast(tape, y, x.element_bytes)

    def all_to_all_dispatch(self, x: Tensor, routing: Routing) -> Tensor:
        """Exchange tokens with the ranks of their experts by all-to-alls, and back."""
        load, routed, order = self._permute_local(x, routing)
        y = self._run_received(self._dispatch(routed, load), load)
        return unpermute(self.tape, self._combine(y, routed[0]), order, x.rows)

    def overlapping_shared(self, x: Tensor, routing: Routing) -> Tensor:
        """Overlap the shared expert's products with all-to-alls; its collectives are exposed."""
        tape, mlp, tensor = self.tape, self.mlp, self.tape.microbatch.tensor
        whole = all_gather(tape, x, tensor, "shared expert gather")
        load, routed, order = self._permute_local(x, routing)
        shared_load = ExpertLoad(1, whole.rows, whole.rows, whole.rows)
        width = (1 + mlp.gated) * mlp.shared_ffn // tensor.num_ranks

        def begin() -> tuple[Tensor, ...]:
            y = grouped_linear(tape, whole, width, shared_load, "shared expert up", is_expert=False)
            return (activation(tape, y, f"shared {mlp.kernel}", gated=mlp.gated),)

        def end() -> tuple[Tensor, ...]:
            down = "shared expert down"
            return (grouped_linear(tape, hidden, x.width, shared_load, down, is_expert=False),)

        name = "dispatch and shared expert"
        (*received, hidden) = overlap_exchange(
            tape, lambda: self._dispatch(routed, load), begin, name
        )
        y = self._run_received((received[0], received[1]), load)
        name = "combination and shared expert"
        combined, shared = overlap_exchange(tape, lambda: (self._combine(y, routed[0]),), end, name)
        y = unpermute(tape, combined, order, x.rows)
        shared = reduce_scatter(tape, shared, tensor, "shared expert reduce-scatter")
        return self._sum(self._gate(x, shared), y)

    def add_shared(self, x: Tensor, routed: Tensor) -> Tensor:
        """Add the shared expert, an MLP over the tensor-parallel group."""
        tape, mlp, label = self.tape, self.mlp, "shared expert"
        width = (1 + mlp.gated) * mlp.shared_ffn
        with tape.region(SHARED_EXPERTS):
            y = column_linear(tape, x, width, "shared expert up", label, bias=False)
            y = activation(tape, y, f"shared {mlp.kernel}", gated=mlp.gated)
            y = self._gate(x, row_linear(tape, y, "shared expert down", label, bias=False))
        return self._sum(y, routed)

    def _permute_local(
        self, x: Tensor, routing: Routing
    ) -> tuple[ExpertLoad, RoutedTokens, Tensor]:
        """Sort the rank's tokens by expert. With a capacity, ranks exchange no counts."""
        mlp, both = self.mlp, self.groups.both
        alone = both.num_ranks == 1 or mlp.capacity_factor is not None
        counts, rows = None if alone else both, mlp.sent(x.rows)
        routed, order = permute(self.tape, x, routing.probabilities, routing, rows, counts)
        return mlp.load(x.rows, self.groups), routed, order

    def _dispatch(self, routed: RoutedTokens, load: ExpertLoad) -> RoutedTokens:
        rows, group = load.rows // self.groups.tensor.num_ranks, self.groups.parallel
        tokens, chances = routed
        tokens = all_to_all(self.tape, tokens, group, "dispatch", rows)
        return tokens, all_to_all(self.tape, chances, group, "probability dispatch", rows)

    def _combine(self, y: Tensor, sent: Tensor) -> Tensor:
        return all_to_all(self.tape, y, self.groups.parallel, "combination", sent.rows)

    def _run_received(self, received: RoutedTokens, load: ExpertLoad) -> Tensor:
        """Run the experts on received tokens; return the rows to send back."""
        tape, tensor = self.tape, self.groups.tensor
        tokens, chances = received
        if tensor.num_ranks > 1:
            tokens = all_gather(tape, tokens, tensor, "expert gather")
            chances = all_gather(tape, chances, tensor, "expert probability gather")
        if load.experts > 1:
            tokens, chances = sort_chunks(tape, (tokens, chances), "sort by expert")
        y = self._run_experts((tokens, chances), load)
        if load.experts > 1:
            (y,) = sort_chunks(tape, (y,), "sort by rank")
        if tensor.num_ranks == 1:
            return y
        y = cast(tape, y, chances.element_bytes)
        y = reduce_scatter(tape, y, tensor, "expert reduce-scatter")
        return cast(tape, y, tokens.element_bytes)

    def _run_experts(self, routed: RoutedTokens, load: ExpertLoad) -> Tensor:
        """Run the MLPs of this rank's experts."""
        tape, mlp, rows = self.tape, self.mlp, load.rows
        if fp8 := recipe_or_none(tape.microbatch):
            load = load.padded(fp8.row_multiple, has_capacity=mlp.capacity_factor is not None)
        tokens, chances = routed
        tokens = pad_rows(tape, tokens, load.rows, "experts padding")
        chances = pad_rows(tape, chances, load.rows, "experts probability padding")
        width = (1 + mlp.gated) * mlp.ffn // self.groups.tensor.num_ranks
        y = grouped_linear(tape, tokens, width, load, "experts up")
        with tape.region(MOE_ACT) as region:
            y = weighted_activation(tape, y, chances, f"experts {mlp.kernel}", gated=mlp.gated)
        y = region.discarded_after = grouped_linear(tape, y, tokens.width, load, "experts down")
        return pad_rows(tape, y, rows, "experts padding dropped")

    def _gate(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply `y` by a sigmoid of each token, if there is a gate."""
        if not self.mlp.shared_gate:
            return y
        tape, input_bytes, size = self.tape, x.num_bytes, y.num_bytes
        z = tape.tensor("gated shared expert", y.rows, y.width)
        gate = tape.tensor("shared gate", x.rows, 1)
        forward = (
            elementwise("shared gate", input_bytes, gate.num_bytes, saves=(x, gate)),
            elementwise("shared gate product", size, z.num_bytes, saves=(y,)),
        )
        name, sizes = "shared gate weight gradient", (input_bytes, x.width * x.element_bytes)
        backward = (
            gradient("shared gate product", input_bytes + size, size, reads=(y, gate)),
            gradient("shared gate", gate.num_bytes, input_bytes, reads=(gate,)),
            elementwise(name, *sizes, Phase.WEIGHT_GRADIENT, reads=(x,)),
        )
        weight = Parameter(x.width, is_whole=True)
        tape.record("shared gate", (x, y), (z,), forward, backward, parameters=(weight,))
        return z

    def _sum(self, shared: Tensor, routed: Tensor) -> Tensor:
        y = self.tape.tensor("experts output", routed.rows, routed.width)
        op = elementwise("shared expert sum", 2 * y.num_bytes, y.num_bytes)
        self.tape.record(op.name, (shared, routed), (y,), (op,))
        return y
