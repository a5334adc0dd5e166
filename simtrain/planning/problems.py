"""Errors of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from simtrain.cost import Limits
from simtrain.errors import DoesNotFitError, InputError, Location, Problem
from simtrain.hardware.profile import HardwareProfile
from simtrain.planning.layout import Status
from simtrain.planning.result import PlanRow
from simtrain.search.problems import check_budget, check_counts

_TOO_EARLY = {Status.NOT_FOUND, Status.NOT_SEARCHED}
"""What a longer search may change."""


def check_plan(
    clusters: Sequence[str],
    gpus: Sequence[int],
    workers: int,
    seconds: float | None,
    objective: str,
) -> None:
    """Refuse what is no number, an unknown objective, and no cluster.

    Raises:
        InputError: with the values that are wrong.
    """
    check_counts(tuple(gpus), 1, None, workers, {})
    check_budget(seconds)
    if objective not in ("time", "cost"):
        fix = "write time or cost"
        raise InputError.of("E834", f"objective is {objective!r}", fix=fix)
    if not clusters or not all(clusters):
        fix = "write names or paths of profiles between commas: --cluster a100_sxm4_80gb,h100_sxm"
        raise InputError.of("E101", "a cluster has no name", Location("--cluster"), fix)


def check_currencies(profiles: Sequence[HardwareProfile], limits: Limits) -> None:
    """Refuse to compare prices in several currencies.

    Args:
        profiles: those whose prices are used.

    Raises:
        InputError: with the currency of each profile.
    """
    currencies = {
        profile.name: profile.running_costs.price.value.currency
        for profile in profiles
        if profile.running_costs and profile.running_costs.price
    }
    if limits.budget and limits.budget.currency:
        currencies["--budget"] = limits.budget.currency
    if len(set(currencies.values())) > 1:
        listed = ", ".join(f"{name} in {currency}" for name, currency in currencies.items())
        raise InputError.of(
            "E846",
            f"prices are in several currencies: {listed}",
            Location("--budget" if "--budget" in currencies else "--cluster"),
            reason="simtrain knows no exchange rates",
            fix='give one price for all, --price "2.5 USD/h", or plan one currency at a time',
        )


def nothing_found(rows: Sequence[PlanRow]) -> InputError:
    """No combination has a layout: why not, and what the first one lacks."""
    counts = Counter(row.layout.status for row in rows)
    listed = ", ".join(f"{number} {status}" for status, number in counts.items())
    kind = InputError if set(counts) == {Status.ILLEGAL} else DoesNotFitError
    first = next((row for row in rows if row.layout.problems), None)
    longer = "plan for longer, or " if counts.keys() & _TOO_EARLY else "plan "
    problem = Problem(
        "E847",
        f"no layout is found on any of {len(rows)} combinations of cluster and GPUs: {listed}",
        fix=f"{longer}with more GPUs, GPUs with more memory, or another batch.global",
    )
    return kind([problem, *(first.layout.problems if first else ())])
