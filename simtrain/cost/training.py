"""Cost of training on a number of tokens, from the time of one iteration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from simtrain.hardware.profile import HardwareProfile, RunningCosts
from simtrain.scenario import Scenario

HOUR_S = 3600
ASSUMPTIONS = (
    "Every iteration takes the simulated time; failures, checkpoints and evaluations are excluded.",
    "Energy is maximum power times the training time, an upper bound.",
)


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Cost of training on `num_tokens` in whole iterations.

    Args:
        price: total price in `currency`; None if the profile has no price.
        gpu_energy_j: energy of the GPU boards; None if unknown.
        node_energy_j: energy of the GPUs' share of their nodes; None if unknown.
        sources: source of each profile entry that was used.
        missing: profile entries that are missing.
        calibrated: whether the profile is calibrated.
    """

    scenario: str | None
    cluster: str
    num_gpus: int
    num_tokens: int
    num_iterations: int
    iteration_time_s: float
    time_s: float
    gpu_hours: float
    price: float | None
    currency: str | None
    gpu_energy_j: float | None
    node_energy_j: float | None
    sources: dict[str, str]
    missing: tuple[str, ...]
    calibrated: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data, in full precision."""
        return asdict(self) | {"missing": list(self.missing), "assumptions": list(ASSUMPTIONS)}


def training_cost(
    scenario: Scenario, profile: HardwareProfile, iteration_time_s: float, num_tokens: int
) -> TrainingCost:
    """Compute the cost of `num_tokens` from the simulated iteration time."""
    costs = profile.running_costs or RunningCosts()
    price, gpu, node = costs.price, costs.gpu_power, costs.node_power
    num_iterations = -(-num_tokens // (scenario.batch.global_ * scenario.model.seq_length))
    time_s = num_iterations * iteration_time_s
    gpu_s = scenario.num_gpus * time_s
    num_nodes = scenario.num_gpus / profile.cluster.gpus_per_node.value
    sources = dict(_sources(costs))
    return TrainingCost(
        scenario=scenario.name,
        cluster=profile.name,
        num_gpus=scenario.num_gpus,
        num_tokens=num_tokens,
        num_iterations=num_iterations,
        iteration_time_s=iteration_time_s,
        time_s=time_s,
        gpu_hours=gpu_s / HOUR_S,
        price=price.value.per_hour * gpu_s / HOUR_S if price else None,
        currency=price.value.currency if price else None,
        gpu_energy_j=gpu.value * gpu_s if gpu else None,
        node_energy_j=node.value * num_nodes * time_s if node else None,
        sources=sources,
        missing=tuple(name for name in RunningCosts.model_fields if name not in sources),
        calibrated=profile.calibrated,
    )


def _sources(costs: RunningCosts) -> Iterator[tuple[str, str]]:
    for name in RunningCosts.model_fields:
        if (entry := getattr(costs, name)) is not None:
            yield name, entry.source
