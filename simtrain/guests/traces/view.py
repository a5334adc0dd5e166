"""Tables of `simtrain compare` with traces: where a real iteration loses time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from simtrain.guests.traces.study import RankComparison, TraceComparison
from simtrain.units import format_seconds
from simtrain.views.kinds import (
    COUNT,
    SECONDS,
    SIGNED_SECONDS,
    SIGNED_SHARE,
    TEXT,
    WHOLE_TEXT,
)
from simtrain.views.view import (
    Cell,
    Column,
    Facts,
    Paragraphs,
    Part,
    Row,
    Table,
    View,
    remarks,
)

_MOST_OPS, _MOST_UNMAPPED, _LONGEST_NAME = 12, 10, 36
_ROUNDING_S = 1e-8
"""Times in traces are rounded to nanoseconds; sums of many differ by less than this."""
_IDLE = {
    "copies": "copies of memory alone",
    "host_gap": "host gaps",
    "start_gap": "starts of kernels",
    "bubble": "bubble (waits for others)",
}
"""Causes that are fields of `Losses`."""
_RANK = Column("rank", "rank", COUNT)


def trace_view(comparison: TraceComparison) -> View:
    """Show the losses, kinds and ops of each rank beside its simulated stage."""
    ranks = comparison.ranks
    parts: list[Part] = [
        _facts(comparison),
        _losses(ranks),
        Paragraphs([*_summary(ranks)], None),
        _kinds(ranks),
        _ops(ranks),
        _unmapped(ranks),
        remarks(_remarks(comparison)),
    ]
    return View(parts)


def _name(rank: RankComparison) -> str:
    return "its rank" if rank.rank is None else f"rank {rank.rank}"


def _facts(comparison: TraceComparison) -> Facts:
    rows = [("scenario", comparison.scenario)]
    for rank in comparison.ranks:
        number = "" if rank.num_iterations == 1 else f", the median of {rank.num_iterations}"
        words = f"{rank.iteration}{number} (by {rank.found_by}), beside stage {rank.stage}"
        rows.append((_name(rank), f"{rank.file}: {words}"))
    return Facts(rows)


def _table(
    name: str,
    title: str,
    ranks: Sequence[RankComparison],
    columns: Iterable[Column],
    rows_of: Callable[[RankComparison], Iterable[Row]],
    optional: Sequence[str] = (),
    most: int | None = None,
) -> Table:
    """Return a table with the rows of each rank, and a column of ranks if there are several.

    Of more than `most` rows people see the first, and CSV has all.
    """
    first = [_RANK] if len(ranks) > 1 else []
    rows = [
        Row([each.rank, *row.cells] if first else row.cells, row.style)
        for each in ranks
        for row in rows_of(each)
    ]
    whole = Table(name, title, [*first, *columns], rows, optional=optional)
    if most is None:
        return whole
    shown = title if len(rows) <= most else f"{title} (first {most} of {len(rows)})"
    data = whole.records()
    return Table(name, shown, whole.columns, rows[:most], optional=optional, data=data)


def _both(what: str) -> tuple[Column, ...]:
    return (
        Column("trace_s", "trace", SECONDS, what),
        Column("simulated_s", "simulated", SECONDS, what),
        Column("difference_s", "difference", SIGNED_SECONDS),
    )


def _change(difference_s: float, total_s: float) -> tuple[float | Cell, float | Cell]:
    """Return a difference and its share of the total; a rounding error has no text."""
    share = difference_s / total_s
    if abs(difference_s) <= _ROUNDING_S:
        return Cell(difference_s, ""), Cell(share, "")
    return difference_s, share


def _causes(rank: RankComparison) -> Iterator[tuple[str, float, float]]:
    """Yield label and both times of each cause; both columns add up to the iterations."""
    labels = {kind.kind: kind.label for kind in rank.kinds}
    yield "compute", rank.traced.compute_s, rank.simulated.compute_s
    traced_s, simulated_s = rank.traced.exposed_s, rank.simulated.exposed_s
    for name in dict.fromkeys([*simulated_s, *traced_s]):
        yield f"exposed {labels[name]}", traced_s.get(name, 0.0), simulated_s.get(name, 0.0)
    for name, label in _IDLE.items():
        yield label, getattr(rank.traced, f"{name}_s"), getattr(rank.simulated, f"{name}_s")


def _losses(ranks: Sequence[RankComparison]) -> Table:
    share = Column("share", "share", SIGNED_SHARE, "of the simulated iteration")
    columns = Column("cause", "cause", TEXT), *_both("of the iteration"), share

    def rows_of(rank: RankComparison) -> Iterator[Row]:
        causes = [cause for cause in _causes(rank) if max(cause[1:]) > _ROUNDING_S]
        for label, *times_s in [*causes, ("iteration", rank.traced_s, rank.simulated_s)]:
            change = _change(times_s[0] - times_s[1], rank.simulated_s)
            yield Row((label, *times_s, *change), "strong" if label == "iteration" else None)

    title = "Where the time goes (exposed time; adds up)"
    return _table("losses", title, ranks, columns, rows_of)


def _kinds(ranks: Sequence[RankComparison]) -> Table:
    columns = (
        Column("kind", "kind of kernels", TEXT),
        Column("group", "group", COUNT, "ranks of a collective's group"),
        Column("trace_count", "n", COUNT, "kernels in the trace"),
        Column("simulated_count", "n sim.", COUNT, "simulated kernels"),
        *_both("sum of times of kernels, hidden or not"),
        Column("mapped_by", "by", WHOLE_TEXT, "how the kernels were mapped to ops"),
    )

    def rows_of(rank: RankComparison) -> Iterator[Row]:
        for kind in rank.kinds:
            counts, times_s = zip(
                *((side.count, side.total_s) for side in (kind.traced, kind.simulated)),
                strict=True,
            )
            change, _ = _change(kind.difference_s, rank.simulated_s)
            cells = kind.label, kind.group or None, *counts, *times_s, change
            yield Row((*cells, kind.mapped_by or "-"))

    optional = "simulated_count", "trace_count", "group"
    return _table("kinds", "By kind of kernels (sums)", ranks, columns, rows_of, optional)


def _ops(ranks: Sequence[RankComparison]) -> Table:
    columns = (
        Column("op", "op", TEXT),
        Column("kind", "kind", TEXT),
        Column("count", "n", COUNT, "simulated ops"),
        *_both("sum of times of kernels, hidden or not"),
    )

    def rows_of(rank: RankComparison) -> Iterator[Row]:
        for op in rank.ops:
            change, _ = _change(op.difference_s, rank.simulated_s)
            times_s = op.traced.total_s, op.simulated.total_s
            yield Row((op.op, op.kind, op.simulated.count, *times_s, change))

    optional = "kind", "count"
    return _table("ops", "Ops that differ most", ranks, columns, rows_of, optional, _MOST_OPS)


def _unmapped(ranks: Sequence[RankComparison]) -> Table:
    columns = (
        Column("kernel", "not mapped", TEXT),
        Column("kind", "kind", TEXT),
        Column("count", "n", COUNT),
        Column("trace_s", "trace", SECONDS, "sum of times"),
    )

    def rows_of(rank: RankComparison) -> Iterator[Row]:
        for each in rank.unmapped:
            is_long = len(each.name) > _LONGEST_NAME
            text = f"{each.name[: _LONGEST_NAME - 3]}..." if is_long else each.name
            yield Row((Cell(each.name, text), each.kind, each.sum.count, each.sum.total_s))

    title = "Kernels that nothing simulated is like"
    return _table("unmapped", title, ranks, columns, rows_of, most=_MOST_UNMAPPED)


def _summary(ranks: Sequence[RankComparison]) -> Iterator[str]:
    for rank in ranks:
        difference_s = rank.traced_s - rank.simulated_s
        times = f"{format_seconds(rank.traced_s)} against {format_seconds(rank.simulated_s)}"
        if abs(difference_s) <= _ROUNDING_S:
            yield f"Trace and simulation of {_name(rank)} take the same time, {times}."
            continue
        changes = [
            (label, traced_s - simulated_s) for label, traced_s, simulated_s in _causes(rank)
        ]
        changes.sort(key=lambda change: -abs(change[1]))
        words = ", ".join(
            f"{seconds / rank.simulated_s:+.1%} {label}"
            for label, seconds in changes[:3]
            if abs(seconds) > _ROUNDING_S
        )
        word = "longer" if difference_s > 0 else "shorter"
        share = abs(difference_s) / rank.simulated_s
        yield f"Of {_name(rank)}, the trace is {share:.1%} {word} ({times}): {words}."


def _remarks(comparison: TraceComparison) -> Iterator[str]:
    ranks = comparison.ranks
    for rank in ranks:
        total_s = sum(kind.traced.total_s for kind in rank.kinds)
        mapped_s = total_s - rank.unmapped_s
        yield (
            f"{_name(rank).capitalize()}: {mapped_s / total_s:.1%} of the time of its kernels is "
            "mapped to simulated ops or kinds."
        )
    if any(rank.found_by == "the whole trace" for rank in ranks):
        yield (
            "A trace without steps of the profiler counts as one iteration: call the profiler's "
            "step() after each."
        )
    if not comparison.is_by_rank:
        yield (
            "The traces do not have the ranks of the scenario: the first is compared with stage 0, "
            "and so on."
        )
    if any(
        "transfer" in side.exposed_s for rank in ranks for side in (rank.traced, rank.simulated)
    ):
        yield (
            "A receive of NCCL waits for its sender, so that in a real trace exposed transfers "
            "contain the bubble. Compare their sum."
        )
