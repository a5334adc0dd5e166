"""Errors of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from simtrain.errors import DoesNotFitError, InputError, Location, Problem
from simtrain.hardware.profile import HardwareProfile
from simtrain.studies.cost import CostLimits, Terms
from simtrain.studies.planning.layout import Status
from simtrain.studies.planning.request import PlanRequest
from simtrain.studies.planning.result import PlanRow
from simtrain.studies.search.request import as_list, check_budget, check_counts
from simtrain.units import counted

_ENDED_EARLY = {Status.NOT_FOUND, Status.NOT_SEARCHED}
"""Results that more time may change."""


def check_plan(request: PlanRequest) -> None:
    """Check clusters, GPUs, workers and seconds (E834); a cluster without a name is E101."""
    clusters = request.clusters
    if not isinstance(clusters, Iterable) or isinstance(clusters, str):
        fix = f"write clusters=[{clusters!r}]"
        raise InputError.of("E834", f"clusters is {clusters!r}, not a list", fix=fix)
    check_counts(as_list(request.gpus), 1, None, request.workers, {})
    check_budget(request.seconds)
    if not clusters or not all(clusters):
        fix = "write profiles separated by commas: --cluster a100_sxm4_80gb,h100_sxm"
        raise InputError.of("E101", "the name of a cluster is empty", Location("--cluster"), fix)


def check_currencies(
    profiles: Mapping[str, HardwareProfile], terms: Terms, limits: CostLimits
) -> None:
    """Refuse prices in several currencies (E846).

    Compared are the profiles' prices, or else the price of a GPU on all clusters, and the budget.
    """
    prices = {name: terms.price_of(profile)[1] for name, profile in profiles.items()}
    currencies = {name: price.value.currency for name, price in prices.items() if price}
    if terms.price:
        currencies = {"--price": terms.price.currency}
    if limits.budget and limits.budget.currency:
        currencies["--budget"] = limits.budget.currency
    if len(set(currencies.values())) > 1:
        listed = ", ".join(f"{name} in {currency}" for name, currency in currencies.items())
        raise InputError.of(
            "E846",
            f"prices are in several currencies: {listed}",
            Location("--budget" if "--budget" in currencies else "--cluster"),
            reason="simtrain has no exchange rates",
            fix='set one price for all, --price "2.5 USD/h", or plan in one currency',
        )


def no_layout(rows: Sequence[PlanRow], seconds: float | None) -> InputError:
    """Build the error of a plan without any layout, with the problems of its first row."""
    counts = Counter(row.layout.status for row in rows)
    listed = ", ".join(f"{number} {status}" for status, number in counts.items())
    kind = InputError if set(counts) == {Status.ILLEGAL} else DoesNotFitError
    first = next((row for row in rows if row.layout.problems), None)
    longer = "let it search for longer, or " if seconds is None else "increase --seconds, or "
    more_time = longer if counts.keys() & _ENDED_EARLY else ""
    problem = Problem(
        "E847",
        f"no layout for any of {counted(len(rows), 'combination')} of cluster and number of GPUs: "
        f"{listed}",
        fix=f"{more_time}plan with more GPUs, GPUs with more memory, or another batch.global",
    )
    return kind([problem, *(first.layout.problems if first else ())])
