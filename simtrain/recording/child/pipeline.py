"""Write the logged stages of a pipeline as a recording: equal stages once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from simtrain.base.pipeline_program import (
    BACKWARDS,
    FORWARDS,
    OTHERS,
    PipelineProgram,
    ProgramChunk,
    recording_text,
)
from simtrain.recording.child.problems import WrongStage
from simtrain.recording.child.recording import about, runs_of, states_of
from simtrain.recording.child.stages import LoggedStage, record_stages


def pipeline_of(load: Callable[[], Callable[..., Any]], request: dict[str, Any]) -> str:
    """Return the text of the recording of a pipeline."""
    names = "arguments", "gpus", "pp", "chunks", "microbatches"
    stages = record_stages(load, *(request[name] for name in names))
    return recording_text(pipeline_program(stages, request))


def pipeline_program(stages: Iterable[LoggedStage], request: dict[str, Any]) -> PipelineProgram:
    """Return the recording of stages, first to last."""
    numbers: dict[str, int] = {}
    chunks: list[ProgramChunk] = []
    chunk_numbers, steps = [], []
    for stage in stages:
        chunk = _chunk(stage, request["gpus"] // request["pp"])
        number = numbers.setdefault(chunk.model_dump_json(), len(numbers))
        if number == len(chunks):
            chunks.append(chunk)
        chunk_numbers.append(number)
        steps.append(stage.step)
    first = steps[0]
    return PipelineProgram(
        **about(request),
        pipeline=request["pp"],
        tensor=max(step.tensor for step in steps),
        sequences=first.sequences,
        tokens=first.tokens,
        microbatches=first.microbatches,
        chunk_numbers=chunk_numbers,
        chunks=chunks,
        remarks=[*dict.fromkeys(remark for step in steps for remark in step.remarks)],
    )


def _chunk(stage: LoggedStage, num_ranks: int) -> ProgramChunk:
    """Return the passes of a stage, of which those that equal the first of their kind are left out.

    Args:
        stage: the stage.
        num_ranks: its ranks.
    """
    step, last = stage.step, stage.rank + num_ranks - 1
    for op in step.ops:
        if op.group is not None:
            if min(op.group) < stage.rank or max(op.group) > last:
                raise WrongStage(
                    f"{op.op} has ranks of other stages than the one that calls it, whose ranks "
                    f"are {stage.rank} to {last}"
                )
            op.group = tuple(rank - stage.rank for rank in op.group)
    groups: dict[tuple[int, ...], int] = {}
    passes = {name: runs_of(step.ops, name, groups) for name in (*FORWARDS, *BACKWARDS, *OTHERS)}
    for first, *others in (FORWARDS, BACKWARDS):
        for name in others:
            if passes[name] == passes[first]:
                passes[name] = []
    return ProgramChunk(
        num_parameters=step.num_parameters,
        num_trained=step.num_trained,
        states=states_of(step),
        receives=stage.receives,
        sends=stage.sends,
        returns=stage.returns,
        groups=[[*ranks] for ranks in groups],
        group_streams=sorted(step.group_streams),
        **passes,
    )
