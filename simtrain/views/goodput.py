"""Days, interruptions and lost hours of whole trainings: `simtrain goodput`."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.studies.goodput.result import Goodput, Spread
from simtrain.studies.goodput.training import Training
from simtrain.units import DAY_S, format_seconds, four_digits
from simtrain.views.kinds import BAR, ENTRY, FOUR_DIGITS, SHARE, TEXT, amount
from simtrain.views.view import (
    Cell,
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


def goodput_view(goodput: Goodput, *, has_picture: bool = False) -> View:
    """Show the ratio, where the hours go, what would raise it, and what it hangs on.

    Args:
        goodput: what was drawn.
        has_picture: also show the first training over its days; only a page has the room.
    """
    return View(
        [
            Heading(f"{goodput.scenario}: a training of {goodput.num_gpus:,} GPUs"),
            Facts([*_facts(goodput)]),
            *([_picture(goodput)] if has_picture else []),
            _hours(goodput),
            _levers(goodput),
            _hinges(goodput),
            remarks(_notes(goodput)),
        ]
    )


def _facts(goodput: Goodput) -> Iterator[tuple[str, str | Cell]]:
    ratio, fleet = goodput.effective_ratio, goodput.fleet
    spares = f"{fleet.spares:,} spare"
    yield "GPUs", f"{goodput.num_gpus:,} on {fleet.num_nodes:,} nodes, {spares}"
    yield "effective training time", f"{ratio.mean:.1%} ({ratio.p5:.1%} to {ratio.p95:.1%})"
    yield "days", _spread(goodput.days)
    if goodput.num_tokens is None:
        tokens = goodput.tokens
        yield "tokens", f"{amount(tokens.mean / 1e9)}B ({_ends(tokens, 1e9)})"
    else:
        yield "tokens", f"{goodput.num_tokens:,}"
    yield "interruptions", _spread(goodput.interruptions)
    each = fleet.checkpoint
    stop = format_seconds(each.blocking_s)
    written = format_seconds(goodput.checkpoint_write_s)
    interval = format_seconds(each.interval_s)
    yield "checkpoints", f"every {interval}, stop for {stop}, loadable after {written}"
    yield "closed form", f"{goodput.closed_form:.1%}, to first order in the rates"


def training_lanes(training: Training, num_lanes: int) -> list[Lane]:
    """Cut a training into lanes of equal time; moments of a lane count from its start."""
    lane_s = training.time_s / num_lanes
    lanes = []
    for number in range(num_lanes):
        first_s, last_s = number * lane_s, (number + 1) * lane_s
        spans = (
            LaneSpan(
                max(span.start_s, first_s) - first_s, min(span.end_s, last_s) - first_s, span.kind
            )
            for span in training.spans
            if span.end_s > first_s and span.start_s < last_s
        )
        lanes.append(Lane(f"from day {first_s / DAY_S:.0f}", (*spans,)))
    return lanes


def _picture(goodput: Goodput) -> LanesPicture:
    training = goodput.trainings[0]
    lanes = {lane.name: [lane] for lane in training_lanes(training, _NUM_LANES)}
    return LanesPicture(lanes, training.time_s / _NUM_LANES, _MEANING)


def _spread(spread: Spread) -> str:
    if spread.p5 == spread.p95:
        return four_digits(spread.mean)
    return f"{four_digits(spread.mean)} ({_ends(spread)})"


def _ends(spread: Spread, unit: float = 1.0) -> str:
    return f"{four_digits(spread.p5 / unit)} to {four_digits(spread.p95 / unit)}"


def _hours(goodput: Goodput) -> Table:
    columns = [
        Column("cause", "lost to", TEXT),
        Column("mean", "hours", FOUR_DIGITS),
        Column("p5", "5 %", FOUR_DIGITS),
        Column("p95", "95 %", FOUR_DIGITS),
        Column("share", "of the time", SHARE),
        Column("bar", "", BAR),
    ]
    total = goodput.days.mean * 24
    rows = [
        Row((cause, lost.mean, lost.p5, lost.p95, lost.mean / total, lost.mean / total))
        for cause, lost in goodput.lost_hours.items()
        if lost.p95
    ]
    rows.sort(key=lambda row: -row.cells[1])
    return Table("hours", "Where the hours go", columns, rows)


def _levers(goodput: Goodput) -> Table:
    columns = [
        Column("change", "change", TEXT),
        Column("effective_training_time_ratio", "effective time", SHARE),
        Column("gain", "gain", SHARE),
    ]
    rows = [Row((each.change, each.effective_ratio, each.gain)) for each in goodput.levers]
    return Table("levers", "What to change first", columns, rows)


def _hinges(goodput: Goodput) -> Table:
    columns = [
        Column("entry", "entry", ENTRY),
        Column("value", "value", FOUR_DIGITS),
        Column("change", "if doubled", SHARE),
    ]
    rows = [Row((each.entry, each.value, each.change)) for each in goodput.hinges]
    return Table("hinges", "What the answer hangs on", columns, rows)


def _notes(goodput: Goodput) -> Iterator[str]:
    yield (
        f"Drawn {goodput.draws:,} times with seed {goodput.seed}; the mean is known to "
        f"{goodput.effective_ratio.mean_error:.2%}. In parentheses: nine of ten trainings."
    )
    if goodput.reliability != goodput.cluster:
        yield (
            f"{goodput.cluster} has no published failures of its own: those of "
            f"{goodput.reliability} stand in."
        )
    if goodput.fleet.slowness is None:
        yield "Slow nodes are not counted: no rate of them is published by node."
    yield from (f"{hinge.entry}: {hinge.source}." for hinge in goodput.hinges)
    yield (
        "Times between failures, repairs and discoveries are exponential, all other times are "
        "constant; restarts can fail again."
    )
