"""Time, GPU-hours, price and energy of training runs: `simtrain cost`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from simtrain.hardware.evidence import sentences_of
from simtrain.studies.cost.training import TrainingCost, assumptions
from simtrain.units import DAY_S, HOUR_S, format_energy, format_seconds, four_digits
from simtrain.views.kinds import NUMBER, TEXT, amount
from simtrain.views.view import Column, Facts, Row, Table, View, remarks

_DATA = (
    *("scenario", "cluster", "num_gpus", "num_tokens", "num_iterations", "iteration_time_s"),
    *("time_s", "gpu_hours", "price", "currency", "gpu_energy_j", "node_energy_j"),
)


def cost_view(costs: Sequence[TrainingCost]) -> View:
    """Show the cost of one training run, or compare those of several on the same tokens."""
    if len(costs) == 1:
        return View([Facts([*_facts(costs[0])]), remarks(_notes(costs[0]))])
    return View([_comparison(costs), remarks(_notes_of_all(costs))])


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
    yield "time", _duration(cost.time_s)
    yield "GPU-hours", amount(cost.gpu_hours)
    if cost.price is not None:
        yield "price", f"{amount(cost.price)} {cost.currency}"
    if cost.gpu_energy_j is not None:
        yield "energy of the GPUs", f"at most {format_energy(cost.gpu_energy_j)}"
    if cost.node_energy_j is not None:
        yield "energy of their nodes", f"at most {format_energy(cost.node_energy_j)}"


def _duration(time_s: float) -> str:
    if time_s >= 2 * DAY_S:
        return f"{amount(time_s / DAY_S)} days"
    return f"{four_digits(time_s / HOUR_S)} hours" if time_s >= HOUR_S else format_seconds(time_s)


def _notes(cost: TrainingCost) -> Iterator[str]:
    yield cost.evidence.sentence
    yield cost.interval.sentence
    yield from _tokens_note(cost)
    yield from assumptions(cost.goodput)
    for name, source in cost.sources.items():
        yield f"{name}: {source}"
    if cost.missing:
        names = ", ".join(f"running_costs.{name}" for name in cost.missing)
        yield f"Missing in the profile {cost.cluster}: {names}. Add it to a copy of the profile."


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
    rows = [Row((name, *(of_one[name] for of_one in cells))) for name in cells[0]]
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
    }


def _notes_of_all(costs: Sequence[TrainingCost]) -> Iterator[str]:
    yield from dict.fromkeys(note for cost in costs for note in _tokens_note(cost))
    yield from sentences_of(cost.evidence for cost in costs)
    yield from assumptions(costs[0].goodput)
    yield from source_notes(costs)


def source_notes(costs: Iterable[TrainingCost]) -> Iterator[str]:
    """For each cluster: sources of price and power, and missing entries."""
    for cost in {cost.cluster: cost for cost in costs}.values():
        for name, source in cost.sources.items():
            yield f"{cost.cluster}, {name}: {source}"
        if cost.missing:
            names = ", ".join(f"running_costs.{name}" for name in cost.missing)
            yield f"Missing in the profile {cost.cluster}: {names}."
