"""Search for layouts; for a whole training, on each cluster and number of GPUs, with its cost."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Literal

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.request import takes
from simtrain.base.resources import find_profile
from simtrain.base.values import dataclass, replace
from simtrain.errors import DoesNotFitError, InputError, Location, Problem
from simtrain.hardware.load import profile_of
from simtrain.scenario import Scenario, check_values
from simtrain.studies.answer import Answer
from simtrain.studies.cost import Terms, TrainingCost, cost_of_result, number, read_amount
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.on_machine import refuse_program
from simtrain.studies.search.request import SearchRequest, as_list, check_budget, check_counts
from simtrain.studies.search.run import Candidate, SearchResult, search_layouts
from simtrain.units import DAY_S, counted, parse_money

Miss = Literal["days", "budget", "no price"]
"""A limit that a row misses. "no price": there is a budget, but the price is unknown."""
_MOST_GPUS = 2**24
"""More GPUs than any cluster has: a larger number is a typing error."""
_LEAST_BUDGET_S = 1e-6


class Status(StrEnum):
    """Whether a combination has a layout, and if not, why."""

    FOUND = "found"
    DOES_NOT_FIT = "does not fit"
    ILLEGAL = "illegal"
    NOT_SEARCHED = "not searched"


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount of money; without a currency, in that of the prices."""

    amount: float
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class CostLimits:
    """Limits of a training run; None means no limit."""

    days: float | None = None
    budget: Budget | None = None

    @classmethod
    def read(cls, days: float | None, budget: str | None) -> CostLimits:
        """Check days (E849), and parse the text of a budget, such as "2M USD" (E844)."""
        if days is not None and not 0 < number(days) < math.inf:
            fix = "write a finite number above 0, such as 30"
            raise InputError.of("E849", f"days is {days!r}", Location("--days"), fix)
        money = read_amount(parse_money, budget, "E844", "--budget")
        return cls(days, Budget(*money) if money else None)

    def missed_by(self, cost: TrainingCost) -> Iterator[Miss]:
        if self.days is not None and cost.time_s > self.days * DAY_S:
            yield "days"
        if self.budget is not None and cost.price is None:
            yield "no price"
        elif self.budget is not None and (cost.price or 0.0) > self.budget.amount:
            yield "budget"


@dataclass(frozen=True, slots=True, repr=False)
class PlanRow(PlainData):
    """A cluster with a number of GPUs: its best layout and training cost.

    Args:
        exact: whether the search proved that no legal layout is better.
        gap: upper bound of (iteration time / optimal iteration time) - 1; None without a layout
            or a bound.
        misses: limits that the row misses.
    """

    json_fields: ClassVar = keys(
        """cluster num_gpus status meets_limits misses exact gap layout=best cost problems"""
    )

    cluster: str
    num_gpus: int
    status: Status = Status.NOT_SEARCHED
    best: Candidate | None = None
    exact: bool = False
    gap: float | None = None
    errors: tuple[Problem, ...] = ()
    cost: TrainingCost | None = None
    misses: tuple[Miss, ...] = ()

    @property
    def problems(self) -> list[dict[str, str | None]]:
        names = ("code", "message", "reason", "fix")
        return [{name: getattr(each, name) for name in names} for each in self.errors]

    @property
    def meets_limits(self) -> bool:
        """Whether the row has a layout and meets every limit."""
        return self.cost is not None and not self.misses

    @property
    def place(self) -> tuple[float, float]:
        """Sort key: time, and then price; rows without a layout are last."""
        if self.cost is None:
            return math.inf, math.inf
        price = self.cost.price
        return self.cost.time_s, self.cost.gpu_hours if price is None else price

    @property
    def name(self) -> str:
        return f"{self.cluster}, {counted(self.num_gpus, 'GPU')}"

    def __str__(self) -> str:
        if self.cost is None:
            return f"{self.name}: {self.status.value}"
        return f"{self.cost.headline}: {self.name}"


@dataclass(frozen=True, slots=True, repr=False)
class TrainingPlan(Answer):
    """A plan: rows sorted by time, the fastest first.

    Args:
        goodput: share of the training time spent in iterations; "auto" if each row has its own.
        added_nodes: number of nodes that the plan needs, for clusters with fewer in their profile.
    """

    json_fields: ClassVar = keys(
        """scenario num_tokens goodput limits fastest=fastest_place
        cheapest=cheapest_place num_nodes=added_nodes stopped rows"""
    )
    json_made_on: ClassVar = "clusters"

    scenario: str | None
    num_tokens: int
    goodput: float | Literal["auto"]
    limits: CostLimits
    rows: tuple[PlanRow, ...]
    added_nodes: Mapping[str, int]
    clusters: tuple[str, ...]

    @property
    def headline(self) -> str:
        """The answer in one line: what the best row takes."""
        return str(self.fastest or "no combination meets the limits")

    @property
    def stopped(self) -> bool:
        """Whether the time budget or an interrupt ended searches early."""
        return any(not row.exact for row in self.rows)

    @property
    def fastest(self) -> PlanRow | None:
        return next((row for row in self.rows if row.meets_limits), None)

    @property
    def cheapest(self) -> PlanRow | None:
        priced = [row for row in self.rows if row.meets_limits and row.cost and row.cost.currency]
        return min(priced, key=lambda row: (row.cost and row.cost.price) or 0.0, default=None)

    @property
    def fastest_place(self) -> int | None:
        return None if self.fastest is None else self.rows.index(self.fastest)

    @property
    def cheapest_place(self) -> int | None:
        return None if self.cheapest is None else self.rows.index(self.cheapest)

    @property
    def costs(self) -> list[TrainingCost]:
        return [row.cost for row in self.rows if row.cost]


@takes(SearchRequest)
def search(request: SearchRequest) -> SearchResult | TrainingPlan:
    """Find the best layouts for a model and a global batch; with `tokens`, for a whole training.

    Ranked are layouts that surely fit: the 90 % interval of their peak is within the memory. Those
    that are better than the first of these and fit by prediction, but may not fit, are `faster`.

    With `tokens`, the answer is a `TrainingPlan`: a row for each cluster and number of GPUs with
    its fastest layout, days, price and energy.

    Raises:
        InputError: an argument is invalid, a cluster is unknown, prices are in several currencies,
            or no layout is legal.
        DoesNotFitError: no layout fits.
    """
    return search_layouts(request) if request.tokens is None else plan(request)


def plan(request: SearchRequest) -> TrainingPlan:
    """Find the best layout for each cluster and number of GPUs, and its training cost."""
    base, terms = request.base, Terms.read(request)
    limits = CostLimits.read(request.days, request.budget)
    check_values(base)
    refuse_program(base)
    _check(request)
    gpus = dict.fromkeys(as_list(request.gpus))
    clusters = dict.fromkeys(request.clusters or [base.cluster])
    placed = {name: _on_cluster(base, name, max(gpus)) for name in clusters}
    bases = {name: scenario for name, (scenario, _) in placed.items()}
    _check_currencies(bases.values(), terms, limits)
    searches = [(bases[name], number) for name in clusters for number in gpus]
    rows = _rows(request, terms, limits, searches)
    if not any(row.best for row in rows):
        raise _no_layout(rows, request.seconds)
    return TrainingPlan(
        scenario=base.name,
        num_tokens=terms.num_tokens,
        goodput=terms.goodput,
        limits=limits,
        rows=tuple(sorted(rows, key=lambda row: row.place)),
        added_nodes={name: number for name, (_, number) in placed.items() if number is not None},
        clusters=tuple(clusters),
    )


def read_gpus(written: str) -> tuple[int, ...]:
    """Parse "128,256", or "128..4096" for the powers of two from 128 to 4096 (else E845)."""
    numbers: list[int] = []
    for part in written.split(","):
        ends = part.strip().split("..")
        are_numbers = all(end.isascii() and end.isdecimal() and len(end) < 10 for end in ends)
        least, most = (int(ends[0]), int(ends[-1])) if are_numbers else (0, 0)
        powers = [2**power for power in range(25) if least <= 2**power <= most]
        numbers += powers if len(ends) > 1 else [least]
        if len(ends) > 2 or not 1 <= least <= most <= _MOST_GPUS or (len(ends) > 1 and not powers):
            message = f'"{written}" is no list of numbers of GPUs or range with a power of two'
            fix = (
                f"write numbers from 1 to {_MOST_GPUS:,} without thousands separators, "
                "--gpus 128,256,512, or a range of powers of two, --gpus 128..4096"
            )
            raise InputError.of("E845", message, Location("--gpus"), fix)
    return tuple(dict.fromkeys(numbers))


def _rows(
    request: SearchRequest,
    terms: Terms,
    limits: CostLimits,
    searches: Sequence[tuple[Scenario, int]],
) -> list[PlanRow]:
    """Search each base on its number of GPUs, and report the best row so far.

    Searches share the time budget; the first begins with any budget.
    """
    evaluator, start_s = Evaluator(anchors=request.anchors), time.monotonic()
    rows = [PlanRow(base.cluster, number) for base, number in searches]
    for done, (base, _) in enumerate(searches):
        left_s = math.inf if request.seconds is None else request.seconds
        left_s -= time.monotonic() - start_s
        if request.interrupted() or (done and left_s <= 0):
            break
        best = str(
            min((row for row in rows if row.meets_limits), key=lambda row: row.place, default="")
        )

        def report(phase: str, *_: object, best: str = best, done: int = done) -> None:
            request.on_progress(f"{rows[done].name}: {phase}", done, len(rows), best)

        budget_s = max(left_s / (len(rows) - done), _LEAST_BUDGET_S)
        rows[done] = _searched(request, base, rows[done], evaluator, budget_s, report)
        if best_layout := rows[done].best:
            cost = cost_of_result(best_layout.run, terms)
            rows[done] = replace(rows[done], cost=cost, misses=tuple(limits.missed_by(cost)))
    return rows


def _searched(
    request: SearchRequest,
    base: Scenario,
    row: PlanRow,
    evaluator: Evaluator,
    budget_s: float,
    on_progress: Callable[..., None],
) -> PlanRow:
    """Search the fastest layout of a row. With a fixed number of GPUs it is also the cheapest."""
    try:
        result = search_layouts(
            SearchRequest(
                base,
                (row.num_gpus,),
                top=1,
                seconds=budget_s if math.isfinite(budget_s) else None,
                interrupted=request.interrupted,
                on_progress=on_progress,
                only_best=True,
                evaluator=evaluator,
            )
        )
    except InputError as error:
        status = Status.DOES_NOT_FIT if isinstance(error, DoesNotFitError) else Status.ILLEGAL
        return replace(row, status=status, exact=True, errors=error.problems)
    row = replace(row, status=Status.FOUND, best=result.best)
    return replace(row, exact=result.exact, gap=result.gap)


def _check(request: SearchRequest) -> None:
    """Check clusters, GPUs and seconds (E834); a cluster without a name is E101."""
    clusters = request.clusters
    if not isinstance(clusters, Iterable) or isinstance(clusters, str):
        fix = f"write clusters=[{clusters!r}]"
        raise InputError.of("E834", f"clusters is {clusters!r}, not a list", fix=fix)
    check_counts({"gpus": as_list(request.gpus)})
    check_budget(request.seconds)
    if not all(clusters):
        fix = "write profiles separated by commas: --cluster a100_sxm4_80gb,h100_sxm"
        raise InputError.of("E101", "the name of a cluster is empty", Location("--cluster"), fix)


def _check_currencies(bases: Iterable[Scenario], terms: Terms, limits: CostLimits) -> None:
    entries = {base.cluster: profile_of(base).running_costs for base in bases}
    prices = {name: costs.price.value for name, costs in entries.items() if costs and costs.price}
    prices = {"--price": terms.price} if terms.price else prices
    currencies = {name: price.currency for name, price in prices.items()}
    if limits.budget and limits.budget.currency:
        currencies["--budget"] = limits.budget.currency
    if len({*currencies.values()}) > 1:
        listed = ", ".join(f"{name} in {currency}" for name, currency in currencies.items())
        fix = 'set one price for all, --price "2.5 USD/h", or plan in one currency'
        message = f"prices are in several currencies: {listed}"
        place = Location("--budget" if "--budget" in currencies else "--cluster")
        raise InputError.of("E846", message, place, fix, "simtrain has no exchange rates")


def _on_cluster(base: Scenario, cluster: str, num_gpus: int) -> tuple[Scenario, int | None]:
    """Return the scenario on a cluster, and the nodes that `num_gpus` need if it has fewer."""
    find_profile(cluster, Location("--cluster"))
    scenario = base if cluster == base.cluster else base.replace({"cluster": cluster})
    hardware = profile_of(scenario).cluster
    if num_gpus <= hardware.num_gpus:
        return scenario, None
    num_nodes = -(-num_gpus // hardware.gpus_per_node.value)
    return scenario.replace({"hardware.cluster.num_nodes": num_nodes}), num_nodes


def _no_layout(rows: Sequence[PlanRow], seconds: float | None) -> InputError:
    counts = Counter(row.status for row in rows)
    listed = ", ".join(f"{number} {status}" for status, number in counts.items())
    kind = InputError if set(counts) == {Status.ILLEGAL} else DoesNotFitError
    longer = "let it search for longer, or " if seconds is None else "increase --seconds, or "
    more_time = longer if Status.NOT_SEARCHED in counts else ""
    problem = Problem(
        "E847",
        f"no layout for any of {counted(len(rows), 'combination')} of cluster and number of GPUs: "
        f"{listed}",
        fix=f"{more_time}plan with more GPUs, GPUs with more memory, or another batch.global",
    )
    return kind([problem, *next((row.errors for row in rows if row.errors), ())])
