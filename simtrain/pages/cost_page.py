"""What training costs as a page for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from simtrain.cost.training import ASSUMPTIONS, HOUR_S, TrainingCost
from simtrain.hardware.profile import NOT_CALIBRATED
from simtrain.pages.tables import notes, properties
from simtrain.units import format_energy, format_seconds

_DAY_S = 86_400


def cost_page(cost: TrainingCost) -> RenderableType:
    """The page of `simtrain cost`."""
    return Group(properties(_rows(cost)), "", *notes(_notes(cost)))


def _rows(cost: TrainingCost) -> Iterator[tuple[str, str]]:
    yield "scenario", str(cost.scenario)
    yield "cluster", f"{cost.cluster}, GPUs used: {cost.num_gpus}"
    yield "tokens", f"{cost.num_tokens:,}"
    each = format_seconds(cost.iteration_time_s)
    yield "iterations", f"{cost.num_iterations:,} of {each}"
    yield "time", _duration(cost.time_s)
    yield "GPU-hours", _amount(cost.gpu_hours)
    if cost.price is not None:
        yield "price", f"{_amount(cost.price)} {cost.currency}"
    if cost.gpu_energy_j is not None:
        yield "energy of the GPUs", f"at most {format_energy(cost.gpu_energy_j)}"
    if cost.node_energy_j is not None:
        yield "energy of their nodes", f"at most {format_energy(cost.node_energy_j)}"


def _duration(time_s: float) -> str:
    if time_s >= 2 * _DAY_S:
        return f"{_amount(time_s / _DAY_S)} days"
    return f"{time_s / HOUR_S:.4g} hours" if time_s >= HOUR_S else format_seconds(time_s)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _notes(cost: TrainingCost) -> Iterator[str]:
    if not cost.calibrated:
        yield NOT_CALIBRATED
    if cost.num_iterations == 1:
        tokens = f"{cost.num_tokens:,}"
        yield f"{tokens} tokens are at most one iteration; a number in billions ends in B: 300B."
    yield from ASSUMPTIONS
    for name, source in cost.sources.items():
        yield f"{name}: {source}"
    if cost.missing:
        names = ", ".join(f"running_costs.{name}" for name in cost.missing)
        yield f"Not in the profile {cost.cluster}, so not said: {names}. Add it to a copy of it."
