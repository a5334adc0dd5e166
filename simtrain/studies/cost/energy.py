"""Energy of a training from what its GPUs do: busy, waiting for communication, idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simtrain.base.entry import Entry
from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.profile import HardwareProfile, RunningCosts

KWH_J = 3.6e6
_STATES = {
    "gpu_busy_power": ("compute", "recompute", "optimizer"),
    "gpu_waiting_power": (
        *("tensor_communication", "pipeline_communication"),
        *("data_communication", "host_copies"),
    ),
    "gpu_idle_power": ("launch", "bubble"),
}
"""Causes of a breakdown during which a GPU draws each power."""


@dataclass(frozen=True, slots=True)
class Energy(PlainData):
    """Energy of a site for a training, in kWh.

    Args:
        mean: from the powers of what GPUs do, and of hosts and network.
        p5, p95: with the ends of the 90 % interval of the time.
        nameplate: maximum power of the nodes times the time, an upper bound; None if unknown.
        busy, waiting: share of the training in which a GPU computes, or waits for communication.
    """

    json_fields: ClassVar = keys("mean p5 p95 nameplate busy_share=busy waiting_share=waiting")

    mean: float
    p5: float
    p95: float
    nameplate: float | None
    busy: float
    waiting: float


def energy_of(
    profile: HardwareProfile,
    breakdown_s: Mapping[str, float] | None,
    num_gpus: int,
    time_s: float,
    goodput: float,
    ends: tuple[float, float],
    pue: float,
    nameplate_kwh: float | None,
) -> Energy | None:
    """Return the energy of a training; None without a breakdown, or if the profile lacks a power.

    Outside iterations GPUs are idle. Hosts, fans and, on several nodes, the network draw the same
    power all the time.

    Args:
        profile: of the cluster.
        breakdown_s: seconds of an iteration by cause.
        num_gpus: GPUs of the training.
        time_s: the whole time.
        goodput: share of the time that iterations take.
        ends: of the 90 % interval of the time, relative to it.
        pue: energy of the site over that of its nodes.
        nameplate_kwh: energy of the site at the maximum power of its nodes; None if unknown.
    """
    costs = profile.running_costs or RunningCosts()
    powers: dict[str, Entry[float] | None] = {name: getattr(costs, name) for name in _STATES}
    if breakdown_s is None or costs.host_power is None or None in powers.values():
        return None
    iteration_s = sum(breakdown_s.values())
    shares = {
        name: goodput * sum(breakdown_s.get(cause, 0.0) for cause in causes) / iteration_s
        for name, causes in _STATES.items()
    }
    shares["gpu_idle_power"] += 1 - goodput
    num_nodes = num_gpus / profile.cluster.gpus_per_node.value
    power_w = num_gpus * sum(
        shares[name] * entry.value for name, entry in powers.items() if entry is not None
    )
    network = costs.network_power if num_nodes > 1 else None
    for entry in (costs.host_power, costs.fan_power, network):
        power_w += num_nodes * entry.value if entry else 0.0
    mean = power_w * time_s * pue / KWH_J
    return Energy(
        mean=mean,
        p5=mean * ends[0],
        p95=mean * ends[1],
        nameplate=nameplate_kwh,
        busy=shares["gpu_busy_power"],
        waiting=shares["gpu_waiting_power"],
    )
