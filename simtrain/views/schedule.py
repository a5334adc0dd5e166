"""The order of a pipeline schedule: `simtrain schedule`."""

from __future__ import annotations

from simtrain.schedules import Schedule
from simtrain.views.view import Heading, SchedulePicture, View, remarks


def schedule_view(schedule: Schedule) -> View:
    """The grid of a schedule, and what its letters mean."""
    chunks = f"{schedule.num_chunks} chunks per stage, " if schedule.num_chunks > 1 else ""
    title = f"Schedule {schedule.name}, {chunks}microbatches: {schedule.num_microbatches}"
    last = schedule.num_virtual_stages - 1
    halves = "; I and W are its halves: input and weight gradients" * schedule.splits_backwards
    merged = "; passes joined by & run merged" * (schedule.merges is not None)
    first = schedule.placement.microbatches(last, schedule.num_microbatches)[0]
    explained = (
        f"{last}F{first} is the forward pass of microbatch {first} on virtual stage {last}, "
        f"{last}B{first} its "
        f"backward pass{halves}{merged}. Every pass takes one slot here."
    )
    return View([Heading(title), SchedulePicture(schedule), remarks([explained])])
