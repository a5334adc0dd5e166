"""Cost of training on a number of tokens, from the time of one iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.request import takes
from simtrain.hardware.evidence import Evidence
from simtrain.hardware.interval import Interval
from simtrain.hardware.profile import HardwareProfile, RunningCosts
from simtrain.iteration.report.interval import evidence_for, predicted_interval
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.cost.energy import KWH_J, Energy, energy_of
from simtrain.studies.cost.terms import Terms, prices_by_contract
from simtrain.studies.cost_request import Contract, CostRequest
from simtrain.studies.goodput.of_cost import goodput_of
from simtrain.studies.simulation import result_of
from simtrain.studies.variation.run import mean_time_s
from simtrain.units import DAY_S, HOUR_S, four_digits


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
        failures: profile whose failures the goodput was drawn with; None if it was given.
        time_s: the training time.
        gpu_hours: GPUs times the training time.
        contract: whose price counts; None if the price is given for this estimate.
        currency: of the price; None without one.
        price: total price in `currency`; None if the profile has no price.
        price_by_contract: total price with each contract that the profile has a price of, in the
            currency of its entry.
        gpu_energy_j: energy of the GPU boards; None if unknown.
        node_energy_j: energy of the GPUs' share of their nodes; None if unknown.
        pue: energy of the site over that of its nodes.
        site_energy_kwh: energy of the site, `node_energy_j` times `pue`; None if unknown.
        energy: energy of the site from what GPUs do; None if the profile lacks a power.
        electricity_cost: price of the site's energy; None if it is not counted or unknown.
        electricity_currency: of `electricity_cost`; None without a price of electricity.
        co2_t: emissions of the site's energy, in tonnes; None if they are not counted or unknown.
        sources: source of each profile entry that was used.
        missing: profile entries that are missing.
        evidence: what predictions with the profile rest on.
        interval: where the measured time of an iteration lies.
    """

    json_fields: ClassVar = keys(
        """scenario cluster num_gpus num_tokens num_iterations iteration_time_s
        interval_s=interval goodput failures time_s time_interval_s
        gpu_hours contract price price_interval currency price_by_contract
        gpu_energy_j node_energy_j pue site_energy_kwh energy_kwh=energy
        electricity_cost electricity_currency
        co2_t sources missing evidence calibrated=evidence.judged assumptions"""
    )

    scenario: str | None
    cluster: str
    num_gpus: int
    num_tokens: int
    num_iterations: int
    iteration_time_s: float
    goodput: float
    failures: str | None
    time_s: float
    gpu_hours: float
    contract: Contract | None
    price: float | None
    currency: str | None
    price_by_contract: dict[Contract, float]
    gpu_energy_j: float | None
    node_energy_j: float | None
    pue: float
    site_energy_kwh: float | None
    energy: Energy | None
    electricity_cost: float | None
    electricity_currency: str | None
    co2_t: float | None
    sources: dict[str, str]
    missing: tuple[str, ...]
    evidence: Evidence
    interval: Interval

    @property
    def time_interval_s(self) -> dict[str, float]:
        """The ends of the 90 % interval of the training time."""
        return self._interval_of(self.time_s)

    @property
    def price_interval(self) -> dict[str, float] | None:
        """The ends of the 90 % interval of the price; None without one."""
        return None if self.price is None else self._interval_of(self.price)

    def _interval_of(self, amount: float) -> dict[str, float]:
        """Return the 90 % interval of an amount in proportion to the iteration time."""
        ends_s = {"p5": self.interval.p5_s, "p95": self.interval.p95_s}
        return {name: amount * end_s / self.iteration_time_s for name, end_s in ends_s.items()}

    @property
    def assumptions(self) -> tuple[str, str]:
        """What the cost takes for granted, in sentences."""
        from_powers = self.energy is not None
        return assumptions(self.goodput, self.failures, from_powers=from_powers)

    def __repr__(self) -> str:
        price = "" if self.price is None else f", {self.price:,.0f} {self.currency}"
        figures = f"{four_digits(self.time_s / DAY_S)} days, {self.gpu_hours:,.0f} GPU-hours{price}"
        return f"<TrainingCost {self.scenario or 'unnamed'}: {figures}>"


@dataclass(frozen=True, slots=True)
class TrainingCosts(PlainData):
    """Costs of several scenarios that train on the same tokens.

    Args:
        num_tokens: number of training tokens.
        goodput: share of the training time spent in iterations; "auto" if each has its own.
        costs: one for each scenario.
    """

    num_tokens: int
    goodput: float | Literal["auto"]
    costs: Sequence[TrainingCost]


def assumptions(
    goodput: float, failures: str | None = None, *, from_powers: bool = False
) -> tuple[str, str]:
    """What a cost takes for granted, in sentences; see `TrainingCost` for `failures`."""
    lost = f"{100 * (1 - goodput):.3g} % of the training time"
    if failures is not None:
        rest = (
            f"failures and checkpoints take {lost}, drawn with the failures of {failures} "
            "(simtrain goodput); evaluations are excluded."
        )
    elif goodput == 1:
        rest = "failures, checkpoints and evaluations are excluded."
    else:
        rest = (
            f"with a goodput of {goodput:.4g}, failures, checkpoints and evaluations take {lost}."
        )
    return (
        f"Every iteration takes the simulated time; {rest}",
        "Energy is that of GPUs that compute, wait for communication or are idle, of hosts and of "
        "the network; the nameplate is an upper bound."
        if from_powers
        else "Energy is maximum power times the training time, an upper bound.",
    )


@takes(CostRequest)
def cost(request: CostRequest) -> TrainingCost:
    """Compute days, GPU-hours, price and energy of a training with the iterations of a scenario.

    Raises:
        InputError: an argument is invalid.
    """
    terms = Terms.read(request)
    return cost_of_result(result_of(request.scenario), terms)


def cost_of_result(result: Result, terms: Terms) -> TrainingCost:
    """Compute the cost of a training with the iterations of `result`, of mean time if they vary."""
    return training_cost(
        result.scenario,
        result.profile,
        mean_time_s(result),
        terms,
        interval=result.interval,
        breakdown_s=result.breakdown_s,
    )


def training_cost(
    scenario: Scenario,
    profile: HardwareProfile,
    iteration_time_s: float,
    terms: Terms,
    *,
    interval: Interval | None = None,
    breakdown_s: Mapping[str, float] | None = None,
) -> TrainingCost:
    """Compute the cost of a training from the simulated iteration time.

    Args:
        terms: tokens, prices and power.
        interval: where the measured iteration time lies; by default as if no kernel time were
            extrapolated.
        breakdown_s: seconds of an iteration by cause, from which its energy follows.
    """
    costs = profile.running_costs or RunningCosts()
    price_name, price = terms.price_of(profile)
    length = _Length.of(scenario, profile, iteration_time_s, terms)
    gpu_s = scenario.num_gpus * length.time_s
    num_nodes = scenario.num_gpus / profile.cluster.gpus_per_node.value
    node = costs.node_power
    node_energy_j = node.value * num_nodes * length.time_s if node else None
    site_kwh = None if node_energy_j is None else node_energy_j * terms.pue / KWH_J
    interval = interval or predicted_interval(scenario, profile, iteration_time_s)
    ends = interval.p5_s / iteration_time_s, interval.p95_s / iteration_time_s
    times = length.time_s, length.goodput, ends
    energy = energy_of(profile, breakdown_s, scenario.num_gpus, *times, terms.pue, site_kwh)
    kwh = energy.mean if energy else site_kwh
    entries = {price_name: price, "gpu_power": costs.gpu_power, "node_power": node}
    sources = {name: entry.source for name, entry in entries.items() if entry is not None}
    return TrainingCost(
        scenario=scenario.name,
        cluster=scenario.cluster,
        num_gpus=scenario.num_gpus,
        num_tokens=terms.num_tokens,
        num_iterations=length.num_iterations,
        iteration_time_s=iteration_time_s,
        goodput=length.goodput,
        failures=length.failures,
        time_s=length.time_s,
        gpu_hours=gpu_s / HOUR_S,
        contract=None if terms.price else terms.contract,
        price=price.value.per_hour * gpu_s / HOUR_S if price else None,
        currency=price.value.currency if price else None,
        price_by_contract=prices_by_contract(profile, gpu_s),
        gpu_energy_j=costs.gpu_power.value * gpu_s if costs.gpu_power else None,
        node_energy_j=node_energy_j,
        pue=terms.pue,
        site_energy_kwh=site_kwh,
        energy=energy,
        electricity_cost=terms.electricity_cost(kwh),
        electricity_currency=terms.electricity.currency if terms.electricity else None,
        co2_t=terms.co2_t(kwh),
        sources=sources,
        missing=tuple(name for name in entries if name not in sources),
        evidence=evidence_for(scenario, profile),
        interval=interval,
    )


@dataclass(frozen=True, slots=True)
class _Length:
    """How long a training takes; its fields are those of `TrainingCost`."""

    num_iterations: int
    goodput: float
    failures: str | None
    time_s: float

    @classmethod
    def of(
        cls, scenario: Scenario, profile: HardwareProfile, iteration_time_s: float, terms: Terms
    ) -> _Length:
        """Count whole iterations; draw the goodput if it is asked for."""
        tokens = scenario.batch.global_ * scenario.model.seq_length
        num_iterations = -(-terms.num_tokens // tokens)
        goodput, failures = terms.goodput, None
        if goodput == "auto":
            goodput, failures = goodput_of(scenario, profile, iteration_time_s, num_iterations)
        time_s = num_iterations * iteration_time_s / goodput
        return cls(num_iterations, goodput, failures, time_s)
