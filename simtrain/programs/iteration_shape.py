"""The tasks of an iteration before anything has a price: their durations are slots.

Scenarios that differ in sizes, links or hardware only share them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from simtrain.engine import Pattern
from simtrain.programs.iteration import Bucket, StageStep, iteration_pattern
from simtrain.programs.pipeline import PipelineCosts, PipelineTasks
from simtrain.schedules import Action, Kind, Message, Schedule, ScheduleName, kept_forwards
from simtrain.schedules import build as build_schedule


@dataclass(frozen=True, slots=True)
class ActionSlot:
    """A pass of one microbatch on a chunk; `keeps` says that it keeps everything."""

    chunk: int
    kind: Kind
    keeps: bool


@dataclass(frozen=True, slots=True)
class PartSlot:
    """A layer of the last backward pass on a chunk."""

    chunk: int
    keeps: bool
    number: int


@dataclass(frozen=True, slots=True)
class TransferSlot:
    """A message between two stages, on one node or not, with so many sends at once."""

    same_node: bool
    num_sends: int


@dataclass(frozen=True, slots=True)
class ArrivalSlot:
    """The all-gather of a scattered message."""


@dataclass(frozen=True, slots=True)
class SynchronizeSlot:
    """The host's work for an exchange of so many messages."""

    num_messages: int


@dataclass(frozen=True, slots=True)
class BucketSlot:
    """The reduction of a layer's gradients; the stage's last has those of what is no layer too."""

    step: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class StepSlot:
    """A field of a stage's `StageStep`."""

    step: int
    name: str


@dataclass(frozen=True, slots=True)
class MeetingSlot:
    """An all-reduce for which stages meet: "embedding" or "norm_reduction"."""

    name: str


Slot: TypeAlias = (
    ActionSlot
    | PartSlot
    | TransferSlot
    | ArrivalSlot
    | SynchronizeSlot
    | BucketSlot
    | StepSlot
    | MeetingSlot
)


@dataclass(frozen=True, slots=True)
class IterationShape:
    """All that decides which tasks an iteration has.

    `chunks` numbers the different chunks, by virtual stage, `steps` the different optimizer steps,
    by stage, and `step_fields` are the fields that the `StageStep` of each number has.
    `kept_per_stage` are the outstanding forward passes that keep everything. `same_node` says
    whether a stage and the next (after the last, the first) share a node. `part_layers` are the
    layers of each virtual stage where gradients are reduced as they come, else None.
    """

    schedule_name: ScheduleName
    num_stages: int
    num_chunks: int
    num_microbatches: int
    chunks: tuple[int, ...]
    steps: tuple[int, ...]
    step_fields: tuple[frozenset[str], ...]
    kept_per_stage: tuple[int, ...]
    same_node: tuple[bool, ...]
    overlap: bool
    arrives: bool
    synchronizes: bool
    part_layers: tuple[int, ...] | None

    @property
    def schedule(self) -> Schedule:
        """The order in which each stage acts."""
        return schedule_of(
            self.schedule_name, self.num_stages, self.num_chunks, self.num_microbatches
        )

    def pattern(self) -> tuple[Pattern, PipelineTasks]:
        """The tasks of the iteration, and which of them are the pipeline's."""
        return _Builder(self, self.schedule, self.kept()).pattern()

    def kept(self) -> frozenset[tuple[int, int]]:
        """Virtual stage and microbatch of the forward passes that keep everything."""
        if not any(self.kept_per_stage):
            return frozenset()
        return frozenset(
            (action.virtual_stage, action.microbatch)
            for actions, number in zip(self.schedule.ranks, self.kept_per_stage, strict=True)
            if number
            for action in kept_forwards(actions, number)
        )


@functools.lru_cache(maxsize=64)
def schedule_of(name: ScheduleName, p: int, m: int, n: int) -> Schedule:
    """As `schedules.build`; the last few are remembered."""
    return build_schedule(name, p, m, n)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Lays an iteration out."""

    shape: IterationShape
    schedule: Schedule
    kept: frozenset[tuple[int, int]]

    def pattern(self) -> tuple[Pattern, PipelineTasks]:
        shape = self.shape
        costs = PipelineCosts(
            action=self.action,
            transfer=self.transfer,
            arrival=_arrival if shape.arrives else None,
            synchronize=SynchronizeSlot if shape.synchronizes else None,
            parts=self.parts,
        )
        return iteration_pattern(
            self.schedule,
            costs,
            [self.step(stage) for stage in range(shape.num_stages)],
            embedding=MeetingSlot("embedding"),
            norm_reduction=MeetingSlot("norm_reduction"),
            overlap=shape.overlap,
        )

    def action(self, action: Action) -> ActionSlot:
        return ActionSlot(self.shape.chunks[action.virtual_stage], action.kind, self.keeps(action))

    def transfer(self, message: Message, num_sends: int) -> TransferSlot:
        first, second = sorted((message.sender, message.receiver))
        wraps = (first, second) == (0, self.shape.num_stages - 1) and second > 1
        return TransferSlot(self.shape.same_node[second if wraps else first], num_sends)

    def keeps(self, action: Action) -> bool:
        return (action.virtual_stage, action.microbatch) in self.kept

    def parts(self, action: Action) -> tuple[PartSlot, ...] | None:
        """The layers of a last backward pass, where gradients are reduced beside it."""
        is_last = action.kind == "B" and action.microbatch == self.shape.num_microbatches - 1
        if self.shape.part_layers is None or not is_last:
            return None
        stage, keeps = action.virtual_stage, self.keeps(action)
        chunk = self.shape.chunks[stage]
        return tuple(PartSlot(chunk, keeps, i) for i in range(self.shape.part_layers[stage]))

    def step(self, stage: int) -> StageStep:
        step = self.shape.steps[stage]
        present = self.shape.step_fields[step]

        def slot(name: str) -> StepSlot | None:
            return StepSlot(step, name) if name in present else None

        return StageStep(
            norm=StepSlot(step, "norm"),
            update=StepSlot(step, "update"),
            average=slot("average"),
            data_reduction=slot("data_reduction"),
            buckets=tuple(self.buckets(stage)),
            sequence_parallel=slot("sequence_parallel"),
            holds_embedding="embedding" in present,
            to_host=slot("to_host"),
            parameter_gather=slot("parameter_gather"),
        )

    def buckets(self, stage: int) -> Iterator[Bucket]:
        """One bucket a layer, in the order in which the last microbatch's gradients come.

        What is no layer (embedding, final layer norm) goes with the stage's last one.
        """
        if self.shape.part_layers is None:
            return
        last = self.shape.num_microbatches - 1
        actions = [
            action
            for action in self.schedule.ranks[stage]
            if action.kind == "B" and action.microbatch == last
        ]
        for action in actions:
            num_parts = self.shape.part_layers[action.virtual_stage]
            for part in range(num_parts):
                is_last = action == actions[-1] and part == num_parts - 1
                yield Bucket(action, part, BucketSlot(self.shape.steps[stage], is_last))


def _arrival(message: Message) -> ArrivalSlot:
    return ArrivalSlot()
