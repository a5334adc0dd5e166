"""Draws what there is to draw of a sweep, and says what there is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.pictures import writing_to
from simtrain.plots.heat_map import draw_heat_map, heat_map
from simtrain.plots.pareto import Pareto, draw_pareto, pareto
from simtrain.plots.results import Results, check_name
from simtrain.plots.scaling import Scaling, draw_scaling, scaling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DEFAULTS = ("tokens_per_s", "mfu", "iteration_time_s")


@dataclass(frozen=True, slots=True)
class Plots:
    """The pictures that were written, what they show, and why others were not."""

    files: tuple[Path, ...]
    value: str
    pareto: Pareto | None
    scaling: Scaling | None
    left_out: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Plain data, in full precision."""
        fronts, curves = self.pareto, self.scaling
        return {
            "pictures": [str(file) for file in self.files],
            "left_out": self.left_out,
            "value": self.value,
            "time_unit": fronts.unit if fronts else None,
            "fronts": fronts.to_json() if fronts else {},
            "scaling": curves.to_json() if curves else {},
        }


def write_plots(
    results: Results,
    folder: Path,
    *,
    value: str | None = None,
    x: str | None = None,
    y: str | None = None,
) -> Plots:
    """Write `heat_map`, `pareto` and `scaling` into a folder, PNG and SVG, where there is one.

    Raises:
        InputError: a column or an axis that the results do not have, a folder that cannot be
            written to.
    """
    column = next((name for name in (*_DEFAULTS, *results.judged) if results.has(name)), "")
    column = column if value is None else value
    check_name(results, column, results.judged, "--value")
    heat, front, curves = heat_map(results, column, x, y), pareto(results), scaling(results)
    pictures: dict[str, tuple[Callable[[], Figure] | None, str]] = {
        "heat_map": (
            (lambda: draw_heat_map(heat)) if heat else None,
            "fewer than two axes vary",
        ),
        "pareto": (
            (lambda: draw_pareto(front)) if front else None,
            "peak_bytes, iteration_time_s, tokens_per_s or num_gpus was not reported",
        ),
        "scaling": (
            (lambda: draw_scaling(curves)) if curves else None,
            "everything that ran has as many GPUs, or their number was not reported",
        ),
    }
    files = tuple(
        file
        for name, (draw, _) in pictures.items()
        if draw is not None
        for file in _written(draw, folder / name)
    )
    left_out = {name: why for name, (draw, why) in pictures.items() if draw is None}
    return Plots(files, column, front, curves, left_out)


def _written(draw: Callable[[], Figure], path: Path) -> tuple[Path, ...]:
    # matplotlib takes longer to import than most commands take to run.
    from simtrain.pictures.style import save, styled

    with styled(), writing_to(path.parent):
        return save(draw(), path)
