"""A whole training iteration: the pipeline, then reducing gradients and stepping the optimizer.

The order after the pipeline is that of Megatron-LM's `finalize_model_grads` and optimizer: reduce
over data parallelism, then layer norms over tensor parallelism, then the tied embedding over
first and last stage; then the gradient norm, for which every stage waits; then Adam, and, where its
work was divided over the replicas, the all-gather of the new parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simtrain.engine import Program, ProgramBuilder
from simtrain.programs.pipeline import (
    PipelineCosts,
    PipelineTasks,
    add_pipeline,
    stage_stream,
)
from simtrain.schedules import Action, Schedule

EMBEDDING_STREAM = "embedding"
MODEL_STREAM = "model"
GRADIENT_NORM = "gradient norm"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A gradient reduction that starts when a part of an action has ended."""

    action: Action
    part: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class StageStep:
    """Seconds of what a stage does after its last backward pass.

    `buckets` run beside the backward pass; `data_reduction_s` runs after it. `embedding_s` is
    None on stages without the tied embedding. `to_host_s` is 0 unless the optimizer is offloaded,
    `parameter_gather_s` unless ZeRO divides its work.
    """

    average_s: float
    data_reduction_s: float
    buckets: tuple[Bucket, ...]
    sequence_parallel_s: float
    embedding_s: float | None
    to_host_s: float
    norm_s: float
    norm_reduction_s: float
    update_s: float
    parameter_gather_s: float


def iteration_program(
    schedule: Schedule, costs: PipelineCosts, steps: Sequence[StageStep], *, overlap: bool
) -> tuple[Program, PipelineTasks]:
    """The program of an iteration, one step a stage; kinds name what each task is."""
    builder = ProgramBuilder()
    pipeline = add_pipeline(builder, schedule, costs, overlap)
    ready = [_reduce_gradients(builder, stage, step, pipeline) for stage, step in enumerate(steps)]
    ready = _reduce_embedding(builder, steps, ready)
    norms = [
        _measure_gradients(builder, stage, step, ready[stage]) for stage, step in enumerate(steps)
    ]
    # Every rank needs the norm of all: nobody steps before the last stage has its gradients.
    everyone = tuple(task for tasks in norms for task in tasks)
    reduction_s = max(step.norm_reduction_s for step in steps)
    agreed = builder.add("gradient norm all-reduce", MODEL_STREAM, reduction_s, everyone, "norm")
    for stage, step in enumerate(steps):
        _update_parameters(builder, stage, step, (agreed,))
    return builder.build(), pipeline


def data_stream(stage: int) -> str:
    """The stream on which a stage's gradients are reduced beside its backward pass."""
    return f"data {stage}"


def _reduce_gradients(
    builder: ProgramBuilder, stage: int, step: StageStep, pipeline: PipelineTasks
) -> tuple[int, ...]:
    """Data parallelism, then layer norms; what the stage waits for next."""
    ready = pipeline.last[stage]
    for bucket in step.buckets:
        produced = pipeline.parts[bucket.action][bucket.part]
        reduced = builder.add(
            f"gradients of {bucket.action}",
            data_stream(stage),
            bucket.duration_s,
            (produced,),
            "data bucket",
        )
        ready = (*ready, reduced)
    stream = stage_stream(stage)
    if step.average_s:
        ready = (builder.add("gradient average", stream, step.average_s, ready, "optimizer"),)
    if step.data_reduction_s:
        ready = (builder.add("gradient reduction", stream, step.data_reduction_s, ready, "data"),)
    if step.sequence_parallel_s:
        name = "layer norm gradient all-reduce"
        ready = (builder.add(name, stream, step.sequence_parallel_s, ready, "tensor"),)
    return ready


def _reduce_embedding(
    builder: ProgramBuilder, steps: Sequence[StageStep], ready: list[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Both holders of the tied embedding meet, and go on together."""
    holders = [stage for stage, step in enumerate(steps) if step.embedding_s is not None]
    if not holders:
        return ready
    waits = tuple(task for stage in holders for task in ready[stage])
    duration_s = max(step.embedding_s or 0.0 for step in steps)
    name = "embedding gradient all-reduce"
    task = builder.add(name, EMBEDDING_STREAM, duration_s, waits, "embedding")
    return [(task,) if stage in holders else tasks for stage, tasks in enumerate(ready)]


def _measure_gradients(
    builder: ProgramBuilder, stage: int, step: StageStep, ready: tuple[int, ...]
) -> tuple[int, ...]:
    """The norm of what a stage has, once a host that runs Adam has got its gradients."""
    stream = stage_stream(stage)
    if step.to_host_s:
        ready = (builder.add("gradients to host", stream, step.to_host_s, ready, "optimizer"),)
    return (builder.add(GRADIENT_NORM, stream, step.norm_s, ready, "optimizer"),)


def _update_parameters(
    builder: ProgramBuilder, stage: int, step: StageStep, agreed: tuple[int, ...]
) -> None:
    """Adam, and the parameters that other replicas updated."""
    stream = stage_stream(stage)
    updated = builder.add("Adam", stream, step.update_s, agreed, "optimizer")
    if step.parameter_gather_s:
        name = "parameter all-gather"
        builder.add(name, stream, step.parameter_gather_s, (updated,), "parameter gather")
