"""Terminal page of `simtrain cost`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from simtrain.hardware.evidence import sentences_of
from simtrain.render.pages.tables import ColumnGroups, notes, properties
from simtrain.studies.cost.training import TrainingCost, assumptions
from simtrain.units import DAY_S, HOUR_S, format_energy, format_seconds, four_digits


def cost_page(cost: TrainingCost) -> RenderableType:
    """Show time, GPU-hours, price and energy of one training run."""
    return Group(properties(_rows(cost)), "", *notes(_notes(cost)))


def _rows(cost: TrainingCost) -> Iterator[tuple[str, str]]:
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


def amount(value: float) -> str:
    """Format an amount with four digits: "0.04", "2,240,900"."""
    return f"{value:,.0f}" if value >= 1000 else four_digits(value)


def _notes(cost: TrainingCost) -> Iterator[str]:
    yield cost.evidence.sentence
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


def comparison_page(costs: Sequence[TrainingCost]) -> RenderableType:
    """Compare the costs of several scenarios that train on the same tokens."""
    columns = {_heading(number, costs): _column(cost) for number, cost in enumerate(costs)}
    title = f"{costs[0].num_tokens:,} tokens"
    return Group(Text(title, style="bold"), ColumnGroups(columns), "", *notes(_notes_of_all(costs)))


def _heading(number: int, costs: Sequence[TrainingCost]) -> str:
    """The scenario's name; scenarios with equal names are numbered."""
    name = str(costs[number].scenario)
    is_alone = sum(one.scenario == name for one in costs) == 1
    return name if is_alone else f"{name} ({number + 1})"


def _column(cost: TrainingCost) -> dict[str, str]:
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
