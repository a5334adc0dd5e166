"""From the time of an iteration to what training on a number of tokens costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from simtrain.hardware.profile import HardwareProfile, RunningCosts
from simtrain.scenario import Scenario

HOUR_S = 3600
ASSUMPTIONS = (
    "Every iteration takes as long as the simulated one: no failures, checkpoints or evaluations.",
    "Energy is power at its most times the time, an upper bound.",
)


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """What training on `num_tokens` costs, in whole iterations.

    `price` is in `currency`. `gpu_energy_j` is that of the GPUs' boards, `node_energy_j` that of
    these GPUs' share of their nodes. What the profile does not say is None, and the entries that
    it lacks are `missing`; `sources` has those of the others. `calibrated` is the profile's.
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
    """What `num_tokens` cost where an iteration of the scenario takes `iteration_time_s`."""
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
