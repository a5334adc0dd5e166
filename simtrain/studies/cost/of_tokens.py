"""What a thousand million tokens cost, in proportion: to compare iterations with each other."""

from __future__ import annotations

from simtrain.hardware.profile import HardwareProfile, RunningCosts
from simtrain.units import DAY_S, HOUR_S

_TOKENS = 10**9
PRICE_COLUMN = "price_per_1e9_tokens"
COST_COLUMNS = (
    "days_per_1e9_tokens",
    "gpu_hours_per_1e9_tokens",
    PRICE_COLUMN,
    "gpu_energy_j_per_1e9_tokens",
    "node_energy_j_per_1e9_tokens",
)


def cost_of_tokens(
    num_gpus: int, tokens_per_s: float, profile: HardwareProfile
) -> dict[str, float | None]:
    """The figures of `COST_COLUMNS`; None for what the profile lacks.

    The price is in the profile's currency. Energy is at maximum power.
    """
    costs = profile.running_costs or RunningCosts()
    price, gpu, node = costs.price, costs.gpu_power, costs.node_power
    time_s = _TOKENS / tokens_per_s
    gpu_hours = num_gpus * time_s / HOUR_S
    num_nodes = num_gpus / profile.cluster.gpus_per_node.value
    figures = (
        time_s / DAY_S,
        gpu_hours,
        price.value.per_hour * gpu_hours if price else None,
        gpu.value * num_gpus * time_s if gpu else None,
        node.value * num_nodes * time_s if node else None,
    )
    return dict(zip(COST_COLUMNS, figures, strict=True))
