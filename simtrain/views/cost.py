"""Time, GPU-hours, price and energy of training runs: `simtrain cost`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simtrain.hardware.evidence import sentences_of
from simtrain.studies.cost import TrainingCost
from simtrain.units import DAY_S, HOUR_S, format_energy, format_seconds, four_digits
from simtrain.views.kinds import NUMBER, TEXT, amount, short_interval
from simtrain.views.view import Column, Facts, Row, Table, View, remarks

_DATA = (
    *("scenario", "cluster", "num_gpus", "num_tokens", "num_iterations", "iteration_time_s"),
    *("time_s", "gpu_hours", "price", "currency", "gpu_energy_j", "node_energy_j"),
    *("pue", "site_energy_kwh", "co2_t"),
)


def cost_view(costs: Sequence[TrainingCost], is_table: bool = True) -> View:
    """Compare the costs of training runs on the same tokens, or show the cost of a single one.

    Args:
        costs: the costs.
        is_table: a column for each cost; otherwise facts about the only one.
    """
    if is_table:
        return View([_comparison(costs), remarks(_notes(costs))])
    named = {"scenario": str(costs[0].scenario), "tokens": f"{costs[0].num_tokens:,}"}
    return View([Facts([*named.items(), *_facts(costs[0])]), remarks(_notes(costs))])


def cost_remarks(costs: Sequence[TrainingCost]) -> Iterator[str]:
    """What costs with the same terms take for granted, where prices come from, what is missing."""
    yield from dict.fromkeys(text for cost in costs for text in cost.assumptions)
    if any(_has_site(cost) for cost in costs):
        yield f"The site's energy is that of the nodes times a PUE of {costs[0].pue:g}."
    for cost in {cost.cluster: cost for cost in costs}.values():
        if "price" in cost.sources:
            yield f"{cost.cluster}, price: {cost.sources['price']}"
        if cost.sources.keys() - {"price"}:
            yield f"Sources of power: simtrain profile show {cost.cluster}"
        if cost.missing:
            names = ", ".join(f"running_costs.{name}" for name in cost.missing)
            yield f"Missing in the profile {cost.cluster}: {names}."
    if any(cost.price is None for cost in costs):
        yield 'Set a price with --price "2.5 USD/h".'


def _facts(cost: TrainingCost, alone: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the figures; beside others, without intervals and prices of other contracts."""
    figures = {"GPUs used": f"{cost.num_gpus:,}", "iterations": f"{cost.num_iterations:,}"}
    yield "cluster", cost.cluster
    yield from figures.items()
    yield "iteration", format_seconds(cost.iteration_time_s)
    first, last = map(_duration, cost.time_interval_s.values())
    yield "time", _duration(cost.time_s) + f" ({first} to {last})" * alone
    yield "GPU-hours", amount(cost.gpu_hours)
    if cost.price is not None and cost.price_interval is not None:
        ends = f" ({short_interval(cost.price_interval)})"
        yield "price", f"{amount(cost.price)} {cost.currency}" + ends * alone
    at_most, energy, site_kwh = "", cost.energy, cost.site_energy_kwh
    if energy is not None:
        ends = short_interval({"p5": energy.p5, "p95": energy.p95}, 1e3)
        name = "energy of the site" if _has_site(cost) else "energy of the nodes"
        yield name, f"{amount(energy.mean / 1e3)} MWh" + f" ({ends})" * alone
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


def _notes(costs: Sequence[TrainingCost]) -> Iterator[str]:
    yield from sentences_of(cost.evidence for cost in costs)
    if len(costs) == 1:
        yield costs[0].interval.sentence
    if any(cost.num_iterations == 1 for cost in costs):
        tokens = f"{costs[0].num_tokens:,}"
        yield f"{tokens} tokens are at most one iteration; a number in billions ends in B: 300B."
    yield from cost_remarks(costs)


def _comparison(costs: Sequence[TrainingCost]) -> Table:
    """A column for each scenario; in CSV, a row."""
    names = [str(cost.scenario) for cost in costs]
    facts = [dict(_facts(cost, alone=False)) for cost in costs]
    headings = (
        name if names.count(name) == 1 else f"{name} ({number})"
        for number, name in enumerate(names, start=1)
    )
    columns = [Column("figure", "", TEXT), *(Column(each, each, NUMBER) for each in headings)]
    figures = dict.fromkeys(name for of_one in facts for name in of_one)
    rows = [Row((name, *(of_one.get(name, "-") for of_one in facts))) for name in figures]
    data = [{name: getattr(cost, name) for name in _DATA} for cost in costs]
    title = f"{costs[0].num_tokens:,} tokens"
    return Table("costs", title, columns, rows, layout="continued", num_keys=1, data=data)
