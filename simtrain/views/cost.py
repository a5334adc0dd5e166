"""Time, GPU-hours, price and energy of training runs: `simtrain cost`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simtrain.hardware.evidence import sentences_of
from simtrain.studies.cost import TrainingCost
from simtrain.studies.goodput.goodput import Goodput
from simtrain.units import DAY_S, HOUR_S, format_energy, format_seconds, four_digits, short_interval
from simtrain.views.goodput import failure_facts
from simtrain.views.kinds import TEXT, amount
from simtrain.views.view import Column, Facts, Headline, Row, Table, View, remarks

_DATA = (
    *("scenario", "cluster", "num_gpus", "num_tokens", "num_iterations", "iteration_time_s"),
    *("time_s", "gpu_hours", "price", "currency", "gpu_energy_j", "node_energy_j"),
    *("pue", "site_energy_kwh", "co2_t"),
)


def cost_view(cost: TrainingCost, is_table: bool = False, drawn: Goodput | None = None) -> View:
    """Show the cost of a training.

    Args:
        cost: the cost.
        drawn: the training with its failures, if it was drawn.
        is_table: a table, whose CSV has the figures in full precision; otherwise facts.
    """
    facts = [*_facts(cost), *(failure_facts(drawn) if drawn else ())]
    columns = [Column("figure", "", TEXT), Column("value", "", TEXT)]
    data = [{name: getattr(cost, name) for name in _DATA}]
    table = Table("costs", "", columns, [Row(fact) for fact in facts], data=data)
    notes = [*sentences_of([cost.evidence]), cost.interval.sentence]
    if cost.num_iterations == 1:
        tokens = f"{cost.num_tokens:,} tokens are at most one iteration"
        notes.append(f"{tokens}; a number in billions ends in B: 300B.")
    notes += cost_remarks([cost])
    return View([table if is_table else Facts(facts), remarks(notes), Headline(cost.headline)])


def cost_remarks(costs: Sequence[TrainingCost]) -> Iterator[str]:
    """What costs with the same terms take for granted, where prices come from, what is missing."""
    yield from dict.fromkeys(text for cost in costs for text in cost.assumptions)
    if any(_has_site(cost) for cost in costs):
        yield f"The site's energy is that of the nodes times a PUE of {costs[0].pue:g}."
    for cost in {cost.cluster: cost for cost in costs}.values():
        if "price" in cost.sources:
            yield f"{cost.cluster}, price: {cost.sources['price']}"
        if cost.sources.keys() - {"price"}:
            yield f"Sources of power: simtrain show {cost.cluster}"
        if cost.missing:
            names = ", ".join(f"running_costs.{name}" for name in cost.missing)
            yield f"Missing in the profile {cost.cluster}: {names}."
    if any(cost.price is None for cost in costs):
        yield 'Set a price with --price "2.5 USD/h".'


def _facts(cost: TrainingCost) -> Iterator[tuple[str, str]]:
    yield "scenario", str(cost.scenario)
    yield "cluster", f"{cost.cluster}, GPUs used: {cost.num_gpus}"
    yield "tokens", f"{cost.num_tokens:,}"
    yield "iterations", f"{cost.num_iterations:,} × {format_seconds(cost.iteration_time_s)}"
    first, last = map(_duration, cost.time_interval_s.values())
    is_given = first == last  # a training of so many days
    yield "time", _duration(cost.time_s) + f" ({first} to {last})" * (not is_given)
    yield "GPU-hours", amount(cost.gpu_hours)
    if cost.price is not None and cost.price_interval is not None:
        ends = short_interval(cost.price_interval)
        price = f"{amount(cost.price)} {cost.currency}"
        yield "price", price + f" ({ends})" * (not is_given)
    at_most, energy, site_kwh = "", cost.energy, cost.site_energy_kwh
    if energy is not None:
        ends = short_interval({"p5": energy.p5, "p95": energy.p95}, 1e3)
        name = "energy of the site" if _has_site(cost) else "energy of the nodes"
        yield name, f"{amount(energy.mean / 1e3)} MWh ({ends})"
        if energy.nameplate is not None:
            yield "energy by nameplates", f"at most {amount(energy.nameplate / 1e3)} MWh"
    else:
        at_most = "at most "
        if cost.gpu_energy_j is not None:
            yield "energy of the GPUs", f"at most {format_energy(cost.gpu_energy_j)}"
        if cost.node_energy_j is not None:
            yield "energy of their nodes", f"at most {format_energy(cost.node_energy_j)}"
        if site_kwh is not None and _has_site(cost):
            yield "energy of the site", f"at most {amount(site_kwh)} kWh"
    if cost.co2_t is not None:
        yield "CO2", f"{at_most}{amount(cost.co2_t)} tonnes"


def _has_site(cost: TrainingCost) -> bool:
    """Return whether the energy of the site adds to what the energy of the nodes says."""
    return cost.pue > 1 or cost.co2_t is not None


def _duration(time_s: float) -> str:
    if time_s >= 2 * DAY_S:
        return f"{amount(time_s / DAY_S)} days"
    return f"{four_digits(time_s / HOUR_S)} hours" if time_s >= HOUR_S else format_seconds(time_s)
