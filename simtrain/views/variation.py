"""The iteration drawn many times: `simtrain run --draws`."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.base.plain_data import Number, Sentence
from simtrain.studies.variation import DrawnTimes
from simtrain.units import format_seconds
from simtrain.views.kinds import SECONDS, SIGNED_SHARE, TEXT
from simtrain.views.view import Cell, Column, Facts, Part, Row, Table, remarks

_PERCENTILES = {
    "mean": "mean",
    "least": "shortest",
    "p5": "5 % take at most",
    "p50": "median",
    "p95": "95 % take at most",
    "p99": "99 % take at most",
    "most": "longest",
}


def variation_parts(drawn: DrawnTimes) -> list[Part]:
    """Show the distribution of the time, and the reasons."""
    return [Facts([*_facts(drawn)]), _times(drawn), _reasons(drawn), _notes(drawn)]


def _facts(drawn: DrawnTimes) -> Iterator[tuple[str, str | Cell]]:
    time = drawn.time
    words = f"{format_seconds(time.mean)} ({drawn.slowdown - 1:+.1%})"
    yield "mean of the iterations", Cell(time.mean, words)
    ends = f"{format_seconds(time.mean_low)} to {format_seconds(time.mean_high)}"
    yield "95 % interval of the mean", ends


def _times(drawn: DrawnTimes) -> Table:
    columns = [
        Column("statistic", "iterations", TEXT),
        Column("time_s", "time", SECONDS),
        Column("change", "change", SIGNED_SHARE, "relative to the time without variation"),
    ]
    values = {label: getattr(drawn.time, name) for name, label in _PERCENTILES.items()}
    rows = [Row((label, value, value / drawn.usual_s - 1)) for label, value in values.items()]
    return Table("draws", "How long iterations take", columns, rows)


def _reasons(drawn: DrawnTimes) -> Table:
    columns = [
        Column("reason", "reason", TEXT),
        Column("change", "change", SIGNED_SHARE, "of the mean, by this alone"),
    ]
    rows = [Row((reason.words, reason.change)) for reason in drawn.reasons]
    return Table("reasons", "Why", columns, rows)


def _notes(drawn: DrawnTimes) -> Part:
    simulated, total = drawn.num_simulated_ranks, drawn.num_ranks
    others = "; the others are like one of these" if simulated < total else ""
    note = Sentence(
        "Drawn ",
        Number(drawn.draws, f"{drawn.draws:,}"),
        f" times with seed {drawn.seed}, each stage of each replica by itself: ",
        Number(simulated, f"{simulated:,}"),
        f" of {total:,} ranks{others}.",
    )
    usual = format_seconds(drawn.usual_s)
    shown = f"Other figures, timelines and traces show the iteration without variation, {usual}."
    return remarks([note, shown])
