"""The experts of a layer, and how many tokens they receive."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simtrain.scenario.dispatchers import DEFAULT
from simtrain.workload.blocks.expert_places import RandomChoice, expected_places
from simtrain.workload.blocks.grouped import ExpertLoad
from simtrain.workload.blocks.router import OF_CHOSEN, ExpertChoice
from simtrain.workload.tape import ExpertGroups


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
        dispatch: name of the dispatcher (the scenario's parallelism.expert_dispatch).
        overlaps_shared: as in the scenario's overlap.shared_expert.
        fp8_dispatch: as in the scenario's precision.fp8_dispatch.
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
    dispatch: str = DEFAULT.name
    overlaps_shared: bool = False
    fp8_dispatch: bool = False

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

    def reached(self, places: int) -> float:
        """Return how many of `places` ranks or nodes a token reaches (`expected_places`)."""
        groups, chosen = self.choice.groups or 1, self.choice.group_top_k or 1
        return expected_places(RandomChoice(self.num, self.top_k, groups, chosen), places)
