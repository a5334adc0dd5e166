"""The order of a pipeline schedule: `simtrain run --show schedule`."""

from __future__ import annotations

from simtrain.schedules import FAMILIES, Schedule
from simtrain.views.view import Heading, SchedulePicture, View, remarks


def schedule_view(schedule: Schedule) -> View:
    """The grid of a schedule, and what its letters mean."""
    placement = schedule.placement
    per_stage = placement.interleave * placement.copies
    chunks = f"{per_stage} chunks per stage, " if per_stage > 1 else ""
    slices, number = schedule.num_slices, schedule.num_microbatches
    cut = f" of {slices} slices" if slices > 1 else ""
    title = f"Schedule {schedule.name}, {chunks}microbatches: {number // slices}{cut}"
    last = placement.num_virtual_stages - 1
    halves = "; I and W are its halves: input and weight gradients" * schedule.splits_backwards
    merged = "; passes joined by & run merged" * (schedule.merges is not None)
    first = schedule.placement.microbatches(last, number)[0]
    what = f"slice {first}" if slices > 1 else f"microbatch {first}"
    counted = f" Slices 0 to {slices - 1} are those of the first microbatch." if slices > 1 else ""
    explained = (
        f"{last}F{first} is the forward pass of {what} on virtual stage {last}, "
        f"{last}B{first} its "
        f"backward pass{halves}{merged}.{counted} Every pass takes one slot here."
    )
    if schedule.name in FAMILIES and not FAMILIES[schedule.name].flushes:
        explained += (
            " Without a flush, the first forward passes of the next iteration run between the last "
            "backward passes."
        )
    return View([Heading(title), SchedulePicture(schedule), remarks([explained])])
