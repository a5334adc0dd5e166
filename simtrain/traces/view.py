"""Page of `simtrain compare` with traces: where a real iteration loses time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from simtrain.traces.lanes import lanes_of
from simtrain.traces.study import RankComparison, TraceComparison
from simtrain.units import format_seconds
from simtrain.views.kinds import (
    COUNT,
    SECONDS,
    SHARE,
    SIGNED_SECONDS,
    SIGNED_SHARE,
    TEXT,
    WHOLE_TEXT,
)
from simtrain.views.view import (
    Cell,
    Column,
    Facts,
    LanesPicture,
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

_MEANING = "A slice of time shows the kind of kernels that takes most of it."


def trace_view(comparison: TraceComparison) -> View:
    """Show the losses, kinds, ops and streams of each rank beside its simulated stage."""
    ranks = comparison.ranks
    parts: list[Part] = [
        _facts(comparison),
        *([_ranks(ranks)] if len(ranks) > 1 else []),
        _losses(ranks),
        Paragraphs([*_summary(ranks)], None),
        _kinds(ranks),
        _overlap(ranks),
        _ops(ranks),
        _unmapped(ranks),
        _streams(ranks),
        remarks(_remarks(comparison)),
    ]
    return View(parts)


def lanes_view(comparison: TraceComparison) -> View:
    """Show both timelines of each rank, one above the other."""
    parts: list[Part] = []
    for rank in comparison.ranks:
        end_s = max(rank.traced_s, rank.simulated_s)
        lanes = {
            f"trace, {_name(rank)}": lanes_of(rank.mapping.traced, end_s),
            f"simulated, {_beside(rank)}": lanes_of(rank.mapping.simulated, end_s),
        }
        parts.append(LanesPicture(lanes, end_s, _MEANING))
    return View(parts)


def _name(rank: RankComparison) -> str:
    return "its rank" if rank.rank is None else f"rank {rank.rank}"


def _beside(rank: RankComparison) -> str:
    part = f"pass {rank.simulated_pass} of " if rank.simulated_pass else ""
    return f"{part}stage {rank.stage}"


def _facts(comparison: TraceComparison) -> Facts:
    rows = [("scenario", comparison.scenario)]
    for rank in comparison.ranks:
        number = "" if rank.num_iterations == 1 else f", the median of {rank.num_iterations}"
        words = f"{rank.iteration}{number} (by {rank.found_by}), beside {_beside(rank)}"
        rows.append((_name(rank), f"{rank.file}: {words}"))
    return Facts(rows)


def _ranks(ranks: Sequence[RankComparison]) -> Table:
    columns = (
        Column("rank", "rank", COUNT),
        Column("stage", "stage", COUNT),
        Column("trace_s", "trace", SECONDS),
        Column("simulated_s", "simulated", SECONDS),
        Column("share", "longer", SIGNED_SHARE, "time of the trace beyond the simulated"),
        Column("unmapped_s", "unmapped", SECONDS, "kernels that nothing simulated is like"),
    )
    rows = [
        Row(
            (
                rank.rank,
                rank.stage,
                rank.traced_s,
                rank.simulated_s,
                rank.traced_s / rank.simulated_s - 1,
                rank.unmapped_s,
            )
        )
        for rank in ranks
    ]
    return Table("ranks", "Ranks", columns, rows)


def _causes(rank: RankComparison) -> Iterator[tuple[str, str, float, float]]:
    """Yield name, label and both times of each cause; both columns add up to the iterations."""
    labels = {kind.kind: kind.label for kind in rank.kinds}
    yield "compute", "compute", rank.traced.compute_s, rank.simulated.compute_s
    traced_s, simulated_s = rank.traced.exposed_s, rank.simulated.exposed_s
    for name in dict.fromkeys([*simulated_s, *traced_s]):
        both = traced_s.get(name, 0.0), simulated_s.get(name, 0.0)
        yield f"exposed {name}", f"exposed {labels[name]}", *both
    for name, label in _IDLE.items():
        field = f"{name}_s"
        yield name, label, getattr(rank.traced, field), getattr(rank.simulated, field)


_IDLE = {
    "copies": "copies of memory alone",
    "host_gap": "host gaps",
    "start_gap": "starts of kernels",
    "bubble": "bubble (waits for others)",
}
"""Causes that are fields of `Losses`."""


def _losses(ranks: Sequence[RankComparison]) -> Table:
    columns = (
        *_rank_column(ranks),
        Column("cause", "cause", TEXT),
        *_both("of the iteration"),
        Column("share", "share", SIGNED_SHARE, "of the simulated iteration"),
    )
    rows = []
    for rank in ranks:
        for _, label, traced_s, simulated_s in _causes(rank):
            if max(traced_s, simulated_s) > _ROUNDING_S:
                rows.append(_row(ranks, rank, label, traced_s, simulated_s))
        total = _row(ranks, rank, "iteration", rank.traced_s, rank.simulated_s)
        rows.append(Row(total.cells, "strong"))
    return Table("losses", "Where the time goes (exposed time; adds up)", columns, rows)


def _row(
    ranks: Sequence[RankComparison],
    rank: RankComparison,
    label: str,
    traced_s: float,
    simulated_s: float,
) -> Row:
    difference_s = traced_s - simulated_s
    values = label, traced_s, simulated_s, *_change(difference_s, rank.simulated_s)
    return Row((*_rank_cell(ranks, rank), *values))


def _change(difference_s: float, total_s: float) -> tuple[float | Cell, float | Cell]:
    """Return a difference and its share of the total; a rounding error has no text."""
    share = difference_s / total_s
    if abs(difference_s) <= _ROUNDING_S:
        return Cell(difference_s, ""), Cell(share, "")
    return difference_s, share


def _both(what: str) -> tuple[Column, ...]:
    return (
        Column("trace_s", "trace", SECONDS, what),
        Column("simulated_s", "simulated", SECONDS, what),
        Column("difference_s", "difference", SIGNED_SECONDS),
    )


def _rank_column(ranks: Sequence[RankComparison]) -> tuple[Column, ...]:
    return (Column("rank", "rank", COUNT),) if len(ranks) > 1 else ()


def _rank_cell(ranks: Sequence[RankComparison], rank: RankComparison) -> tuple[Any, ...]:
    return (rank.rank,) if len(ranks) > 1 else ()


def _kinds(ranks: Sequence[RankComparison]) -> Table:
    columns = (
        *_rank_column(ranks),
        Column("kind", "kind of kernels", TEXT),
        Column("group", "group", COUNT, "ranks of a collective's group"),
        Column("trace_count", "n", COUNT, "kernels in the trace"),
        Column("simulated_count", "n sim.", COUNT, "simulated kernels"),
        *_both("sum of times of kernels, hidden or not"),
        Column("mapped_by", "by", WHOLE_TEXT, "how the kernels were mapped to ops"),
    )
    rows = [
        Row(
            (
                *_rank_cell(ranks, rank),
                kind.label,
                kind.group or None,
                kind.traced.count,
                kind.simulated.count,
                kind.traced.total_s,
                kind.simulated.total_s,
                _change(kind.difference_s, rank.simulated_s)[0],
                kind.mapped_by or "-",
            )
        )
        for rank in ranks
        for kind in rank.kinds
    ]
    optional = "simulated_count", "trace_count", "group"
    return Table("kinds", "By kind of kernels (sums)", columns, rows, optional=optional)


def _overlap(ranks: Sequence[RankComparison]) -> Table:
    columns = (
        *_rank_column(ranks),
        Column("side", "", TEXT),
        Column("compute_s", "compute", SECONDS, "time in which a kernel computes"),
        Column("communication_s", "communication", SECONDS, "time in which the rank communicates"),
        Column("both_s", "both", SECONDS, "time in which it does both"),
        Column("hidden_share", "hidden", SHARE, "share of communication beside compute"),
    )
    rows = [
        Row(
            (
                *_rank_cell(ranks, rank),
                name,
                overlap.compute_s,
                overlap.communication_s,
                overlap.both_s,
                overlap.hidden_share,
            )
        )
        for rank in ranks
        for name, overlap in (
            ("trace", rank.traced_overlap),
            ("simulated", rank.simulated_overlap),
        )
    ]
    return Table("overlap", "Communication beside compute", columns, rows)


def _ops(ranks: Sequence[RankComparison]) -> Table:
    columns = (
        *_rank_column(ranks),
        Column("op", "op", TEXT),
        Column("kind", "kind", TEXT),
        Column("count", "n", COUNT, "simulated ops"),
        *_both("sum of times of kernels, hidden or not"),
    )
    rows = [
        Row(
            (
                *_rank_cell(ranks, rank),
                op.op,
                op.kind,
                op.simulated.count,
                op.traced.total_s,
                op.simulated.total_s,
                _change(op.difference_s, rank.simulated_s)[0],
            )
        )
        for rank in ranks
        for op in rank.ops
    ]
    return _first_rows("ops", "Ops that differ most", columns, rows, _MOST_OPS, ("kind", "count"))


def _unmapped(ranks: Sequence[RankComparison]) -> Table:
    columns = (
        *_rank_column(ranks),
        Column("kernel", "not mapped", TEXT),
        Column("kind", "kind", TEXT),
        Column("count", "n", COUNT),
        Column("trace_s", "trace", SECONDS, "sum of times"),
    )
    rows = [
        Row(
            (
                *_rank_cell(ranks, rank),
                Cell(kernel.name, _shortened(kernel.name)),
                kernel.kind,
                kernel.sum.count,
                kernel.sum.total_s,
            )
        )
        for rank in ranks
        for kernel in rank.unmapped
    ]
    title = "Kernels that nothing simulated is like"
    return _first_rows("unmapped", title, columns, rows, _MOST_UNMAPPED, ())


def _shortened(name: str) -> str:
    """Return the beginning of a name, which templates make long."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _first_rows(
    name: str,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    most: int,
    optional: Sequence[str],
) -> Table:
    """Return a table of which people see the first rows, and CSV has all."""
    data = Table(name, title, columns, rows).records()
    shortened = title if len(rows) <= most else f"{title} (first {most} of {len(rows)})"
    return Table(name, shortened, columns, rows[:most], optional=optional, data=data)


def _streams(ranks: Sequence[RankComparison]) -> Table:
    columns = (
        *_rank_column(ranks),
        Column("stream", "stream", WHOLE_TEXT),
        Column("count", "n", COUNT, "kernels"),
        Column("compute_s", "compute", SECONDS, "sum of times"),
        Column("communication_s", "communication", SECONDS, "sum of times"),
        Column("copies_s", "copies", SECONDS, "sum of times"),
    )
    rows = [
        Row(
            (
                *_rank_cell(ranks, rank),
                stream.stream,
                stream.kernels.count,
                stream.compute_s,
                stream.communication_s,
                stream.copies_s,
            )
        )
        for rank in ranks
        for stream in rank.streams
    ]
    return Table("streams", "Streams of the trace", columns, rows)


def _summary(ranks: Sequence[RankComparison]) -> Iterator[str]:
    for rank in ranks:
        difference_s = rank.traced_s - rank.simulated_s
        times = f"{format_seconds(rank.traced_s)} against {format_seconds(rank.simulated_s)}"
        if abs(difference_s) <= _ROUNDING_S:
            yield f"Trace and simulation of {_name(rank)} take the same time, {times}."
            continue
        changes = [
            (label, traced_s - simulated_s) for _, label, traced_s, simulated_s in _causes(rank)
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
