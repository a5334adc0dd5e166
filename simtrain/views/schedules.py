"""The order of a schedule, and all named schedules on one pipeline."""

from __future__ import annotations

from simtrain.base.values import replace
from simtrain.schedules import Schedule
from simtrain.studies.comparison import ScheduleComparison
from simtrain.units import counted
from simtrain.views.kinds import COUNT, GIB, SECONDS, SHARE, TEXT, WHOLE_TEXT
from simtrain.views.view import (
    Column,
    Heading,
    Headline,
    SchedulePicture,
    Style,
    Table,
    View,
    remarks,
    rows_of,
)

_MOST_PICTURES = 3
_LEGAL = (
    Column("name", "schedule", WHOLE_TEXT),
    Column("chunks", "chunks\nper stage", COUNT),
    Column("iteration_time_s", "time", SECONDS),
    Column("slower", "slower by", SHARE, "than the fastest schedule"),
    Column("bubble", "bubble", SHARE, "share of the iteration, averaged over the stages"),
    Column("peak_bytes", "peak\nGiB", GIB),
    Column("fits", "fits", WHOLE_TEXT),
)
_REFUSED = (
    Column("name", "schedule", WHOLE_TEXT),
    Column("code", "", WHOLE_TEXT),
    Column("reason", "reason", TEXT),
)


def schedules_view(comparison: ScheduleComparison, *, draws: bool = True) -> View:
    """Show the schedules that a pipeline allows, and why it refuses the others.

    With `draws`, the order of the fastest schedules follows the tables.
    """
    pictures = [
        part
        for trial in comparison.trials[:_MOST_PICTURES]
        for scenario in (trial.result.scenario,)
        for part in (
            Heading(f"{scenario.schedule}, {counted(scenario.num_chunks, 'chunk')} per stage"),
            SchedulePicture(trial.result.plan.schedule),
        )
    ]
    tables = [_legal(comparison)]
    tables += [_refused(comparison)] if comparison.refused else []
    heading, line = Heading("Schedules of the pipeline"), Headline(comparison.headline)
    words = [*_remarks(comparison)]
    if draws and len(comparison.trials) > _MOST_PICTURES:
        words.append(
            "run --show schedule --set schedule=NAME prints the order of any other; -o draws all."
        )
    return View([heading, *tables, *(pictures if draws else []), remarks(words), line])


def _legal(comparison: ScheduleComparison) -> Table:
    fastest_s, chosen = comparison.trials[0].result.iteration_time_s, comparison.base.schedule
    rows = rows_of(
        _LEGAL,
        comparison.trials,
        slower=lambda trial: trial.result.iteration_time_s / fastest_s - 1,
        fits=lambda trial: trial.result.fit.state.value,
    )
    for place, trial in enumerate(comparison.trials):
        style: Style | None = None if trial.result.fit.fits else "bad"
        rows[place] = replace(rows[place], style="strong" if trial.name == chosen else style)
    return Table("schedules", "What the pipeline allows, the fastest first", _LEGAL, rows)


def _refused(comparison: ScheduleComparison) -> Table:
    title = "What it refuses; simtrain show CODE says more"
    return Table("refused", title, _REFUSED, rows_of(_REFUSED, comparison.refused))


def _remarks(comparison: ScheduleComparison) -> list[str]:
    search = "simtrain search SCENARIO --gpus N --vary schedule=NAME,NAME"
    words = [f"Layouts, chunks and schedules together: {search}"]
    fitting = [trial.name for trial in comparison.trials if trial.result.fit.fits_surely]
    if fitting and fitting[0] != comparison.base.schedule:
        words.insert(0, f"The fastest that surely fits: --set schedule={fitting[0]}")
    return words


def schedule_view(schedule: Schedule) -> View:
    """The grid of a schedule, and what its letters mean."""
    placement = schedule.placement
    per_stage = placement.interleave * placement.copies
    chunks = f"{per_stage} chunks per stage, " if per_stage > 1 else ""
    number = schedule.num_microbatches
    title = f"Schedule {schedule.name}, {chunks}microbatches: {number}"
    last = placement.num_virtual_stages - 1
    halves = "; I and W are its halves: input and weight gradients" * schedule.splits_backwards
    merged = "; passes joined by & run merged" * (schedule.merges is not None)
    first = schedule.placement.microbatches(last, number)[0]
    explained = (
        f"{last}F{first} is the forward pass of microbatch {first} on virtual stage "
        f"{last}, {last}B{first} its backward pass{halves}{merged}. Every pass takes one slot here."
    )
    return View([Heading(title), SchedulePicture(schedule), remarks([explained])])
