"""Cost of a training: days, GPU-hours, price and energy for a number of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import ClassVar, Literal, TypeVar, get_args

import numpy as np

from simtrain.base.entry import Entry
from simtrain.base.plain_data import PlainData, keys
from simtrain.base.request import takes
from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.hardware.evidence import Evidence
from simtrain.hardware.interval import Interval
from simtrain.hardware.profile import GPU_POWERS, HardwareProfile, RunningCosts
from simtrain.iteration.memory.report import FitVerdict
from simtrain.iteration.report.result import Result
from simtrain.studies.answer import Answer
from simtrain.studies.changes import with_gpus
from simtrain.studies.goodput import (
    HOURS,
    WORK,
    Fleet,
    Training,
    best_interval_s,
    draw_training,
    expected_ratio,
    failures_of,
    fleet_of,
    hours_lost_per_hour,
)
from simtrain.studies.requests import CheckpointMode, CostRequest, check_whole
from simtrain.studies.search.request import SearchRequest
from simtrain.studies.simulation import result_of
from simtrain.studies.variation import mean_time_s
from simtrain.units import (
    DAY_S,
    HOUR_S,
    Price,
    UnitError,
    format_seconds,
    four_digits,
    parse_price,
    parse_seconds,
    parse_tokens,
    short_amount,
    short_interval,
)
from simtrain.workload.work import Product

_MOST_DAYS = 36_525
_WHOLE_NUMBERS = {"spares": (0, 10**6), "draws": (1, 10**5), "seed": (0, 2**64)}
_MOST_HOURS = 10.0
"""An hour of iterations that takes longer is a training that hardly gets on."""
_MOST_EVENTS = 1e7
"""Failures and stops of all trainings that a study draws: more take longer than minutes."""

KWH_J, _TONNE_G = 3.6e6, 1e6

T = TypeVar("T")
Ends = tuple[float, float]
"""The ends of a 90 % interval, relative to the predicted value."""


@dataclass(frozen=True, slots=True)
class DrawnFigure(PlainData):
    """A figure of a training that was drawn many times: 5 % are below p5, and 95 % below p95."""

    mean: float
    p5: float
    p95: float
    mean_error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> DrawnFigure:
        numbers = np.asarray(values, dtype=float)
        p5, p95 = np.percentile(numbers, (5, 95))
        error = numbers.std(ddof=1) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
        return cls(float(numbers.mean()), float(p5), float(p95), float(error))

    @property
    def ends(self) -> Ends:
        return self.p5 / self.mean, self.p95 / self.mean

    def with_error(self, ends: Ends) -> DrawnFigure:
        """Return the figure if it is also in proportion to a prediction with this 90 % interval.

        Draws and prediction are off independently, so logarithms of the distances from the middle
        to the ends add up as the widths of normal distributions do.
        """
        if not self.p5:
            return self
        (low, high), (least, most) = self.ends, ends
        middle = math.sqrt(least * most)  # runs may take longer than predicted
        below = math.hypot(math.log(max(1 / low, 1)), math.log(middle / least))
        above = math.hypot(math.log(max(high, 1)), math.log(most / middle))
        centre = self.mean * middle
        return replace(self, p5=centre * math.exp(-below), p95=centre * math.exp(above))


@dataclass(frozen=True, slots=True)
class Goodput(PlainData):
    """The goodput of a training that was drawn many times.

    Args:
        reliability: hardware profile of the failures.
        iteration_time_s: time of one iteration without failures: the mean if the scenario sets a
            field of `variation`.
        prediction: the 90 % interval of the iteration time, relative to it.
        num_tokens: training tokens; None if the training ends after some days.
    """

    json_fields: ClassVar = keys(
        """scenario cluster reliability num_gpus num_nodes=fleet.num_nodes spares=fleet.spares
        iteration_time_s num_tokens draws seed
        effective_training_time_ratio=effective_ratio interruptions days planned_stops
        lost_hours checkpoint_interval_s=fleet.checkpoint.interval_s
        checkpoint_write_s=fleet.checkpoint.loadable_s
        checkpoint_blocking_s=fleet.checkpoint.blocking_s
        restart_s=fleet.restart_s closed_form_ratio=closed_form
        young_interval_s tokens interruptions_by_cause"""
    )

    scenario: str | None
    cluster: str
    reliability: str
    num_gpus: int
    iteration_time_s: float
    prediction: Ends
    tokens_per_s: float
    num_tokens: int | None
    fleet: Fleet
    seed: int
    trainings: tuple[Training, ...]

    def __repr__(self) -> str:
        figures = f"{self.effective_ratio.mean:.1%} of {four_digits(self.days.mean)} days"
        return f"<Goodput: {figures} in {self.draws} draws>"

    @property
    def draws(self) -> int:
        return len(self.trainings)

    @property
    def closed_form(self) -> float:
        """The ratio to first order in the rates."""
        return expected_ratio(self.fleet)

    @property
    def young_interval_s(self) -> float | None:
        """The interval between checkpoints by Young's formula; None without failures."""
        best_s = best_interval_s(self.fleet.checkpoint.blocking_s, self.fleet.failures_per_s)
        return best_s if math.isfinite(best_s) else None

    @property
    def effective_ratio(self) -> DrawnFigure:
        """Share of the time that iterations take whose result is kept."""
        return self._figure(lambda training: training.effective_ratio)

    @property
    def interruptions(self) -> DrawnFigure:
        return self._figure(lambda training: training.num_interruptions)

    @property
    def planned_stops(self) -> DrawnFigure:
        return self._figure(lambda training: training.planned)

    @property
    def days(self) -> DrawnFigure:
        """Days from the first start to the end; p5 and p95 count the prediction's error too."""
        days = self._figure(lambda training: training.time_s / DAY_S)
        return days if self.num_tokens is None else days.with_error(self.prediction)

    @property
    def tokens(self) -> DrawnFigure:
        """Tokens that the training is done with at its end; p5 and p95 as for days."""
        tokens = self._figure(lambda training: training.seconds[WORK] * self.tokens_per_s)
        if self.num_tokens is not None:
            return tokens
        low, high = self.prediction
        return tokens.with_error((1 / high, 1 / low))

    @property
    def lost_hours(self) -> dict[str, DrawnFigure]:
        """Hours of a training that do not go to iterations that are kept, by cause."""
        return {
            kind: self._figure(lambda training, kind=kind: training.seconds[kind] / HOUR_S)  # type: ignore[misc]
            for kind in HOURS
            if kind != WORK
        }

    @property
    def interruptions_by_cause(self) -> dict[str, float]:
        """Mean number of unplanned interruptions by cause."""
        names = dict.fromkeys(name for each in self.trainings for name in each.interruptions)
        return {
            name: sum(each.interruptions.get(name, 0) for each in self.trainings) / self.draws
            for name in sorted(names)
        }

    def _figure(self, figure: Callable[[Training], float]) -> DrawnFigure:
        return DrawnFigure.of([figure(training) for training in self.trainings])


def draw_trainings(result: Result, terms: Terms, request: CostRequest) -> Goodput:
    """Draw a whole training with failures, restarts, checkpoints and spares many times.

    Raises:
        InputError: the training is too long (E886), or its checkpoints are (E888).
    """
    scenario, time_s = result.scenario, mean_time_s(result)
    profile, reliability = failures_of(result.profile)
    fleet = fleet_of(
        reliability,
        num_gpus=scenario.num_gpus,
        gpus_per_node=result.profile.cluster.gpus_per_node.value,
        num_parameters=result.num_parameters,
        iteration_time_s=time_s,
        checkpoint=request.checkpoint,
        interval_s=terms.interval_s,
        spares=request.spares,
    )
    _check_checkpoints(fleet, request)
    batch_tokens = scenario.batch.global_ * scenario.model.seq_length
    work_s, limit_s = -(-terms.num_tokens // batch_tokens) * time_s, math.inf
    if request.days is not None:
        work_s, limit_s = math.inf, request.days * DAY_S
    check_length(fleet, work_s, limit_s, request.draws)
    return Goodput(
        scenario=scenario.name,
        cluster=scenario.cluster,
        reliability=profile,
        num_gpus=scenario.num_gpus,
        iteration_time_s=time_s,
        prediction=interval_of(result),
        tokens_per_s=batch_tokens / time_s,
        num_tokens=terms.num_tokens if request.days is None else None,
        fleet=fleet,
        seed=request.seed,
        trainings=tuple(_drawn(request, fleet, work_s, limit_s)),
    )


def interval_of(result: Result) -> Ends:
    """Return the 90 % interval of an iteration's measured time, relative to the prediction."""
    interval, time_s = result.interval, result.iteration_time_s
    return interval.p5_s / time_s, interval.p95_s / time_s


def read_amount(parse: Callable[[str], T], written: object, code: str, option: str) -> T | None:
    """Parse a price, a time or an amount, if there is one; another text is an InputError."""
    try:
        return None if written is None else parse(str(written))
    except UnitError as error:
        raise InputError.of(code, str(error), Location(option), error.fix) from error


def _drawn(request: CostRequest, fleet: Fleet, work_s: float, limit_s: float) -> Iterator[Training]:
    """Draw the trainings; each has its own seed, so that fewer draws are the first of more."""
    longest_s = min(limit_s, _MOST_DAYS * DAY_S)
    for number, seed in enumerate(np.random.SeedSequence(request.seed).spawn(request.draws)):
        request.on_progress("trainings", number, request.draws)
        training = draw_training(fleet, seed, work_s, longest_s)
        if longest_s < limit_s and training.time_s >= longest_s:
            raise _never_ends(training.seconds)
        yield training


def check_length(fleet: Fleet, work_s: float, limit_s: float, draws: int) -> None:
    """Refuse trainings that take more than a century, or more events than can be drawn (E886)."""
    days, hours = min(work_s, limit_s) / DAY_S, 1.0
    if days > _MOST_DAYS:
        message = f"the training takes {four_digits(days)} days without failures"
        fix = f"write fewer tokens, or more GPUs, for at most {_MOST_DAYS:,} days"
        raise InputError.of("E886", message, Location("--tokens"), fix)
    if math.isinf(limit_s):
        hours = 1 / max(expected_ratio(fleet), 1e-9)
        if hours > _MOST_HOURS:
            raise _never_ends(hours_lost_per_hour(fleet))
    events = fleet.events_per_s * days * DAY_S * hours * draws
    if events > _MOST_EVENTS:
        message = f"{events:.2g} failures and stops are to be drawn, more than 1e7"
        fix = "write fewer --draws or tokens, or set lower rates of hardware.reliability"
        raise InputError.of("E886", message, fix=fix)


def _never_ends(lost: dict[str, float]) -> InputError:
    name = max((name for name in lost if name != WORK), key=lost.__getitem__)
    message = (
        f"an hour of iterations takes more than {_MOST_HOURS:g} hours with these failures, most "
        f"of it for {name}"
    )
    fix = "set lower rates or shorter times of hardware.reliability"
    return InputError.of("E886", message, None, fix, "the training would hardly ever end")


def _check_checkpoints(fleet: Fleet, request: CostRequest) -> None:
    each = fleet.checkpoint
    write_s = max(each.write_s, each.blocking_s)
    if each.interval_s < write_s:
        message = (
            f"a checkpoint takes {format_seconds(write_s)} to write, longer than the interval of "
            f"{format_seconds(each.interval_s)}"
        )
        fix = (
            f'write --interval "{math.ceil(write_s)} s" or longer, or set a faster '
            "hardware.reliability.checkpoints.write_bandwidth"
        )
        place, reason = Location(f"--interval {request.interval}"), "checkpoints would pile up"
        raise InputError.of("E888", message, place, fix, reason)


@dataclass(frozen=True, slots=True)
class Terms:
    """What requests for the cost of a training say, parsed and checked."""

    num_tokens: int
    goodput: float | Literal["auto"] = 1.0
    price: Price | None = None
    pue: float = 1.0
    co2_g_per_kwh: float | None = None
    interval_s: float | None = None

    @classmethod
    def read(cls, request: CostRequest | SearchRequest) -> Terms:
        """Parse and check the texts of a command line or a call.

        Raises:
            InputError: a number is out of its range (E840, E842, E886), or tokens (E841), a price
                (E848) or an interval (E887) cannot be read; there is no one end (E885).
        """
        for code, option, value, is_right, fix in _checks(request):
            if not is_right:
                raise InputError.of(code, f"{option} is {value!r}", Location(option), fix)
        price = read_amount(parse_price, request.price, "E848", "--price")
        pue, co2, interval_s, ends_by_days = 1.0, None, None, False
        if isinstance(request, CostRequest):
            for name, ends in _WHOLE_NUMBERS.items():
                check_whole("E886", f"--{name}", getattr(request, name), *ends)
            pue, co2 = request.pue, request.co2
            interval_s = read_amount(parse_seconds, request.interval, "E887", "--interval")
            ends_by_days = request.goodput == "auto" and request.tokens is None
            if request.goodput == "auto" and ends_by_days == (request.days is None):
                both = "both --tokens and --days are" if request.tokens else "neither is"
                fix = "write one of them: --tokens 1T, or --days 54"
                place, reason = Location("--tokens"), "a training has one end"
                raise InputError.of("E885", f"{both} given", place, fix, reason)
        tokens = "1" if ends_by_days else str(request.tokens)
        num_tokens = read_amount(parse_tokens, tokens, "E841", "--tokens") or 0
        return cls(num_tokens, request.goodput, price, pue, co2, interval_s)


def _checks(request: CostRequest | SearchRequest) -> Iterator[tuple[str, str, object, bool, str]]:
    """Yield of each number the code, its option and value, if it is right, and what to write."""
    goodput = request.goodput
    fix = "write a number above 0 and at most 1, such as 0.9, or auto"
    yield "E842", "--goodput", goodput, goodput == "auto" or 0 < number(goodput) <= 1, fix
    if not isinstance(request, CostRequest):
        return
    pue, co2, days, word = request.pue, request.co2, request.days, request.checkpoint
    fix = "write a number from 1 on, such as 1.2"
    yield "E840", "--pue", pue, 1 <= number(pue) < math.inf, fix
    fix = "write the grams of CO2 per kWh, such as 380"
    yield "E840", "--co2", co2, co2 is None or 0 <= number(co2) < math.inf, fix
    fix = f"write a number of days above 0 and at most {_MOST_DAYS:,}, such as 54"
    yield "E886", "--days", days, days is None or 0 < number(days) <= _MOST_DAYS, fix
    words = get_args(CheckpointMode)
    fix = f"{did_you_mean(str(word), words)}write {' or '.join(words)}"
    yield "E886", "--checkpoint", word, word in words, fix


def number(value: object) -> float:
    """Return a number; not a number for everything else, which no range contains."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan


@dataclass(frozen=True, slots=True)
class Energy(PlainData):
    """Energy of a site for a training, in kWh.

    Args:
        mean: from the powers of what GPUs do, and of hosts, fans and switches.
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


@dataclass(frozen=True, slots=True, repr=False)
class TrainingCost(Answer):
    """Cost of training on `num_tokens` in whole iterations.

    Args:
        goodput: share of the training time that iterations take; failures, checkpoints and
            evaluations take the rest.
        failures: profile whose failures the goodput was drawn with; None if it was given.
        ends: of the 90 % interval of the training time, relative to it.
        pue: energy of the site over that of its nodes.
        site_energy_kwh: energy of the site, `node_energy_j` times `pue`; None if unknown.
        energy: energy of the site from what GPUs do; None if the profile lacks a power.
        co2_t: emissions of the site's energy, in tonnes; None if they are not counted or unknown.
        missing: profile entries that are missing.
        training: the training with its failures, if it was drawn.
    """

    json_fields: ClassVar = keys(
        """scenario cluster num_gpus num_tokens num_iterations iteration_time_s
        interval_s=interval goodput failures time_s time_interval_s
        gpu_hours price price_interval currency
        gpu_energy_j node_energy_j pue site_energy_kwh energy_kwh=energy
        co2_t sources missing evidence calibrated=evidence.judged fit assumptions training"""
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
    pue: float
    site_energy_kwh: float | None
    energy: Energy | None
    co2_t: float | None
    sources: dict[str, str]
    missing: tuple[str, ...]
    evidence: Evidence
    interval: Interval
    fit: FitVerdict
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
            "Energy is that of GPUs by what they run (products, other kernels, communication or "
            "nothing), of hosts, fans and switches; the nameplate is an upper bound."
            if self.energy
            else "Energy is maximum power times the training time, an upper bound.",
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
    drawn = draw_trainings(result, terms, request)
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
        drawn = draw_trainings(result, terms, CostRequest(result, terms.num_tokens))
    if drawn is not None:
        failures, ends = drawn.reliability, drawn.days.ends
        goodput = num_iterations * iteration_time_s / (drawn.days.mean * DAY_S)
    time_s = num_iterations * iteration_time_s / goodput
    costs = profile.running_costs or RunningCosts()
    price = costs.price
    if terms.price is not None:
        price = Entry(value=terms.price, source="given for this estimate")
    node, gpu_s = costs.node_power, scenario.num_gpus * time_s
    num_nodes = scenario.num_gpus / profile.cluster.gpus_per_node.value
    node_energy_j = node.value * num_nodes * time_s if node else None
    site_kwh = None if node_energy_j is None else node_energy_j * terms.pue / KWH_J
    energy, shares = None, power_shares(result, goodput)
    if (power_w := power_of(profile, shares, scenario.num_gpus)) is not None:
        mean = power_w * time_s * terms.pue / KWH_J
        busy = shares["gpu_product_power"] + shares["gpu_memory_power"]
        low, high = (mean * end for end in ends)
        energy = Energy(mean, low, high, site_kwh, busy, shares["gpu_waiting_power"])
    kwh = energy.mean if energy else site_kwh
    co2 = terms.co2_g_per_kwh
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
        pue=terms.pue,
        site_energy_kwh=site_kwh,
        energy=energy,
        co2_t=None if kwh is None or co2 is None else kwh * co2 / _TONNE_G,
        sources=sources,
        missing=tuple(name for name in entries if name not in sources),
        evidence=result.evidence,
        interval=result.interval,
        fit=result.fit,
    )


def power_shares(result: Result, goodput: float) -> dict[str, float]:
    """Return the shares of a training in which a GPU draws each power of `GPU_POWERS`.

    Outside iterations GPUs are idle.
    """
    breakdown = result.breakdown
    kernels_s = breakdown.compute_s + breakdown.recompute_s
    products_s = kernels_s * result.seconds.compute_share(lambda work: isinstance(work, Product))
    waiting_s = breakdown.tensor_communication_s + breakdown.pipeline_communication_s
    seconds = {
        "gpu_waiting_power": waiting_s + breakdown.data_communication_s,
        "gpu_memory_power": kernels_s - products_s + breakdown.optimizer_s,
        "gpu_product_power": products_s,
    }
    shares = {name: goodput * time_s / breakdown.total_s for name, time_s in seconds.items()}
    return {"gpu_idle_power": 1 - math.fsum(shares.values())} | shares


def power_of(profile: HardwareProfile, shares: Mapping[str, float], num_gpus: int) -> float | None:
    """Return the mean power of a training's nodes and switches in W; None without an entry of it.

    The heat of a node sets the speed of its fans, whose power grows with the cube of it (affinity
    laws). Hosts and switches draw the same power all the time.

    Args:
        shares: of the time, by the power that a GPU draws (`power_shares`).
    """
    costs = profile.running_costs or RunningCosts()
    watts = {name: entry.value for name in GPU_POWERS if (entry := getattr(costs, name))}
    if costs.host_power is None or len(watts) < len(GPU_POWERS):
        return None
    of_node, host_w = profile.cluster.gpus_per_node.value, costs.host_power.value
    node_w = of_node * math.fsum(shares[name] * watts[name] for name in GPU_POWERS) + host_w
    if costs.fan_power:
        hottest_w = of_node * watts["gpu_product_power"] + host_w
        node_w += costs.fan_power.value * (node_w / hottest_w) ** 3
    switches_w = 0.0
    if costs.switch_power and costs.switch_ports:
        num_switches = profile.num_switches(num_gpus, costs.switch_ports.value)
        switches_w = costs.switch_power.value * num_switches
    return num_gpus / of_node * node_w + switches_w
