"""The experts of a layer, and how many tokens they receive."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from simtrain.scenario.dispatchers import DEFAULT
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


# ------------------------------------------------------------------------------
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
        """Experts of a group."""
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
    """Return the chance that none of the experts from `start` to `end` is chosen."""
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
