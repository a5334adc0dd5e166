"""Cost of a training: days, GPU-hours, price and energy for a number of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from typing import ClassVar, Literal

from simtrain.base.entry import Entry
from simtrain.base.plain_data import keys
from simtrain.base.request import takes
from simtrain.errors import InputError, Location
from simtrain.hardware.evidence import Evidence
from simtrain.hardware.interval import Interval
from simtrain.hardware.profile import RunningCosts
from simtrain.iteration.report.result import Result
from simtrain.studies.answer import Answer
from simtrain.studies.goodput.goodput import (
    Ends,
    Goodput,
    draw_trainings,
    interval_of,
    read_tokens,
)
from simtrain.studies.gpus import with_gpus
from simtrain.studies.search.request import SearchRequest
from simtrain.studies.simulation import result_of
from simtrain.studies.training_requests import CostRequest
from simtrain.studies.variation import mean_time_s
from simtrain.units import (
    DAY_S,
    HOUR_S,
    Price,
    UnitError,
    parse_price,
    short_amount,
    short_interval,
)


@dataclass(frozen=True, slots=True)
class Terms:
    """Fields of a `CostRequest` that a plan has too, parsed and checked."""

    num_tokens: int
    goodput: float | Literal["auto"] = 1.0
    price: Price | None = None

    @classmethod
    def read(cls, request: CostRequest | SearchRequest) -> Terms:
        """Parse and check the texts of a command line or a call.

        Raises:
            InputError: tokens (E841), a goodput (E842) or a price (E848) is invalid.
        """
        goodput = request.goodput
        if goodput != "auto" and not (isinstance(goodput, Real) and 0 < goodput <= 1):
            is_number = isinstance(goodput, Real)
            message = f"a goodput of {goodput:g}" if is_number else f"goodput is {goodput!r}"
            fix = "write a number above 0 and at most 1, such as 0.9, or auto"
            raise InputError.of("E842", message, Location("--goodput"), fix)
        try:
            price = None if request.price is None else parse_price(request.price)
        except UnitError as error:
            raise InputError.of("E848", str(error), Location("--price"), error.fix) from error
        ends_by_days = goodput == "auto" and request.tokens is None
        return cls(1 if ends_by_days else read_tokens(request.tokens), goodput, price)


@dataclass(frozen=True, slots=True, repr=False)
class TrainingCost(Answer):
    """Cost of training on `num_tokens` in whole iterations.

    Args:
        goodput: share of the training time that iterations take; failures, checkpoints and
            evaluations take the rest.
        failures: profile whose failures the goodput was drawn with; None if it was given.
        ends: of the 90 % interval of the training time, relative to it.
        missing: profile entries that are missing.
        training: the training with its failures, if it was drawn.
    """

    json_fields: ClassVar = keys(
        """scenario cluster num_gpus num_tokens num_iterations iteration_time_s
        interval_s=interval goodput failures time_s time_interval_s
        gpu_hours price price_interval currency
        gpu_energy_j node_energy_j
        sources missing evidence calibrated=evidence.judged assumptions training"""
    )
    json_omits_none: ClassVar = frozenset({"training"})

    scenario: str | None
    cluster: str
    num_gpus: int
    num_tokens: int
    num_iterations: int
    iteration_time_s: float
    goodput: float
    failures: str | None
    time_s: float
    ends: Ends
    gpu_hours: float
    price: float | None
    currency: str | None
    gpu_energy_j: float | None
    node_energy_j: float | None
    sources: dict[str, str]
    missing: tuple[str, ...]
    evidence: Evidence
    interval: Interval
    training: Goodput | None = None

    @property
    def time_interval_s(self) -> dict[str, float]:
        return self._interval_of(self.time_s)

    @property
    def price_interval(self) -> dict[str, float] | None:
        return None if self.price is None else self._interval_of(self.price)

    def _interval_of(self, amount: float) -> dict[str, float]:
        return {"p5": amount * self.ends[0], "p95": amount * self.ends[1]}

    @property
    def assumptions(self) -> tuple[str, str]:
        """What the cost takes for granted, in sentences."""
        lost = f"{100 * (1 - self.goodput):.3g} % of the training time"
        if self.failures is not None:
            rest = (
                f"failures and checkpoints take {lost}, drawn with the failures of {self.failures} "
                "(--details says which hours); evaluations are excluded."
            )
        elif self.goodput == 1:
            rest = "failures, checkpoints and evaluations are excluded."
        else:
            with_share = f"with a goodput of {self.goodput:.4g}"
            rest = f"{with_share}, failures, checkpoints and evaluations take {lost}."
        return (
            f"Every iteration takes the simulated time; {rest}",
            "Energy is maximum power times the training time, an upper bound.",
        )

    @property
    def headline(self) -> str:
        """The answer in one line: days and price with their intervals, and GPU-hours."""
        unit, size = ("days", DAY_S) if self.time_s >= 2 * DAY_S else ("hours", HOUR_S)
        time = f"{short_amount(self.time_s / size)} {unit}"
        is_given = self.ends[0] == self.ends[1]  # a training of so many days
        if not is_given:
            time += f" ({short_interval(self.time_interval_s, size)})"
        price = ""
        if self.price is not None and self.price_interval is not None:
            ends = "" if is_given else f" ({short_interval(self.price_interval)})"
            price = f", {short_amount(self.price)} {self.currency}{ends}"
        return f"{time}{price}, {short_amount(self.gpu_hours)} GPU-hours"

    @property
    def made_on(self) -> str:
        return self.cluster


@takes(CostRequest)
def cost(request: CostRequest) -> TrainingCost:
    """Compute days, GPU-hours, price and energy of a training with the iterations of a scenario.

    It is drawn many times with failures, restarts, checkpoints and spares, unless its goodput is
    given.

    Raises:
        InputError: an argument is invalid.
    """
    terms = Terms.read(request)
    result = result_of(with_gpus(request.scenario, request.gpus))
    if terms.goodput != "auto":
        return cost_of_result(result, terms)
    drawn = draw_trainings(result, request)
    if request.tokens is None:
        terms = replace(terms, num_tokens=round(drawn.tokens.mean))
    return replace(cost_of_result(result, terms, drawn), training=drawn)


def cost_of_result(result: Result, terms: Terms, drawn: Goodput | None = None) -> TrainingCost:
    """Compute the cost of a training with the iterations of `result`, of mean time if they vary.

    `drawn` is the training with its failures, in place of the goodput of the terms.
    """
    scenario, profile = result.scenario, result.profile
    iteration_time_s = mean_time_s(result)
    num_iterations = -(-terms.num_tokens // (scenario.batch.global_ * scenario.model.seq_length))
    goodput = 1.0 if isinstance(terms.goodput, str) else terms.goodput
    failures, ends = None, interval_of(result)
    if terms.goodput == "auto" and drawn is None:
        drawn = draw_trainings(result, CostRequest(result, terms.num_tokens))
    if drawn is not None:
        failures, ends = drawn.reliability, drawn.days.ends
        goodput = num_iterations * iteration_time_s / (drawn.days.mean * DAY_S)
    time_s = num_iterations * iteration_time_s / goodput
    costs = profile.running_costs or RunningCosts()
    price = costs.price
    if terms.price is not None:
        price = Entry[Price](value=terms.price, source="given for this estimate")
    node, gpu_s = costs.node_power, scenario.num_gpus * time_s
    num_nodes = scenario.num_gpus / profile.cluster.gpus_per_node.value
    node_energy_j = node.value * num_nodes * time_s if node else None
    entries = {"price": price, "gpu_power": costs.gpu_power, "node_power": node}
    sources = {name: entry.source for name, entry in entries.items() if entry is not None}
    return TrainingCost(
        scenario=scenario.name,
        cluster=scenario.cluster,
        num_gpus=scenario.num_gpus,
        num_tokens=terms.num_tokens,
        num_iterations=num_iterations,
        iteration_time_s=iteration_time_s,
        goodput=goodput,
        failures=failures,
        time_s=time_s,
        ends=ends,
        gpu_hours=gpu_s / HOUR_S,
        price=price.value.per_hour * gpu_s / HOUR_S if price else None,
        currency=price.value.currency if price else None,
        gpu_energy_j=costs.gpu_power.value * gpu_s if costs.gpu_power else None,
        node_energy_j=node_energy_j,
        sources=sources,
        missing=tuple(name for name in entries if name not in sources),
        evidence=result.evidence,
        interval=result.interval,
    )
