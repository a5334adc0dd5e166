"""Breakdown of each stage's time by cause. The causes add up to the iteration time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.values import asdict, dataclass
from simtrain.iteration.programs.parts import (
    BucketPart,
    IterationPart,
    OptimizerPart,
    PassPart,
    TransferPart,
)
from simtrain.units import format_seconds

if TYPE_CHECKING:
    from simtrain.iteration.programs.iteration_tasks import IterationTimeline

_SHOWN = 4
"""Causes in the short text of a breakdown: the largest."""


@dataclass(frozen=True, slots=True)
class Breakdown(PlainData):
    """Time by cause. Communication fields count exposed time only.

    Args:
        compute_s: kernels of forward and backward passes.
        recompute_s: kernels that compute dropped activations again.
        launch_s: time for which the GPU waits for kernel launches.
        tensor_communication_s: all collectives in passes, except data-parallel ones.
        pipeline_communication_s: messages between stages.
        data_communication_s: gathers of parameters and reductions of gradients.
        bubble_s: the remaining idle time.
        optimizer_s: the optimizer step.
    """

    json_fields: ClassVar = keys(
        """compute=compute_s recompute=recompute_s launch=launch_s
        tensor_communication=tensor_communication_s
        pipeline_communication=pipeline_communication_s
        data_communication=data_communication_s
        bubble=bubble_s optimizer=optimizer_s"""
    )

    compute_s: float = 0.0
    recompute_s: float = 0.0
    launch_s: float = 0.0
    tensor_communication_s: float = 0.0
    pipeline_communication_s: float = 0.0
    data_communication_s: float = 0.0
    bubble_s: float = 0.0
    optimizer_s: float = 0.0

    def __repr__(self) -> str:
        largest = sorted(CAUSE_LABELS, key=lambda name: -getattr(self, name))[:_SHOWN]
        shown = (
            f"{label} {format_seconds(getattr(self, name))}"
            for name, label in CAUSE_LABELS.items()
            if name in largest and getattr(self, name)
        )
        return f"<Breakdown of {format_seconds(self.total_s)}: {', '.join(shown)}>"

    @property
    def total_s(self) -> float:
        return math.fsum(_parts(self))


CAUSE_LABELS = {
    "compute_s": "compute",
    "recompute_s": "recompute",
    "launch_s": "waiting for kernel launches",
    "tensor_communication_s": "exposed communication within layers",
    "pipeline_communication_s": "exposed pipeline communication",
    "data_communication_s": "exposed data-parallel communication",
    "bubble_s": "bubble",
    "optimizer_s": "optimizer",
}
"""Labels of the causes in reports, in order."""


def breakdown_by_name(breakdown: Breakdown) -> dict[str, float]:
    """Return the time by name: compute, recompute, ..., bubble, optimizer."""
    return {name.removesuffix("_s"): seconds for name, seconds in asdict(breakdown).items()}


_NAMES = [*CAUSE_LABELS]
_parts = attrgetter(*_NAMES)
_OF_PASS = attrgetter(
    *("compute_s", "recompute_s", "launch_s", "exposed_communication_s", "exposed_data_s")
)
_COLUMNS_OF_PASS = [
    *map(_NAMES.index, ("compute_s", "recompute_s", "launch_s", "tensor_communication_s")),
    _NAMES.index("data_communication_s"),
]
_IDLE = [
    # Causes of idle time, in the order of the columns of `IterationTimeline.idle_seconds`.
    *map(_NAMES.index, ("pipeline_communication_s", "data_communication_s", "optimizer_s"))
]


def mean_breakdown(stages: Sequence[Breakdown]) -> Breakdown:
    """Return the average over the stages."""
    parts = zip(*map(_parts, stages), strict=True)
    return Breakdown(*(math.fsum(part) / len(stages) for part in parts))


def stage_breakdowns(iteration: IterationTimeline) -> tuple[Breakdown, ...]:
    """Return one breakdown per stage.

    Idle time is charged to the first cause of `_IDLE` that runs on another stream. The rest is
    bubble. Busy time is counted by part instead of read from `Spans`: scenarios of one structure
    share the counts, and a search has thousands of them.
    """
    tasks, seconds = iteration.tasks, iteration.seconds
    of_parts = np.zeros((len(tasks.parts), len(_NAMES)))
    for number, part in enumerate(tasks.parts):
        if isinstance(part, PassPart):
            # A pass that is cut into spans counts with its first span.
            if not part.span:
                of_parts[number, _COLUMNS_OF_PASS] = _OF_PASS(seconds.passes[part.variant])
        elif not isinstance(part, TransferPart | BucketPart):  # on other streams
            of_parts[number, _NAMES.index(field_of(part))] = seconds.of_part(part)
    parts_s = tasks.num_parts @ of_parts
    parts_s[:, _IDLE] += iteration.idle_seconds()
    bubble_s = iteration.time_s - parts_s.sum(axis=1)
    parts_s[:, _NAMES.index("bubble_s")] = bubble_s.clip(0.0)
    return tuple(Breakdown(*stage) for stage in parts_s.tolist())


def field_of(part: IterationPart) -> str:
    """Return the field of `Breakdown` to which the time of a part counts that is not a pass."""
    match part:
        case BucketPart() | OptimizerPart(name="data_reduction" | "parameter_gather"):
            return "data_communication_s"
        case OptimizerPart(name="sequence_parallel"):
            return "tensor_communication_s"
        case OptimizerPart(name=name) if name != "embedding":
            return "optimizer_s"
    return "pipeline_communication_s"
