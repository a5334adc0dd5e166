"""The work of two iterations by kind, side by side: a recorded program and a scenario by hand."""

from __future__ import annotations

from simtrain.iteration.report.difference import Difference
from simtrain.iteration.report.work_kinds import WorkSum, work_kinds
from simtrain.units import four_digits
from simtrain.views.kinds import BYTES, COUNT, SECONDS, SIGNED_SECONDS, TEXT, Kind
from simtrain.views.view import Column, Row, Table

_FLOPS = Kind(lambda flops: f"{four_digits(flops / 1e12)} TFLOP")
_NOTHING = WorkSum()


def differs_by_recording(difference: Difference) -> bool:
    """Whether one of two scenarios runs a recorded program and the other one does not."""
    plans = difference.base.plan, difference.other.plan
    return (plans[0].recorded is None) != (plans[1].recorded is None)


def work_table(letter: str, difference: Difference) -> Table:
    """Return the work of a scenario beside that of the first, by kind and pass."""
    base, other = work_kinds(difference.base), work_kinds(difference.other)
    kinds = sorted(
        {**base, **other},
        key=lambda kind: -max(base.get(kind, _NOTHING).total_s, other.get(kind, _NOTHING).total_s),
    )
    rows = []
    for kind in kinds:
        first, second = base.get(kind, _NOTHING), other.get(kind, _NOTHING)
        more_s = second.total_s - first.total_s
        rows.append(Row((*kind, *_cells(first), *_cells(second), more_s)))
    columns = (
        Column("kind", "kind", TEXT),
        Column("pass", "pass", TEXT),
        *_columns("A"),
        *_columns(letter),
        Column("difference_s", "difference", SIGNED_SECONDS, "of the times"),
    )
    optional = [f"{name}_{part}" for part in ("count", "flops", "bytes") for name in ("A", letter)]
    return Table(
        f"work-{letter}",
        f"What A and {letter} run, on one rank",
        columns,
        rows,
        optional=tuple(optional),
    )


def _columns(letter: str) -> tuple[Column, ...]:
    return (
        Column(f"{letter}_count", f"{letter} count", COUNT),
        Column(f"{letter}_flops", f"{letter} FLOPs", _FLOPS),
        Column(f"{letter}_bytes", f"{letter} bytes", BYTES, "that ops move or send"),
        Column(f"{letter}_s", letter, SECONDS, "for which they run"),
        Column(f"{letter}_exposed_s", f"{letter} exposed", SECONDS),
    )


def _cells(work: WorkSum) -> tuple[int | None, int | None, float | None, float, float]:
    return work.count, work.flops or None, work.num_bytes or None, work.total_s, work.exposed_s
