"""Days, interruptions and lost hours of whole trainings: `simtrain goodput`."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.studies.goodput.goodput import DrawnFigure, Goodput
from simtrain.studies.goodput.training import Training
from simtrain.units import DAY_S, format_seconds, four_digits
from simtrain.views.kinds import BAR, ENTRY, FOUR_DIGITS, SHARE, TEXT, amount
from simtrain.views.view import (
    Column,
    Facts,
    Heading,
    Lane,
    LaneSpan,
    LanesPicture,
    Row,
    Table,
    View,
    remarks,
)

_NUM_LANES = 8
_MEANING = "One training that was drawn. Checkpoints between iterations belong to the work."
_HOURS = (
    Column("cause", "lost to", TEXT),
    Column("mean", "hours", FOUR_DIGITS),
    Column("p5", "5 %", FOUR_DIGITS),
    Column("p95", "95 %", FOUR_DIGITS),
    Column("share", "of the time", SHARE),
    Column("bar", "", BAR),
)
_LEVERS = (
    Column("change", "change", TEXT),
    Column("effective_training_time_ratio", "effective time", SHARE),
    Column("gain", "gain", SHARE),
)
_HINGES = (
    Column("entry", "entry", ENTRY),
    Column("value", "value", FOUR_DIGITS),
    Column("change", "if doubled", SHARE),
)


def goodput_view(goodput: Goodput, *, has_picture: bool = False) -> View:
    """Show the ratio, where the hours go, what would raise it, and what it hangs on.

    Args:
        goodput: what was drawn.
        has_picture: also show the first training over its days; only a page has the room.
    """
    days = goodput.days.mean
    hours = [
        Row((cause, lost.mean, lost.p5, lost.p95, lost.mean / 24 / days, lost.mean / 24 / days))
        for cause, lost in sorted(goodput.lost_hours.items(), key=lambda item: -item[1].mean)
        if lost.p95
    ]
    levers = [Row((each.change, each.effective_ratio, each.gain)) for each in goodput.levers]
    hinges = [Row((each.entry, each.value, each.change)) for each in goodput.hinges]
    return View(
        [
            Heading(f"{goodput.scenario}: a training of {goodput.num_gpus:,} GPUs"),
            Facts([*_facts(goodput)]),
            *([_picture(goodput)] if has_picture else []),
            Table("hours", "Where the hours go", _HOURS, hours),
            Table("levers", "What to change first", _LEVERS, levers),
            Table("hinges", "What the answer hangs on", _HINGES, hinges),
            remarks(_notes(goodput)),
        ]
    )


def training_lanes(training: Training, num_lanes: int) -> list[Lane]:
    """Cut a training into lanes of equal time; moments of a lane count from its start."""
    lane_s = training.time_s / num_lanes
    lanes = []
    for first_s in (number * lane_s for number in range(num_lanes)):
        spans = (
            LaneSpan(max(span.start_s - first_s, 0.0), min(span.end_s - first_s, lane_s), span.kind)
            for span in training.spans
            if span.end_s > first_s and span.start_s < first_s + lane_s
        )
        lanes.append(Lane(f"from day {first_s / DAY_S:.0f}", (*spans,)))
    return lanes


def _facts(goodput: Goodput) -> Iterator[tuple[str, str]]:
    ratio, fleet = goodput.effective_ratio, goodput.fleet
    each = fleet.checkpoint
    yield "GPUs", f"{goodput.num_gpus:,} on {fleet.num_nodes:,} nodes, {fleet.spares:,} spare"
    yield "effective training time", f"{ratio.mean:.1%} ({ratio.p5:.1%} to {ratio.p95:.1%})"
    yield "days", _figure(goodput.days)
    if goodput.num_tokens is None:
        tokens = goodput.tokens
        yield "tokens", f"{amount(tokens.mean / 1e9)}B ({_ends(tokens, 1e9)})"
    else:
        yield "tokens", f"{goodput.num_tokens:,}"
    yield "interruptions", _figure(goodput.interruptions)
    interval, stop, loadable = map(
        format_seconds, (each.interval_s, each.blocking_s, each.loadable_s)
    )
    yield "checkpoints", f"every {interval}, stop for {stop}, loadable after {loadable}"
    yield "closed form", f"{goodput.closed_form:.1%}, to first order in the rates"


def _picture(goodput: Goodput) -> LanesPicture:
    training = goodput.trainings[0]
    lanes = {"One training": training_lanes(training, _NUM_LANES)}
    return LanesPicture(lanes, training.time_s / _NUM_LANES, _MEANING, in_days=True)


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
