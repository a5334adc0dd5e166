"""A whole training iteration: the pipeline, then reducing gradients and stepping the optimizer.

The order after the pipeline is that of Megatron-LM's `finalize_model_grads` and optimizer: reduce
over data parallelism, then layer norms over tensor parallelism, then the tied embedding over
first and last stage; then the gradient norm, for which every stage waits; then Adam, and, where its
work was divided over the replicas, the all-gather of the new parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simtrain.engine import Duration, Pattern, ProgramBuilder
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
    duration: Duration


@dataclass(frozen=True, slots=True)
class StageStep:
    """How long each thing lasts that a stage does after its last backward pass; None for nothing.

    `buckets` run beside the backward pass; `data_reduction` runs after it. `holds_embedding` says
    that the stage takes part in the reduction of the tied embedding. `to_host` is there if the
    optimizer is offloaded, `parameter_gather` if ZeRO divides its work.
    """

    norm: Duration
    update: Duration
    average: Duration | None = None
    data_reduction: Duration | None = None
    buckets: tuple[Bucket, ...] = ()
    sequence_parallel: Duration | None = None
    holds_embedding: bool = False
    to_host: Duration | None = None
    parameter_gather: Duration | None = None


def iteration_pattern(
    schedule: Schedule,
    costs: PipelineCosts,
    steps: Sequence[StageStep],
    *,
    embedding: Duration,
    norm_reduction: Duration,
    overlap: bool,
) -> tuple[Pattern, PipelineTasks]:
    """The tasks of an iteration, one step a stage; kinds name what each task is.

    `embedding` and `norm_reduction` are the all-reduces for which stages meet.
    """
    builder = ProgramBuilder()
    pipeline = add_pipeline(builder, schedule, costs, overlap)
    ready = [_reduce_gradients(builder, stage, step, pipeline) for stage, step in enumerate(steps)]
    ready = _reduce_embedding(builder, steps, ready, embedding)
    norms = [
        _measure_gradients(builder, stage, step, ready[stage]) for stage, step in enumerate(steps)
    ]
    # Every rank needs the norm of all: nobody steps before the last stage has its gradients.
    everyone = tuple(task for tasks in norms for task in tasks)
    name = "gradient norm all-reduce"
    agreed = builder.add(name, MODEL_STREAM, norm_reduction, everyone, "norm")
    for stage, step in enumerate(steps):
        _update_parameters(builder, stage, step, (agreed,))
    return builder.pattern(), pipeline


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
            bucket.duration,
            (produced,),
            "data bucket",
        )
        ready = (*ready, reduced)
    stream = stage_stream(stage)
    for name, duration, kind in (
        ("gradient average", step.average, "optimizer"),
        ("gradient reduction", step.data_reduction, "data"),
        ("layer norm gradient all-reduce", step.sequence_parallel, "tensor"),
    ):
        if duration is not None:
            ready = (builder.add(name, stream, duration, ready, kind),)
    return ready


def _reduce_embedding(
    builder: ProgramBuilder,
    steps: Sequence[StageStep],
    ready: list[tuple[int, ...]],
    duration: Duration,
) -> list[tuple[int, ...]]:
    """Both holders of the tied embedding meet, and go on together."""
    holders = [stage for stage, step in enumerate(steps) if step.holds_embedding]
    if not holders:
        return ready
    waits = tuple(task for stage in holders for task in ready[stage])
    name = "embedding gradient all-reduce"
    task = builder.add(name, EMBEDDING_STREAM, duration, waits, "embedding")
    return [(task,) if stage in holders else tasks for stage, tasks in enumerate(ready)]


def _measure_gradients(
    builder: ProgramBuilder, stage: int, step: StageStep, ready: tuple[int, ...]
) -> tuple[int, ...]:
    """The norm of what a stage has, once a host that runs Adam has got its gradients."""
    stream = stage_stream(stage)
    if step.to_host is not None:
        ready = (builder.add("gradients to host", stream, step.to_host, ready, "optimizer"),)
    return (builder.add(GRADIENT_NORM, stream, step.norm, ready, "optimizer"),)


def _update_parameters(
    builder: ProgramBuilder, stage: int, step: StageStep, agreed: tuple[int, ...]
) -> None:
    """Adam, and the parameters that other replicas updated."""
    stream = stage_stream(stage)
    updated = builder.add("Adam", stream, step.update, agreed, "optimizer")
    if step.parameter_gather is not None:
        name = "parameter all-gather"
        builder.add(name, stream, step.parameter_gather, (updated,), "parameter gather")
