"""The time of each module of a recorded program: rows of reports."""

from __future__ import annotations

from collections import defaultdict

from simtrain.iteration.report.operators import Operator, StageOperators
from simtrain.views.kinds import SECONDS, SHARE, TEXT
from simtrain.views.view import Column, Row, Table

_PASSES = {
    "forward": "forward",
    "input_gradient": "backward",
    "weight_gradient": "backward",
    "recompute": "recompute",
    "optimizer": "optimizer",
}
"""Column of each phase of an op."""
_COMMUNICATION = "communication"
_PARTS = *dict.fromkeys(_PASSES.values()), _COMMUNICATION


def modules_table(operators: StageOperators) -> Table:
    """Return the exposed seconds of each module by pass; those of collectives stand by themselves.

    Layers of equal names are one row ("layers.*.mlp"). With what no op takes (bubbles and waiting
    for launches), the rows add up to the iteration.
    """
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(_PARTS, 0.0))
    for row in operators.rows:
        module, _, _ = row.name.rpartition(": ")
        seconds[module or "outside of modules"][_part(row)] += row.exposed_s
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


def _part(row: Operator) -> str:
    return _COMMUNICATION if _COMMUNICATION in row.cause else _PASSES[row.phase]
