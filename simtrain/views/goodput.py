"""Days, interruptions and lost hours of whole trainings: `simtrain cost --details`."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.studies.goodput.goodput import DrawnFigure, Goodput
from simtrain.units import format_seconds, four_digits
from simtrain.views.kinds import BAR, ENTRY, FOUR_DIGITS, SHARE, TEXT
from simtrain.views.view import Column, Facts, Heading, Row, Table, View, remarks

_HOURS = (
    Column("cause", "lost to", TEXT),
    Column("mean", "hours", FOUR_DIGITS),
    Column("p5", "5 %", FOUR_DIGITS),
    Column("p95", "95 %", FOUR_DIGITS),
    Column("share", "of the time", SHARE),
    Column("bar", "", BAR),
)
_HINGES = (
    Column("entry", "entry", ENTRY),
    Column("value", "value", FOUR_DIGITS),
    Column("change", "if doubled", SHARE),
)


def goodput_view(goodput: Goodput) -> View:
    """Show the ratio, where the hours go, and what it hangs on."""
    days = goodput.days.mean
    hours = [
        Row((cause, lost.mean, lost.p5, lost.p95, lost.mean / 24 / days, lost.mean / 24 / days))
        for cause, lost in sorted(goodput.lost_hours.items(), key=lambda item: -item[1].mean)
        if lost.p95
    ]
    hinges = [Row((each.entry, each.value, each.change)) for each in goodput.hinges]
    return View(
        [
            Heading(f"{goodput.scenario}: a training of {goodput.num_gpus:,} GPUs"),
            Facts([*_facts(goodput)]),
            Table("hours", "Where the hours go", _HOURS, hours),
            Table("hinges", "What the answer hangs on", _HINGES, hinges),
            remarks(_notes(goodput)),
        ]
    )


def failure_facts(goodput: Goodput) -> Iterator[tuple[str, str]]:
    """Yield the share of the time that iterations take, and the number of interruptions."""
    ratio = goodput.effective_ratio
    yield "effective training time", f"{ratio.mean:.1%} ({ratio.p5:.1%} to {ratio.p95:.1%})"
    yield "interruptions", _figure(goodput.interruptions)
    if goodput.num_tokens is None:
        tokens = goodput.tokens
        yield "tokens in 90 %", f"{_ends(tokens, 1e9)} thousand million"


def _facts(goodput: Goodput) -> Iterator[tuple[str, str]]:
    fleet = goodput.fleet
    each = fleet.checkpoint
    yield "GPUs", f"{goodput.num_gpus:,} on {fleet.num_nodes:,} nodes, {fleet.spares:,} spare"
    interval, stop, loadable = map(
        format_seconds, (each.interval_s, each.blocking_s, each.loadable_s)
    )
    yield "checkpoints", f"every {interval}, stop for {stop}, loadable after {loadable}"
    yield "closed form", f"{goodput.closed_form:.1%}, to first order in the rates"


def _figure(figure: DrawnFigure) -> str:
    ends = "" if figure.p5 == figure.p95 else f" ({_ends(figure)})"
    return f"{four_digits(figure.mean)}{ends}"


def _ends(figure: DrawnFigure, unit: float = 1.0) -> str:
    return f"{four_digits(figure.p5 / unit)} to {four_digits(figure.p95 / unit)}"


def _notes(goodput: Goodput) -> Iterator[str]:
    yield (
        f"Drawn {goodput.draws:,} times with seed {goodput.seed}; the mean is known to "
        f"{goodput.effective_ratio.mean_error:.2%}. In parentheses: nine of ten trainings."
    )
    low, high = map(four_digits, goodput.prediction)
    varies = "tokens" if goodput.num_tokens is None else "days"
    time = format_seconds(goodput.iteration_time_s)
    yield (
        f"The interval of {varies} also counts how far off the predicted iteration may be: "
        f"{low} to {high} times its {time}."
    )
    if goodput.reliability != goodput.cluster:
        yield (
            f"{goodput.cluster} has no published failures of its own: those of "
            f"{goodput.reliability} stand in."
        )
    yield "Slow nodes are not counted: no rate of them is published by node."
    yield from (f"{hinge.entry}: {hinge.source}." for hinge in goodput.hinges)
    yield (
        "Times between failures, repairs and discoveries are exponential, all other times are "
        "constant; restarts can fail again."
    )
