"""Iteration times with less and more of one resource of the cluster: the sliders of a report."""

from __future__ import annotations

from collections.abc import Sequence

from simtrain.studies.sensitivity import ResourceCurve
from simtrain.views.kinds import SECONDS, TEXT
from simtrain.views.view import Column, Row, Table


def curves_table(curves: Sequence[ResourceCurve]) -> Table:
    """The iteration time of each resource and factor; all curves have the same factors."""
    columns = (
        Column("resource", "resource", TEXT),
        *(
            Column(
                f"iteration_time_{point.factor:g}_s",
                f"{point.factor:g}×",
                SECONDS,
                f"the iteration time, simulated with {point.factor:g} times as much of a resource",
            )
            for point in curves[0].points
        ),
    )
    rows = [
        Row((curve.resource_label, *(point.iteration_time_s for point in curve.points)))
        for curve in curves
    ]
    return Table("curves", "Iteration time by factor of one resource", columns, rows)
