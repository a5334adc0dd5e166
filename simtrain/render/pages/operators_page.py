"""The operators of a stage as a table: `simtrain run --ops`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.operators import HOST_ISSUE, Operator, Operators
from simtrain.render.pages.tables import FittedTable, notes, properties
from simtrain.units import format_bytes, format_seconds, four_digits

LEAST_SHARE = 1e-3
"""Operators below this share of the iteration are one row for each cause."""
_HEADINGS = (
    *("op", "pass", ">count", "shape", ">FLOPs", ">bytes", ">time", ">hidden", ">%", ">rate"),
    *("<limit", "<profile entry", "basis"),
)
_OPTIONAL = (">bytes", ">FLOPs", "basis", "<profile entry", "shape", ">count", "pass", ">hidden")
_ROUNDING = 1e-9
_PASSES = {"forward": "F", "input_gradient": "I", "weight_gradient": "W", "recompute": "R"}
_Row = dict[str, str]
"""Cells by heading; missing cells are empty."""


def operators_page(table: Operators, name: str) -> RenderableType:
    """All operators of a stage, cause by cause, the longest first."""
    title = (
        ("scenario", name),
        ("stage", _stage(table)),
        ("iteration time", format_seconds(table.iteration_time_s)),
    )
    rows: list[_Row] = []
    styles: list[str | None] = []
    for field, label in CAUSE_LABELS.items():
        cause_s = getattr(table.breakdown, field)
        operators = table.of_cause(field.removesuffix("_s"))
        if operators or cause_s > _ROUNDING * table.iteration_time_s:
            row = _row(label, cause_s, table)
            if field == "launch_s":
                row |= {"<limit": "host", "<profile entry": HOST_ISSUE}
            of_cause = _of_cause(operators, table)
            rows += [row, *of_cause]
            styles += ["bold", *[None] * len(of_cause)]
    fitted = FittedTable(
        _HEADINGS,
        [*map(_cells, rows)],
        optional=_OPTIONAL,
        title="Operators of an iteration on one rank of the stage",
        end=_cells(_row("iteration", table.iteration_time_s, table)),
        styles=styles,
    )
    return Group(properties(title), "", fitted, "", _limits(table), "", *notes(_remarks(table)))


def _cells(row: _Row) -> list[str]:
    return [row.get(heading, "") for heading in _HEADINGS]


def _limits(table: Operators) -> FittedTable:
    """The time by what limits it, and the entries of the profile that it comes from."""
    rows = []
    for limit, operators in table.by_limit():
        seconds = math.fsum(row.exposed_s for row in operators)
        share = f"{seconds / table.iteration_time_s:.1%}"
        entries = dict.fromkeys(row.bottleneck.entry for row in operators if row.bottleneck)
        rows.append((str(limit), format_seconds(seconds), share, ", ".join(entries)))
    headings = ("<limit", ">time", ">%", "entries of the hardware profile")
    return FittedTable(headings, rows, optional=(">%",), title="What limits the ops")


def _stage(table: Operators) -> str:
    if table.num_stages == 1:
        return "0, the only one"
    why = ", the slowest: the others wait for it" if table.is_slowest else ""
    return f"{table.stage} of 0 to {table.num_stages - 1}{why}"


def _of_cause(operators: Sequence[Operator], table: Operators) -> list[_Row]:
    least_s = LEAST_SHARE * table.iteration_time_s
    rows = [_operator_row(row, table) for row in operators if row.total_s >= least_s]
    if others := [row for row in operators if row.total_s < least_s]:
        time_s, hidden_s = sum(row.exposed_s for row in others), sum(row.hidden_s for row in others)
        count = f"{sum(row.count for row in others):,}"
        rows.append(_row(f"  {len(others)} smaller", time_s, table, hidden_s) | {">count": count})
    return rows


def _operator_row(row: Operator, table: Operators) -> _Row:
    mark = "*" if row.basis == "extrapolated" else " "
    return _row(f"{mark} {row.name}", row.exposed_s, table, row.hidden_s) | {
        "pass": _PASSES.get(row.phase, ""),
        ">count": f"{row.count:,}",
        "shape": row.shape,
        ">FLOPs": f"{four_digits(row.flops / 1e12)} TFLOP" if row.flops else "",
        ">bytes": format_bytes(row.num_bytes) if row.num_bytes else "",
        ">rate": rate_of(row),
        "<limit": str(row.bottleneck.limit) if row.bottleneck else "",
        "<profile entry": row.bottleneck.entry if row.bottleneck else "",
        "basis": row.basis,
    }


def _row(op: str, time_s: float, table: Operators, hidden_s: float = 0.0) -> _Row:
    """The cells that all rows have."""
    return {
        "op": op,
        ">time": format_seconds(time_s),
        ">hidden": format_seconds(hidden_s) if hidden_s > LEAST_SHARE * time_s else "",
        ">%": f"{time_s / table.iteration_time_s:.1%}",
    }


def rate_of(row: Operator) -> str:
    """What operators reach while they run: FLOP/s if arithmetic limits them, else bytes/s."""
    if row.bottleneck and row.bottleneck.limit.is_arithmetic and row.flops:
        return f"{row.flops_per_s / 1e12:.3g} TFLOP/s"
    return f"{four_digits(row.bytes_per_s / 1e9)} GB/s" if row.num_bytes else ""


def _remarks(table: Operators) -> list[str]:
    remarks = [
        "pass: F forward, I input gradients, W weight gradients, R recompute. time: seconds by "
        "which the iteration is longer for the op. hidden: seconds for which the op runs beside "
        "another one, whose time counts.",
    ]
    if slowed_s := table.slowed_s:
        remarks.append(
            f"Kernels take {format_seconds(slowed_s)} longer than alone, because collectives run "
            "beside them (profile entry overlap.slowdown)."
        )
    if any(row.basis == "extrapolated" for row in table.rows):
        remarks.append("* extrapolated: outside the range that the profile was fitted on.")
    return remarks


def operators_csv(table: Operators) -> str:
    """A line of comma-separated values for each operator, in full precision."""
    records: list[dict[str, Any]] = table.records()
    for record in records:
        record["entries"] = " ".join(record["entries"])
    text = io.StringIO()
    writer = csv.DictWriter(text, [*records[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
