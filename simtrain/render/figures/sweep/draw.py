"""Choose, draw and write the figures of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.render.figures.style import write_figure
from simtrain.render.figures.subject import footer, with_changes
from simtrain.render.figures.sweep.heat_map import HeatMap, draw_heat_map, heat_map
from simtrain.render.figures.sweep.pareto import Pareto, draw_pareto, pareto
from simtrain.render.figures.sweep.results import Results, check_name
from simtrain.render.figures.sweep.scaling import ScalingCurves, draw_scaling, scaling

_WHY_NOT = {
    "heat_map": "fewer than two axes vary",
    "pareto": "peak_bytes, iteration_time_s, tokens_per_s or num_gpus was not reported",
    "scaling": "all points use the same number of GPUs, or it was not reported",
}
_DEFAULTS = ("tokens_per_s", "mfu", "iteration_time_s")


@dataclass(frozen=True, slots=True)
class Plots(PlainData):
    """The written files, the data of the figures, and why a figure was not drawn.

    Args:
        files: pictures that were written.
        value: column that the heat map shows.
        pareto: the front of time and memory.
        scaling: throughput by number of GPUs.
        left_out: why a figure was not drawn, by its name.
        heat_map: the cells of the heat map.
        num_points: number of points by status.
    """

    json_fields: ClassVar = keys(
        """pictures=files left_out value time_unit=pareto.unit fronts scaling=throughput
        scaling_efficiency=efficiency heat_map num_points"""
    )

    files: tuple[Path, ...]
    value: str
    pareto: Pareto | None
    scaling: ScalingCurves | None
    left_out: dict[str, str]
    heat_map: HeatMap | None
    num_points: dict[str, int]

    @property
    def fronts(self) -> dict[str, Any]:
        """The Pareto front of each panel."""
        return self.pareto.fronts if self.pareto else {}

    @property
    def throughput(self) -> dict[str, Any]:
        """Tokens per second by number of GPUs, for each panel."""
        return self.scaling.throughput if self.scaling else {}

    @property
    def efficiency(self) -> dict[str, Any]:
        """The throughput as a share of linear scaling, for each panel."""
        return self.scaling.efficiency if self.scaling else {}


def compared_column(results: Results, value: str | None = None) -> str:
    """Return the column by which points are compared: `value`, or else the sweep's objective.

    Raises:
        InputError: the results do not have the column (E864).
    """
    wanted = results.header.objective or "", *_DEFAULTS, *results.comparable
    column = next((name for name in wanted if name in results.comparable), "")
    column = column if value is None else value
    check_name(results, column, results.comparable, "--value")
    return column


def write_plots(
    results: Results,
    folder: Path,
    *,
    value: str | None = None,
    x: str | None = None,
    y: str | None = None,
) -> Plots:
    """Write `heat_map`, `pareto` and `scaling` as PNG and SVG; skip figures without data.

    Args:
        results: the sweep's results.
        folder: an existing folder.
        value: the heat map's column; by default the sweep's objective.
        x: the heat map's horizontal axis.
        y: the heat map's vertical axis.

    Raises:
        InputError: the results lack the column or an axis, or the folder cannot be written to.
    """
    header, column = results.header, compared_column(results, value)
    heat, front, curves = heat_map(results, column, x, y), pareto(results), scaling(results)
    subject = with_changes(f"sweep {header.name}", header.overrides)
    origin = footer(subject, header.profiles, header.version)
    files: list[Path] = []
    if heat:
        files += write_figure(draw_heat_map(heat), folder / "heat_map", origin)
    if front:
        files += write_figure(draw_pareto(front), folder / "pareto", origin)
    if curves:
        files += write_figure(draw_scaling(curves), folder / "scaling", origin)
    pictures = {"heat_map": heat, "pareto": front, "scaling": curves}
    left_out = {name: _WHY_NOT[name] for name, picture in pictures.items() if picture is None}
    return Plots(tuple(files), column, front, curves, left_out, heat, results.counts_by_status())
