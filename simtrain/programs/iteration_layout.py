"""Lays out a whole training iteration: the pipeline, reducing gradients, the optimizer step.

The order after the pipeline is that of Megatron-LM's `finalize_model_grads` and optimizer: reduce
over data parallelism, then layer norms over tensor parallelism, then the tied embedding over
first and last stage; then the gradient norm, for which every stage waits; then Adam, and, if its
work was divided over the replicas, the all-gather of the new parameters.
"""

from __future__ import annotations

from simtrain.engine import ProgramBuilder
from simtrain.programs.pipeline import PipelineCosts, PipelineTasks, add_pipeline, stage_stream
from simtrain.programs.structure import (
    ActionSlot,
    ArrivalSlot,
    BucketSlot,
    IterationStructure,
    MeetingSlot,
    PartSlot,
    StepSlot,
    SynchronizeSlot,
    TransferSlot,
)
from simtrain.schedules import Action, Message

GRADIENT_NORM = "gradient norm"

_REDUCTIONS = (
    # Field of a step, name and kind of its task.
    ("average", "gradient average", "optimizer"),
    ("data_reduction", "gradient reduction", "data"),
    ("sequence_parallel", "layer norm gradient all-reduce", "tensor"),
)


def iteration_layout(structure: IterationStructure) -> tuple[ProgramBuilder, PipelineTasks]:
    """The tasks of an iteration, whose durations are slots, and which of them are the pipeline's.

    Each stage computes on a stream of its own. Beside it, `data 3` has the gradient buckets of a
    stage, `embedding` and `model` the all-reduces for which stages meet.
    """
    layout = _Layout(structure)
    return layout.builder, layout.lay_out()


class _Layout:
    def __init__(self, structure: IterationStructure) -> None:
        self.builder = ProgramBuilder()
        self.structure = structure
        self.order = structure.order
        self.schedule = structure.order.schedule
        self.kept = structure.order.kept

    def lay_out(self) -> PipelineTasks:
        """Add all tasks."""
        structure = self.structure
        costs = PipelineCosts(
            action=self.action,
            transfer=self.transfer,
            arrival=(lambda message: ArrivalSlot()) if structure.arrives else None,
            synchronize=SynchronizeSlot if structure.synchronizes else None,
            parts=self.parts,
        )
        pipeline = add_pipeline(self.builder, self.schedule, costs, structure.overlap)
        stages = range(structure.num_stages)
        ready = [self.reduce_gradients(stage, pipeline) for stage in stages]
        self.reduce_embedding(ready)
        ready = [self.measure_gradients(stage, ready[stage]) for stage in stages]
        # Every rank needs the norm of all: nobody steps before the last stage has its gradients.
        everyone = tuple(task for tasks in ready for task in tasks)
        slot = MeetingSlot("norm_reduction")
        agreed = self.builder.add("gradient norm all-reduce", "model", slot, everyone, "norm")
        for stage in stages:
            updated = self.step(stage, "update", "Adam", "optimizer", (agreed,))
            self.step(
                stage, "parameter_gather", "parameter all-gather", "parameter gather", updated
            )
        return pipeline

    def action(self, action: Action) -> ActionSlot:
        chunk = self.order.chunks[action.virtual_stage]
        return ActionSlot(chunk, action.kind, self.keeps(action))

    def transfer(self, message: Message, num_sends: int) -> TransferSlot:
        first, second = sorted((message.sender, message.receiver))
        wraps = (first, second) == (0, self.structure.num_stages - 1) and second > 1
        return TransferSlot(self.structure.levels_crossed[second if wraps else first], num_sends)

    def keeps(self, action: Action) -> bool:
        return (action.virtual_stage, action.microbatch) in self.kept

    def parts(self, action: Action) -> tuple[PartSlot, ...] | None:
        """The layers of a last backward pass, if gradients are reduced beside it."""
        if self.structure.part_layers is None or not self.is_last(action):
            return None
        stage, keeps = action.virtual_stage, self.keeps(action)
        num_layers, chunk = self.structure.part_layers[stage], self.order.chunks[stage]
        return tuple(PartSlot(chunk, keeps, layer) for layer in range(num_layers))

    def is_last(self, action: Action) -> bool:
        """Whether an action is the backward pass of the last microbatch."""
        return action.kind == "B" and action.microbatch == self.order.num_microbatches - 1

    def step(
        self, stage: int, field: str, name: str, kind: str, ready: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Add a field of a stage's optimizer step, if the stage has it; what is waited for next."""
        number = self.structure.steps[stage]
        if field not in self.structure.step_fields[number]:
            return ready
        slot = StepSlot(number, field)
        return (self.builder.add(name, stage_stream(stage), slot, ready, kind),)

    def reduce_gradients(self, stage: int, pipeline: PipelineTasks) -> tuple[int, ...]:
        """Data parallelism, then layer norms; what the stage waits for next."""
        ready = (*pipeline.last[stage], *self.reduce_buckets(stage, pipeline))
        for field, name, kind in _REDUCTIONS:
            ready = self.step(stage, field, name, kind, ready)
        return ready

    def reduce_buckets(self, stage: int, pipeline: PipelineTasks) -> list[int]:
        """One bucket per layer, in the order in which the last microbatch's gradients come.

        What is no layer (embedding, final layer norm) goes with the stage's last one.
        """
        if self.structure.part_layers is None:
            return []
        parts = [
            (action, part, task)
            for action in filter(self.is_last, self.schedule.ranks[stage])
            for part, task in enumerate(pipeline.parts[action])
        ]
        buckets: list[int] = []
        for action, part, task in parts:
            chunk = self.order.chunks[action.virtual_stage]
            layer = len(pipeline.parts[action]) - 1 - part
            is_last = len(buckets) == len(parts) - 1
            slot = BucketSlot(chunk, layer, self.structure.steps[stage], is_last)
            name = f"gradients of {action}"
            bucket = self.builder.add(name, f"data {stage}", slot, (task,), "data bucket")
            buckets.append(bucket)
        return buckets

    def reduce_embedding(self, ready: list[tuple[int, ...]]) -> None:
        """Both holders of the tied embedding meet, and go on together."""
        fields = [self.structure.step_fields[number] for number in self.structure.steps]
        holders = [stage for stage, present in enumerate(fields) if "embedding" in present]
        if not holders:
            return
        waits = tuple(task for stage in holders for task in ready[stage])
        name, slot = "embedding gradient all-reduce", MeetingSlot("embedding")
        task = self.builder.add(name, "embedding", slot, waits, "embedding")
        for stage in holders:
            ready[stage] = (task,)

    def measure_gradients(self, stage: int, ready: tuple[int, ...]) -> tuple[int, ...]:
        """The norm of a stage's gradients, once a host that runs Adam has got them."""
        ready = self.step(stage, "to_host", "gradients to host", "optimizer", ready)
        return self.step(stage, "norm", GRADIENT_NORM, "optimizer", ready)
