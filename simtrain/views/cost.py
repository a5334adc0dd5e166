"""Time, GPU-hours, price and energy of training runs: `simtrain cost`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simtrain.hardware.evidence import sentences_of
from simtrain.studies.cost.training import TrainingCost
from simtrain.studies.cost_request import Contract
from simtrain.units import DAY_S, HOUR_S, format_energy, format_seconds, four_digits
from simtrain.views.kinds import NUMBER, TEXT, amount, short_interval
from simtrain.views.view import Column, Facts, Row, Table, View, remarks

_DATA = (
    *("scenario", "cluster", "num_gpus", "num_tokens", "num_iterations", "iteration_time_s"),
    *("time_s", "gpu_hours", "price", "currency", "gpu_energy_j", "node_energy_j"),
    *("contract", "pue", "site_energy_kwh"),
    *("electricity_cost", "electricity_currency", "co2_t"),
)
_CONTRACTS: dict[Contract, str] = {
    "on_demand": "on demand",
    "reserved": "reserved",
    "spot": "spot",
}
_SPOT = (
    "Spot GPUs can be interrupted, which simtrain does not simulate: lower --goodput by the share "
    "of the time that interruptions cost."
)


def cost_view(costs: Sequence[TrainingCost], is_table: bool = True) -> View:
    """Compare the costs of training runs on the same tokens, or show the cost of a single one.

    Args:
        costs: the costs.
        is_table: a column for each cost; otherwise facts about the only one.
    """
    if is_table:
        return View([_comparison(costs), remarks(_notes(costs))])
    return View([Facts([*_facts(costs[0])]), remarks(_notes(costs))])


def cost_table(costs: Sequence[TrainingCost]) -> Table:
    """Return the costs as CSV has them: a row for each scenario."""
    columns = [Column(name, name, TEXT) for name in _DATA]
    rows = [Row([getattr(cost, name) for name in _DATA]) for cost in costs]
    return Table("costs", "", columns, rows)


def _facts(cost: TrainingCost) -> Iterator[tuple[str, str]]:
    yield "scenario", str(cost.scenario)
    yield "cluster", f"{cost.cluster}, GPUs used: {cost.num_gpus}"
    yield "tokens", f"{cost.num_tokens:,}"
    each = format_seconds(cost.iteration_time_s)
    yield "iterations", f"{cost.num_iterations:,} × {each}"
    first, last = map(_duration, cost.time_interval_s.values())
    yield "time", f"{_duration(cost.time_s)} ({first} to {last})"
    yield "GPU-hours", amount(cost.gpu_hours)
    if cost.price is not None and cost.price_interval is not None:
        price = f"{amount(cost.price)} {cost.currency} ({short_interval(cost.price_interval)})"
        yield "price", f"{price}{_other_contracts(cost)}"
    at_most = "" if cost.energy else "at most "
    if cost.energy is not None:
        energy = cost.energy
        mean, ends = energy.mean / 1e3, {"p5": energy.p5, "p95": energy.p95}
        name = "energy of the site" if _has_site(cost) else "energy of the nodes"
        yield name, f"{amount(mean)} MWh ({short_interval(ends, 1e3)})"
        if energy.nameplate is not None:
            yield "energy by nameplates", f"at most {amount(energy.nameplate / 1e3)} MWh"
    elif cost.gpu_energy_j is not None:
        yield "energy of the GPUs", f"at most {format_energy(cost.gpu_energy_j)}"
    if cost.energy is None and cost.node_energy_j is not None:
        yield "energy of their nodes", f"at most {format_energy(cost.node_energy_j)}"
    if cost.energy is None and cost.site_energy_kwh is not None and _has_site(cost):
        yield "energy of the site", f"at most {amount(cost.site_energy_kwh)} kWh"
    if cost.electricity_cost is not None:
        yield "electricity", f"{at_most}{amount(cost.electricity_cost)} {cost.electricity_currency}"
    if cost.co2_t is not None:
        yield "CO2", f"{at_most}{amount(cost.co2_t)} tonnes"


def _has_site(cost: TrainingCost) -> bool:
    """Return whether the energy of the site adds to what the energy of the nodes says."""
    return cost.pue > 1 or cost.electricity_cost is not None or cost.co2_t is not None


def _other_contracts(cost: TrainingCost) -> str:
    """Return the prices of the profile's other contracts: " (spot: 858,300)"."""
    if cost.contract is None:
        return ""
    others = {
        name: price for name, price in cost.price_by_contract.items() if name != cost.contract
    }
    listed = ", ".join(f"{_CONTRACTS[name]} {amount(price)}" for name, price in others.items())
    return f" {_CONTRACTS[cost.contract]} ({listed})" if listed else ""


def _duration(time_s: float) -> str:
    if time_s >= 2 * DAY_S:
        return f"{amount(time_s / DAY_S)} days"
    return f"{four_digits(time_s / HOUR_S)} hours" if time_s >= HOUR_S else format_seconds(time_s)


def _notes(costs: Sequence[TrainingCost]) -> Iterator[str]:
    yield from sentences_of(cost.evidence for cost in costs)
    if len(costs) == 1:
        yield costs[0].interval.sentence
    yield from dict.fromkeys(note for cost in costs for note in _tokens_note(cost))
    yield from cost_remarks(costs)


def cost_remarks(costs: Sequence[TrainingCost]) -> Iterator[str]:
    """What costs with the same terms take for granted, where prices come from, what is missing."""
    yield from dict.fromkeys(text for cost in costs for text in cost.assumptions)
    if any(cost.contract == "spot" for cost in costs):
        yield _SPOT
    if any(cost.electricity_cost is not None for cost in costs):
        yield "Electricity is not part of the price, which is that of rented GPUs."
    if any(_has_site(cost) for cost in costs):
        yield f"The site's energy is that of the nodes times a PUE of {costs[0].pue:g}."
    for cost in {cost.cluster: cost for cost in costs}.values():
        prices = {name: text for name, text in cost.sources.items() if name.endswith("price")}
        for name, source in prices.items():
            yield f"{cost.cluster}, {name}: {source}"
        if prices.keys() != cost.sources.keys():
            yield f"Sources of power: simtrain profile show {cost.cluster}"
        if cost.missing:
            names = ", ".join(f"running_costs.{name}" for name in cost.missing)
            yield f"Missing in the profile {cost.cluster}: {names}."
    if any(cost.price is None for cost in costs):
        yield 'Set a price with --price "2.5 USD/h".'


def _tokens_note(cost: TrainingCost) -> Iterator[str]:
    if cost.num_iterations == 1:
        tokens = f"{cost.num_tokens:,}"
        yield f"{tokens} tokens are at most one iteration; a number in billions ends in B: 300B."


def _comparison(costs: Sequence[TrainingCost]) -> Table:
    """A column for each scenario; in CSV, a row."""
    cells = [_cells(cost) for cost in costs]
    columns = [
        Column("figure", "", TEXT),
        *(Column(heading, heading, NUMBER) for heading in _headings(costs)),
    ]
    texts = {name: [of_one[name] for of_one in cells] for name in cells[0]}
    rows = [Row((name, *of_all)) for name, of_all in texts.items() if {*of_all} != {"-"}]
    return Table(
        "costs",
        f"{costs[0].num_tokens:,} tokens",
        columns,
        rows,
        layout="continued",
        num_keys=1,
        data=cost_table(costs).records(),
    )


def _headings(costs: Sequence[TrainingCost]) -> Iterator[str]:
    """Yield the scenarios' names; scenarios with equal names are numbered."""
    names = [str(cost.scenario) for cost in costs]
    for number, name in enumerate(names, start=1):
        yield name if names.count(name) == 1 else f"{name} ({number})"


def _cells(cost: TrainingCost) -> dict[str, str]:
    """A scenario's cells, by row; "-" if its profile lacks the value."""
    gpu, node = cost.gpu_energy_j, cost.node_energy_j
    return {
        "cluster": cost.cluster,
        "GPUs": str(cost.num_gpus),
        "iterations": f"{cost.num_iterations:,}",
        "iteration": format_seconds(cost.iteration_time_s),
        "time": _duration(cost.time_s),
        "GPU-hours": amount(cost.gpu_hours),
        "price": "-" if cost.price is None else f"{amount(cost.price)} {cost.currency}",
        "energy of GPUs": "-" if gpu is None else format_energy(gpu),
        "energy of nodes": "-" if node is None else format_energy(node),
        "energy, kWh": _if_known(cost.energy.mean if cost.energy else None),
        "energy of site, at most kWh": _if_known(cost.site_energy_kwh if _has_site(cost) else None),
        "electricity": _if_known(cost.electricity_cost, cost.electricity_currency or ""),
        "CO2, tonnes": _if_known(cost.co2_t),
    }


def _if_known(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{amount(value)} {unit}".rstrip()
