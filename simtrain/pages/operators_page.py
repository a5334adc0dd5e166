"""The operators of a stage as a table: `simtrain run --ops`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from simtrain.pages.tables import FittedTable, notes, properties
from simtrain.report.breakdown import CAUSE_LABELS
from simtrain.report.operators import HOST_ISSUE, Operator, Operators
from simtrain.units import format_bytes, format_seconds

LEAST_SHARE = 1e-3
"""Operators below this share of the iteration are one row for each cause."""
_HEADINGS = (
    *("op", "pass", ">count", "shape", ">FLOPs", ">bytes", ">time", ">hidden", ">%", ">rate"),
    *("<limit", "<profile entry", "basis"),
)
_OPTIONAL = (">bytes", ">FLOPs", "basis", "<profile entry", "shape", ">count", "pass", ">hidden")
_ROUNDING = 1e-9
_PASSES = {"forward": "F", "input_gradient": "I", "weight_gradient": "W", "recompute": "R"}
_Row = tuple[Sequence[RenderableType], str | None]


def operators_page(table: Operators, name: str) -> RenderableType:
    """All operators of a stage, cause by cause, the longest first."""
    title = (
        ("scenario", name),
        ("stage", _stage(table)),
        ("iteration time", format_seconds(table.iteration_time_s)),
    )
    rows: list[_Row] = []
    for field, label in CAUSE_LABELS.items():
        cause_s = getattr(table.breakdown, field)
        operators = table.of_cause(field.removesuffix("_s"))
        if operators or cause_s > _ROUNDING * table.iteration_time_s:
            limit, entry = ("host", HOST_ISSUE) if field == "launch_s" else ("", "")
            cells = _cells(op=label, time=cause_s, of=table, limit=limit, entry=entry)
            rows.append((cells, "bold"))
            rows += [(cells, None) for cells in _of_cause(operators, table)]
    fitted = FittedTable(
        _HEADINGS,
        rows,
        optional=_OPTIONAL,
        title="Operators of an iteration on one rank of the stage",
        end=_cells(op="iteration", time=table.iteration_time_s, of=table),
    )
    return Group(properties(title), "", fitted, "", _limits(table), "", *notes(_remarks(table)))


def _limits(table: Operators) -> FittedTable:
    """The time by what limits it, and the entries of the profile that it comes from."""
    rows: list[_Row] = []
    for limit, operators in table.by_limit():
        seconds = math.fsum(row.exposed_s for row in operators)
        entries = {row.bottleneck.entry: None for row in operators if row.bottleneck}
        cells = (
            str(limit),
            format_seconds(seconds),
            f"{seconds / table.iteration_time_s:.1%}",
            ", ".join(entries),
        )
        rows.append((cells, None))
    headings = ("<limit", ">time", ">%", "entries of the hardware profile")
    return FittedTable(headings, rows, optional=(">%",), title="What limits the ops")


def _stage(table: Operators) -> str:
    if table.num_stages == 1:
        return "0, the only one"
    why = ", the slowest: the others wait for it" if table.is_slowest else ""
    return f"{table.stage} of 0 to {table.num_stages - 1}{why}"


def _of_cause(operators: Sequence[Operator], table: Operators) -> list[Sequence[RenderableType]]:
    least_s = LEAST_SHARE * table.iteration_time_s
    shown = [row for row in operators if row.total_s >= least_s]
    others = [row for row in operators if row.total_s < least_s]
    cells = [_operator_cells(row, table) for row in shown]
    if others:
        time_s, hidden_s = sum(row.exposed_s for row in others), sum(row.hidden_s for row in others)
        words = f"  {len(others)} smaller"
        count = sum(row.count for row in others)
        cells.append(_cells(op=words, time=time_s, of=table, hidden=hidden_s, count=f"{count:,}"))
    return cells


def _operator_cells(row: Operator, table: Operators) -> Sequence[RenderableType]:
    mark = "*" if row.basis == "extrapolated" else " "
    return _cells(
        op=f"{mark} {row.name}",
        phase=_PASSES.get(row.phase, ""),
        time=row.exposed_s,
        of=table,
        hidden=row.hidden_s,
        count=f"{row.count:,}",
        shape=row.shape,
        flops=_short(row.flops) if row.flops else "",
        num_bytes=format_bytes(row.num_bytes) if row.num_bytes else "",
        rate=rate_of(row),
        limit=str(row.bottleneck.limit) if row.bottleneck else "",
        entry=row.bottleneck.entry if row.bottleneck else "",
        basis=row.basis,
    )


def _cells(
    *,
    op: str,
    time: float,
    of: Operators,
    hidden: float = 0.0,
    phase: str = "",
    count: str = "",
    shape: str = "",
    flops: str = "",
    num_bytes: str = "",
    rate: str = "",
    limit: str = "",
    entry: str = "",
    basis: str = "",
) -> Sequence[RenderableType]:
    """A row in the order of `_HEADINGS`."""
    share = f"{time / of.iteration_time_s:.1%}"
    hidden_s = format_seconds(hidden) if hidden > LEAST_SHARE * time else ""
    texts = op, phase, count, shape, flops, num_bytes, format_seconds(time), hidden_s, share, rate
    return [Text(text) for text in (*texts, limit, entry, basis)]


def rate_of(row: Operator) -> str:
    """What operators reach while they run: FLOP/s if arithmetic limits them, else bytes/s."""
    if row.bottleneck and row.bottleneck.limit.is_arithmetic and row.flops:
        return f"{row.flops_per_s / 1e12:.3g} TFLOP/s"
    return f"{row.bytes_per_s / 1e9:.4g} GB/s" if row.num_bytes else ""


def _short(flops: float) -> str:
    return f"{flops / 1e12:.4g} TFLOP"


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
