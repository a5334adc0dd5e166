"""The operators of a stage and what limits them, and modules: `simtrain run --show ops`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.operators import HOST_ISSUE, Operator, StageOperators
from simtrain.units import format_seconds, four_digits
from simtrain.views.kinds import BYTES, COUNT, ENTRY, SECONDS, SHARE, TEXT, WHOLE_TEXT, Kind
from simtrain.views.view import Cell, Column, Facts, Row, Table, View, remarks

LEAST_SHARE = 1e-3
"""Operators below this share of the iteration are one row for each cause."""
_FLOPS = Kind(lambda flops: f"{four_digits(flops / 1e12)} TFLOP")
_COLUMNS = (
    Column("op", "op", TEXT),
    Column("phase", "pass", TEXT, "F forward, I input gradients, W weight gradients, R recompute"),
    Column("count", "count", COUNT, "how often one rank runs the op"),
    Column("shape", "shape", TEXT),
    Column("flops", "FLOPs", _FLOPS, "of all runs"),
    Column("bytes", "bytes", BYTES, "that all runs read and write, or send"),
    Column("exposed_s", "time", SECONDS, "seconds by which the iteration is longer for the op"),
    Column(
        "hidden_s",
        "hidden",
        SECONDS,
        "seconds for which the op runs beside another one, whose time counts",
    ),
    Column("share", "%", SHARE, "of the iteration"),
    Column("rate", "rate", Kind(str), "FLOP/s if arithmetic limits the op, else bytes/s"),
    Column("limit", "limit", WHOLE_TEXT),
    Column("entry", "profile entry", ENTRY, "the entry that the time follows from"),
    Column("basis", "basis", TEXT),
)
_NAMES = [column.name for column in _COLUMNS]
_OPTIONAL = ("bytes", "flops", "basis", "entry", "shape", "count", "phase", "hidden_s", "rate")
_ROUNDING = 1e-9
_ENTRIES = 3
_PASSES = {"forward": "F", "input_gradient": "I", "weight_gradient": "W", "recompute": "R"}


def operators_view(table: StageOperators, name: str, top: int | None = None) -> View:
    """Operators of a stage, cause by cause, the longest first, and what limits them.

    Args:
        table: the operators.
        name: name of the scenario.
        top: the most operators that have a row of their own; by default all that take
            `LEAST_SHARE` of the iteration. The others are one row for each cause.
    """
    facts = (
        ("scenario", name),
        ("stage", _stage(table)),
        ("iteration time", format_seconds(table.iteration_time_s)),
    )
    operators = Table(
        "operators",
        "Operators of an iteration on one rank of the stage",
        _COLUMNS,
        [*_rows(table, top)],
        end=_row("iteration", table.iteration_time_s, table),
        optional=_OPTIONAL,
        data=[row | {"entries": " ".join(row["entries"])} for row in table.records()],
    )
    return View([Facts(facts), operators, _limits(table), remarks(_remarks(table, top))])


def _is_listed(table: StageOperators, top: int | None) -> Callable[[Operator], bool]:
    if top is None:
        least_s = LEAST_SHARE * table.iteration_time_s
        return lambda row: row.total_s >= least_s
    longest = sorted((row.exposed_s for row in table.rows), reverse=True)[:top]
    shortest_s = min(longest, default=0.0)
    return lambda row: row.exposed_s >= shortest_s


def _rows(table: StageOperators, top: int | None) -> Iterator[Row]:
    is_listed = _is_listed(table, top)
    for field, label in CAUSE_LABELS.items():
        cause_s = getattr(table.breakdown, field)
        operators = table.of_cause(field.removesuffix("_s"))
        if operators or cause_s > _ROUNDING * table.iteration_time_s:
            is_host = field == "launch_s"
            limit = {"limit": "host", "entry": HOST_ISSUE} if is_host else {}
            cells = _row(label, cause_s, table, **limit).cells
            yield Row(cells, "strong")
            yield from _of_cause(operators, table, is_listed)


def _limits(table: StageOperators) -> Table:
    rows = []
    for limit, operators in table.by_limit():
        seconds = math.fsum(row.exposed_s for row in operators)
        entries = dict.fromkeys(row.bottleneck.entry for row in operators if row.bottleneck)
        share = seconds / table.iteration_time_s
        rows.append(Row((str(limit), seconds, share, _first(entries))))
    columns = (
        Column("limit", "limit", WHOLE_TEXT),
        Column("exposed_s", "time", SECONDS, "seconds by which the iteration is longer"),
        Column("share", "%", SHARE, "of the iteration"),
        Column("entries", "entries of the hardware profile", TEXT),
    )
    return Table("limits", "What limits the ops", columns, rows, optional=("share",))


def _first(entries: Iterable[str]) -> Cell:
    """Show the entries of the longest operators; data have them all."""
    names = [*entries]
    shown, others = names[:_ENTRIES], len(names) - _ENTRIES
    more = f" and {others} more" if others > 0 else ""
    return Cell(", ".join(names), ", ".join(shown) + more)


def _stage(table: StageOperators) -> str:
    if table.num_stages == 1:
        return "0, the only one"
    why = ", the slowest: the others wait for it" if table.is_slowest else ""
    return f"{table.stage} of 0 to {table.num_stages - 1}{why}"


def _of_cause(
    operators: Sequence[Operator], table: StageOperators, is_listed: Callable[[Operator], bool]
) -> Iterator[Row]:
    yield from (_operator_row(row, table) for row in operators if is_listed(row))
    if others := [row for row in operators if not is_listed(row)]:
        time_s, hidden_s = sum(row.exposed_s for row in others), sum(row.hidden_s for row in others)
        count = sum(row.count for row in others)
        smaller = _row(f"  {len(others)} smaller", time_s, table, hidden_s, count=count)
        yield Row(smaller.cells, "soft")


def _operator_row(row: Operator, table: StageOperators) -> Row:
    mark = "*" if row.basis == "extrapolated" else " "
    return _row(
        f"{mark} {row.name}",
        row.exposed_s,
        table,
        row.hidden_s,
        phase=_PASSES.get(row.phase, ""),
        count=row.count,
        shape=row.shape,
        flops=row.flops or None,
        bytes=row.num_bytes or None,
        rate=rate_of(row),
        limit=str(row.bottleneck.limit) if row.bottleneck else "",
        entry=row.bottleneck.entry if row.bottleneck else "",
        basis=row.basis,
    )


def _row(
    op: str, time_s: float, table: StageOperators, hidden_s: float = 0.0, /, **more: Any
) -> Row:
    """Return a row with the cells that all rows have, and more by the names of their columns."""
    cells = more | {
        "op": op,
        "exposed_s": time_s,
        "hidden_s": hidden_s if hidden_s > LEAST_SHARE * time_s else Cell(hidden_s, ""),
        "share": time_s / table.iteration_time_s,
    }
    return Row([cells.get(name) for name in _NAMES])


def rate_of(row: Operator) -> str:
    """What operators reach while they run: FLOP/s if arithmetic limits them, else bytes/s."""
    if row.bottleneck and row.bottleneck.limit.is_arithmetic and row.flops:
        return f"{row.flops_per_s / 1e12:.3g} TFLOP/s"
    return f"{four_digits(row.bytes_per_s / 1e9)} GB/s" if row.num_bytes else ""


def _remarks(table: StageOperators, top: int | None) -> Iterator[str]:
    if top is not None and top < len(table.rows):
        yield f"The {top} longest operators have a row each. --format csv lists all."
    yield (
        "pass: F forward, I input gradients, W weight gradients, R recompute. time: seconds by "
        "which the iteration is longer for the op. hidden: seconds for which the op runs beside "
        "another one, whose time counts."
    )
    if slowed_s := table.slowed_s:
        yield (
            f"Kernels take {format_seconds(slowed_s)} longer than alone, because collectives run "
            "beside them (profile entry overlap.slowdown)."
        )
    if any(row.basis == "extrapolated" for row in table.rows):
        yield "* extrapolated: outside the range that the profile was fitted on."


_PASS_COLUMNS = {
    "forward": "forward",
    "input_gradient": "backward",
    "weight_gradient": "backward",
    "recompute": "recompute",
    "optimizer": "optimizer",
}
"""Column of each phase of an op."""
_COMMUNICATION = "communication"
_PARTS = *dict.fromkeys(_PASS_COLUMNS.values()), _COMMUNICATION


def modules_table(operators: StageOperators) -> Table:
    """Return the exposed seconds of each module by pass; those of collectives stand by themselves.

    Layers of equal names are one row ("layers.*.mlp"). With what no op takes (bubbles and waiting
    for launches), the rows add up to the iteration.
    """
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(_PARTS, 0.0))
    for row in operators.rows:
        module, _, _ = row.name.rpartition(": ")
        seconds[module or "outside of modules"][_column_of(row)] += row.exposed_s
    rows = sorted(seconds.items(), key=lambda item: -sum(item[1].values()))
    columns = (
        Column("module", "module", TEXT, "with stars for numbers of layers"),
        *(Column(f"{part}_s", part, SECONDS, "exposed time of its ops") for part in _PARTS),
        Column("total_s", "time", SECONDS, "seconds by which the iteration is longer"),
        Column("share", "%", SHARE, "of the iteration"),
    )
    cells = (
        (
            module,
            *parts.values(),
            total_s := sum(parts.values()),
            total_s / operators.iteration_time_s,
        )
        for module, parts in rows
    )
    return Table("modules", "Modules of the program", columns, [Row(each) for each in cells])


def _column_of(row: Operator) -> str:
    return _COMMUNICATION if _COMMUNICATION in row.cause else _PASS_COLUMNS[row.phase]
