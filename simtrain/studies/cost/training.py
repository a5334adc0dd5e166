"""Cost of training on a number of tokens, from the time of one iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from simtrain.base.entry import Entry
from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.evidence import Evidence, evidence_of
from simtrain.hardware.interval import Interval
from simtrain.hardware.profile import HardwareProfile, RunningCosts
from simtrain.iteration.report.interval import predicted_interval
from simtrain.iteration.report.result import Result, check_is_result
from simtrain.scenario import Scenario
from simtrain.studies.cost.limits import check_goodput, read_price, read_tokens
from simtrain.units import DAY_S, HOUR_S, Price, four_digits


@dataclass(frozen=True, slots=True)
class TrainingCost(PlainData):
    """Cost of training on `num_tokens` in whole iterations.

    Args:
        scenario: name of the scenario.
        cluster: name or path of the hardware profile.
        num_gpus: number of GPUs.
        num_tokens: number of training tokens.
        num_iterations: number of iterations.
        iteration_time_s: time of one.
        goodput: share of the training time that iterations take; failures, checkpoints and
            evaluations take the rest.
        time_s: the training time.
        gpu_hours: GPUs times the training time.
        currency: of the price; None without one.
        price: total price in `currency`; None if the profile has no price.
        gpu_energy_j: energy of the GPU boards; None if unknown.
        node_energy_j: energy of the GPUs' share of their nodes; None if unknown.
        sources: source of each profile entry that was used.
        missing: profile entries that are missing.
        evidence: what predictions with the profile rest on.
        interval: where the measured time of an iteration lies.
    """

    json_fields: ClassVar = keys(
        """scenario cluster num_gpus num_tokens num_iterations iteration_time_s
        interval_s=interval goodput time_s
        gpu_hours price currency gpu_energy_j node_energy_j sources missing evidence
        calibrated=evidence.judged assumptions"""
    )

    scenario: str | None
    cluster: str
    num_gpus: int
    num_tokens: int
    num_iterations: int
    iteration_time_s: float
    goodput: float
    time_s: float
    gpu_hours: float
    price: float | None
    currency: str | None
    gpu_energy_j: float | None
    node_energy_j: float | None
    sources: dict[str, str]
    missing: tuple[str, ...]
    evidence: Evidence
    interval: Interval

    @property
    def assumptions(self) -> tuple[str, str]:
        """What the cost takes for granted, in sentences."""
        return assumptions(self.goodput)

    def __repr__(self) -> str:
        price = "" if self.price is None else f", {self.price:,.0f} {self.currency}"
        figures = f"{four_digits(self.time_s / DAY_S)} days, {self.gpu_hours:,.0f} GPU-hours{price}"
        return f"<TrainingCost {self.scenario or 'unnamed'}: {figures}>"


@dataclass(frozen=True, slots=True)
class TrainingCosts(PlainData):
    """Costs of several scenarios that train on the same tokens.

    Args:
        num_tokens: number of training tokens.
        goodput: share of the training time spent in iterations.
        costs: one for each scenario.
    """

    num_tokens: int
    goodput: float
    costs: Sequence[TrainingCost]


def assumptions(goodput: float) -> tuple[str, str]:
    """What a cost takes for granted, in sentences."""
    rest = (
        "failures, checkpoints and evaluations are excluded."
        if goodput == 1
        else f"with a goodput of {goodput:g}, failures, checkpoints and evaluations take "
        f"{100 * (1 - goodput):.3g} % of the training time."
    )
    return (
        f"Every iteration takes the simulated time; {rest}",
        "Energy is maximum power times the training time, an upper bound.",
    )


def cost(
    result: Result,
    tokens: int | str,
    *,
    goodput: float = 1.0,
    price: str | None = None,
) -> TrainingCost:
    """Compute days, GPU-hours, price and energy of a training with the iterations of `result`.

    Args:
        result: a result of `simulate`.
        tokens: number of training tokens: 300_000_000_000 or "300B".
        goodput: share of the training time that iterations take, above 0 and at most 1.
        price: price of a GPU, such as "2.5 USD/h", instead of the profile's.

    Raises:
        InputError: an argument is invalid.
    """
    check_is_result(result)
    return training_cost(
        result.scenario,
        result.profile,
        result.iteration_time_s,
        read_tokens(str(tokens)),
        extrapolated=result.extrapolated_compute,
        goodput=goodput,
        price_per_hour=None if price is None else read_price(price),
    )


def training_cost(
    scenario: Scenario,
    profile: HardwareProfile,
    iteration_time_s: float,
    num_tokens: int,
    *,
    extrapolated: float = 0.0,
    goodput: float = 1.0,
    price_per_hour: Price | None = None,
) -> TrainingCost:
    """Compute the cost of `num_tokens` from the simulated iteration time.

    Args:
        extrapolated: share of the kernel time for shapes outside the fitted range, which widens the
            interval.
        goodput: share of the training time that iterations take, above 0 and at most 1.
        price_per_hour: price of a GPU, instead of the profile's.

    Raises:
        InputError: a goodput out of its range.
    """
    check_goodput(goodput)
    costs = profile.running_costs or RunningCosts()
    if price_per_hour is not None:
        entry = Entry[Price](value=price_per_hour, source="given for this estimate")
        costs = costs.model_copy(update={"price": entry})
    price, gpu, node = costs.price, costs.gpu_power, costs.node_power
    num_iterations = -(-num_tokens // (scenario.batch.global_ * scenario.model.seq_length))
    time_s = num_iterations * iteration_time_s / goodput
    gpu_s = scenario.num_gpus * time_s
    num_nodes = scenario.num_gpus / profile.cluster.gpus_per_node.value
    entries = {name: getattr(costs, name) for name in RunningCosts.model_fields}
    sources = {name: entry.source for name, entry in entries.items() if entry is not None}
    return TrainingCost(
        scenario=scenario.name,
        cluster=scenario.cluster,
        num_gpus=scenario.num_gpus,
        num_tokens=num_tokens,
        num_iterations=num_iterations,
        iteration_time_s=iteration_time_s,
        goodput=goodput,
        time_s=time_s,
        gpu_hours=gpu_s / HOUR_S,
        price=price.value.per_hour * gpu_s / HOUR_S if price else None,
        currency=price.value.currency if price else None,
        gpu_energy_j=gpu.value * gpu_s if gpu else None,
        node_energy_j=node.value * num_nodes * time_s if node else None,
        sources=sources,
        missing=tuple(name for name in entries if name not in sources),
        evidence=evidence_of(profile, scenario.cluster, scenario.software.stack),
        interval=predicted_interval(scenario, profile, iteration_time_s, extrapolated),
    )
