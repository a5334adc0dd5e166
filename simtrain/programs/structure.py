"""The tasks of an iteration before anything has a price: their durations are slots.

Scenarios that differ in sizes, links or hardware only share them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from simtrain.engine import Pattern
from simtrain.plan import PipelineOrder, Plan, numbered
from simtrain.programs.optimizer_step import Bucket, StageStep, iteration_pattern
from simtrain.programs.pipeline import PipelineCosts, PipelineTasks
from simtrain.schedules import Action, Kind, Message, Schedule


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
    """The reduction of a layer's gradients; the stage's last has those of the root unit too."""

    chunk: int
    layer: int
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
class IterationStructure:
    """All that decides which tasks an iteration has.

    `steps` numbers the different optimizer steps, by stage, and `step_fields` are the fields that
    the `StageStep` of each number has. `same_node` says whether a stage and the next (after the
    last, the first) share a node. `part_layers` are the layers of each virtual stage where
    gradients are reduced as they come, else None.
    """

    order: PipelineOrder
    steps: tuple[int, ...]
    step_fields: tuple[frozenset[str], ...]
    same_node: tuple[bool, ...]
    overlap: bool
    arrives: bool
    synchronizes: bool
    part_layers: tuple[int, ...] | None

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline."""
        return self.order.num_stages


def structure_of(plan: Plan, *, synchronizes: bool) -> IterationStructure:
    """The structure of a plan; `synchronizes` adds the host's work for blocking exchanges."""
    split, mesh = plan.scenario.parallelism, plan.mesh
    overlaps, last = plan.scenario.overlap.pipeline, mesh.pp - 1
    neighbours = [(stage, stage + 1) for stage in range(last)] + [(last, 0)]
    return IterationStructure(
        plan.order,
        steps=numbered(plan.stage_parameters),
        step_fields=tuple(map(frozenset, plan.steps)),
        same_node=tuple(itertools.starmap(mesh.share_node, neighbours)),
        overlap=overlaps,
        arrives=split.scatter_gather and split.tensor > 1,
        synchronizes=synchronizes and not overlaps,
        part_layers=tuple(chunk.num_layers for chunk in plan.chunks) if plan.has_buckets else None,
    )


def iteration_layout(structure: IterationStructure) -> tuple[Pattern, PipelineTasks]:
    """The tasks of an iteration, and which of them are the pipeline's."""
    order = structure.order
    return _Builder(structure, order.schedule, order.kept).pattern()


@dataclass(frozen=True, slots=True)
class _Builder:
    """Lays an iteration out."""

    structure: IterationStructure
    schedule: Schedule
    kept: frozenset[tuple[int, int]]

    def pattern(self) -> tuple[Pattern, PipelineTasks]:
        structure = self.structure
        costs = PipelineCosts(
            action=self.action,
            transfer=self.transfer,
            arrival=_arrival if structure.arrives else None,
            synchronize=SynchronizeSlot if structure.synchronizes else None,
            parts=self.parts,
        )
        return iteration_pattern(
            self.schedule,
            costs,
            [self.step(stage) for stage in range(structure.num_stages)],
            embedding=MeetingSlot("embedding"),
            norm_reduction=MeetingSlot("norm_reduction"),
            overlap=structure.overlap,
        )

    def action(self, action: Action) -> ActionSlot:
        return ActionSlot(
            self.structure.order.chunks[action.virtual_stage], action.kind, self.keeps(action)
        )

    def transfer(self, message: Message, num_sends: int) -> TransferSlot:
        first, second = sorted((message.sender, message.receiver))
        wraps = (first, second) == (0, self.structure.num_stages - 1) and second > 1
        return TransferSlot(self.structure.same_node[second if wraps else first], num_sends)

    def keeps(self, action: Action) -> bool:
        return (action.virtual_stage, action.microbatch) in self.kept

    def parts(self, action: Action) -> tuple[PartSlot, ...] | None:
        """The layers of a last backward pass, where gradients are reduced beside it."""
        is_last = (
            action.kind == "B" and action.microbatch == self.structure.order.num_microbatches - 1
        )
        if self.structure.part_layers is None or not is_last:
            return None
        stage, keeps = action.virtual_stage, self.keeps(action)
        chunk = self.structure.order.chunks[stage]
        return tuple(PartSlot(chunk, keeps, i) for i in range(self.structure.part_layers[stage]))

    def step(self, stage: int) -> StageStep:
        step = self.structure.steps[stage]
        present = self.structure.step_fields[step]

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
        if self.structure.part_layers is None:
            return
        last = self.structure.order.num_microbatches - 1
        actions = [
            action
            for action in self.schedule.ranks[stage]
            if action.kind == "B" and action.microbatch == last
        ]
        for action in actions:
            num_parts = self.structure.part_layers[action.virtual_stage]
            for part in range(num_parts):
                is_last = action == actions[-1] and part == num_parts - 1
                chunk, layer = (
                    self.structure.order.chunks[action.virtual_stage],
                    num_parts - 1 - part,
                )
                slot = BucketSlot(chunk, layer, self.structure.steps[stage], is_last)
                yield Bucket(action, part, slot)


def _arrival(message: Message) -> ArrivalSlot:
    return ArrivalSlot()
