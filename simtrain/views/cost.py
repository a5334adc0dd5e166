"""Days, price, energy and lost hours of training runs: `simtrain cost`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simtrain.hardware.evidence import sentences_of
from simtrain.studies.cost import DrawnFigure, Goodput, TrainingCost
from simtrain.units import DAY_S, HOUR_S, format_energy, format_seconds, four_digits, short_interval
from simtrain.views.kinds import BAR, FOUR_DIGITS, SHARE, TEXT, amount
from simtrain.views.view import Column, Facts, Heading, Headline, Row, Table, View, data_of, remarks

_DATA = (
    *("scenario", "cluster", "num_gpus", "num_tokens", "num_iterations", "iteration_time_s"),
    *("time_s", "gpu_hours", "price", "currency", "gpu_energy_j", "node_energy_j"),
    *("pue", "site_energy_kwh", "co2_t"),
)


def cost_view(cost: TrainingCost, details: bool = True) -> View:
    """Show the cost of a training; with `details`, also where the hours go."""
    drawn = cost.training
    facts = [*_facts(cost), *(failure_facts(drawn) if drawn else ())]
    columns, rows = [Column("", "", TEXT)] * 2, [Row(fact) for fact in facts]
    data = data_of(_DATA, [cost])
    table = Table("costs", "", columns, rows, layout="list", data=data)
    notes = [*sentences_of([cost.evidence]), cost.interval.sentence]
    notes += [f"{cost.fit}; {cost.fit.doubt}."] if cost.fit.doubt else []
    if cost.num_iterations == 1:
        tokens = f"{cost.num_tokens:,} tokens are at most one iteration"
        notes.append(f"{tokens}; a number in billions ends in B: 300B.")
    notes += cost_remarks([cost])
    hours = goodput_view(drawn).parts if drawn and details else ()
    return View([table, remarks(notes), Headline(cost.headline), *hours])


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


_HOURS = (
    Column("cause", "lost to", TEXT),
    Column("mean", "hours", FOUR_DIGITS),
    Column("p5", "5 %", FOUR_DIGITS),
    Column("p95", "95 %", FOUR_DIGITS),
    Column("share", "of the time", SHARE),
    Column("bar", "", BAR),
)


def goodput_view(goodput: Goodput) -> View:
    """Show the ratio, and where the hours go."""
    days = goodput.days.mean
    hours = [
        Row((cause, lost.mean, lost.p5, lost.p95, lost.mean / 24 / days, lost.mean / 24 / days))
        for cause, lost in sorted(goodput.lost_hours.items(), key=lambda item: -item[1].mean)
        if lost.p95
    ]
    return View(
        [
            Heading(f"{goodput.scenario}: a training of {goodput.num_gpus:,} GPUs"),
            Facts([*_fleet_facts(goodput)]),
            Table("hours", "Where the hours go", _HOURS, hours),
            remarks(_draw_notes(goodput)),
        ]
    )


def failure_facts(goodput: Goodput) -> Iterator[tuple[str, str]]:
    """Yield the share of the time that iterations take, and the number of interruptions."""
    ratio = goodput.effective_ratio
    yield "effective training time", f"{ratio.mean:.1%} ({ratio.p5:.1%} to {ratio.p95:.1%})"
    yield "interruptions", _figure(goodput.interruptions)
    if goodput.num_tokens is None:
        tokens = goodput.tokens
        yield "tokens in 90 %", f"{_ends(tokens, 1e9)} thousand million"


def _fleet_facts(goodput: Goodput) -> Iterator[tuple[str, str]]:
    fleet = goodput.fleet
    each = fleet.checkpoint
    yield "GPUs", f"{goodput.num_gpus:,} on {fleet.num_nodes:,} nodes, {fleet.spares:,} spare"
    interval, stop, loadable = map(
        format_seconds, (each.interval_s, each.blocking_s, each.loadable_s)
    )
    yield "checkpoints", f"every {interval}, stop for {stop}, loadable after {loadable}"
    yield "closed form", f"{goodput.closed_form:.1%}, to first order in the rates"


def _figure(figure: DrawnFigure) -> str:
    ends = "" if figure.p5 == figure.p95 else f" ({_ends(figure)})"
    return f"{four_digits(figure.mean)}{ends}"


def _ends(figure: DrawnFigure, unit: float = 1.0) -> str:
    return f"{four_digits(figure.p5 / unit)} to {four_digits(figure.p95 / unit)}"


def _draw_notes(goodput: Goodput) -> Iterator[str]:
    yield (
        f"Drawn {goodput.draws:,} times with seed {goodput.seed}; the mean is known to "
        f"{goodput.effective_ratio.mean_error:.2%}. In parentheses: nine of ten trainings."
    )
    low, high = map(four_digits, goodput.prediction)
    varies = "tokens" if goodput.num_tokens is None else "days"
    time = format_seconds(goodput.iteration_time_s)
    yield (
        f"The interval of {varies} also counts how far off the predicted iteration may be: "
        f"{low} to {high} times its {time}."
    )
    if goodput.reliability != goodput.cluster:
        yield (
            f"{goodput.cluster} has no published failures of its own: those of "
            f"{goodput.reliability} stand in."
        )
    yield "Slow nodes are not counted: no rate of them is published by node."
    yield (
        "Times between failures, repairs and discoveries are exponential, all other times are "
        "constant; restarts can fail again."
    )
