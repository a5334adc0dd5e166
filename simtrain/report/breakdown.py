"""Where a stage's seconds go. Each stage's parts add up to the iteration time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING

from simtrain.programs.seconds import IterationSeconds
from simtrain.programs.structure import (
    ActionSlot,
    ArrivalSlot,
    PartSlot,
    Slot,
    StepSlot,
    SynchronizeSlot,
)

if TYPE_CHECKING:
    from simtrain.engine.compiled import Floats
    from simtrain.programs.arrays import IterationTasks


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds by cause; communication is what is exposed, hidden communication costs nothing.

    `launch_s` is the time in which a device waits for its host; `bubble_s` is what remains idle.
    """

    compute_s: float = 0.0
    recompute_s: float = 0.0
    launch_s: float = 0.0
    tensor_communication_s: float = 0.0
    pipeline_communication_s: float = 0.0
    data_communication_s: float = 0.0
    bubble_s: float = 0.0
    optimizer_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All parts."""
        return math.fsum(getattr(self, field.name) for field in fields(self))


def breakdown_by_name(breakdown: Breakdown) -> dict[str, float]:
    """Seconds by cause: compute, recompute, ..., bubble, optimizer."""
    return {name.removesuffix("_s"): seconds for name, seconds in asdict(breakdown).items()}


_NAMES = [field.name for field in fields(Breakdown)]
_parts = attrgetter(*_NAMES)

_WAITS = [
    # What runs while a stage is idle, by the parts of `IterationTasks.others`.
    _parts(Breakdown(pipeline_communication_s=1)),
    _parts(Breakdown(data_communication_s=1)),
    _parts(Breakdown(optimizer_s=1)),
]


def mean_breakdown(stages: Sequence[Breakdown]) -> Breakdown:
    """The average over the stages."""
    parts = zip(*map(_parts, stages), strict=True)
    return Breakdown(*(math.fsum(part) / len(stages) for part in parts))


def stage_breakdowns(
    seconds: IterationSeconds,
    tasks: IterationTasks,
    start_s: Floats,
    end_s: Floats,
    *,
    is_compiled: bool,
) -> tuple[Breakdown, ...]:
    """One breakdown per stage of an iteration whose tasks start and end at these moments.

    While a stage is idle, its time is charged to the first of `_WAITS` that runs elsewhere. The
    rest is bubble.
    """
    idle_s = tasks.idle_seconds(start_s, end_s, is_compiled=is_compiled)
    of_slots = [_parts(_of_slot(slot, seconds)) for slot in tasks.slots]
    parts_s = tasks.num_slots @ of_slots + idle_s @ _WAITS
    parts_s[:, _NAMES.index("bubble_s")] = (end_s.max() - parts_s.sum(axis=1)).clip(0.0)
    return tuple(Breakdown(*stage) for stage in parts_s.tolist())


def _of_slot(slot: Slot, seconds: IterationSeconds) -> Breakdown:
    """Where the seconds of a task on a stage's own stream go; nothing for another task.

    A pass that is cut into layers counts with the first of them.
    """
    match slot:
        case PartSlot(number=0):
            return _of_slot(ActionSlot(slot.chunk, "B", slot.keeps), seconds)
        case ActionSlot():
            time = seconds.passes[slot]
            return Breakdown(
                compute_s=time.compute_s,
                recompute_s=time.recompute_s,
                launch_s=time.launch_s,
                tensor_communication_s=time.exposed_communication_s,
                data_communication_s=time.exposed_data_s,
            )
        case ArrivalSlot() | SynchronizeSlot():
            return Breakdown(pipeline_communication_s=seconds.of_slot(slot))
        case StepSlot(name="data_reduction" | "parameter_gather"):
            return Breakdown(data_communication_s=seconds.of_slot(slot))
        case StepSlot(name="sequence_parallel"):
            return Breakdown(tensor_communication_s=seconds.of_slot(slot))
        case StepSlot():
            return Breakdown(optimizer_s=seconds.of_slot(slot))
    return Breakdown()
