"""Write a logged step as a recording: without numbers of modules, with repeated ops once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from simtrain.base.program import Program, ProgramOp, ProgramRun, ProgramStates, program_text
from simtrain.recording.child.op_log import LoggedOp
from simtrain.recording.child.step import Step
from simtrain.recording.repeats import repeats_of

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_PASSES = "forward", "backward", "optimizer"


def program_of(step: Step, request: dict[str, Any]) -> str:
    """Return the text of the recording of a step."""
    groups: dict[tuple[int, ...], int] = {}
    passes = {name: _runs(step.ops, name, groups) for name in _PASSES}
    of_states = step.parameters_bytes, step.optimizer_bytes, step.gradients_bytes
    states = ProgramStates(
        parameters_bytes=step.parameters_bytes,
        optimizer_bytes=step.optimizer_bytes,
        other_bytes=max(0, step.held_bytes - sum(of_states)),
        gradients_bytes=step.gradients_bytes,
    )
    is_exact = torch.get_float32_matmul_precision() == "highest"
    program = Program(
        version=1,
        torch=torch.__version__,
        f32_products="fp32" if is_exact else "tf32",
        command=request["command"],
        gpus=request["gpus"],
        tensor=step.tensor,
        sequences=step.sequences,
        tokens=step.tokens,
        microbatches=step.microbatches,
        num_parameters=step.num_parameters,
        num_trained=step.num_trained,
        states=states,
        remarks=[*step.remarks],
        groups=[[*ranks] for ranks in groups],
        group_streams=sorted(step.group_streams),
        **passes,
    )
    return program_text(program)


def _runs(
    ops: Sequence[LoggedOp], phase: str, groups: dict[tuple[int, ...], int]
) -> list[ProgramRun]:
    """Return the ops of a pass as runs; `groups` numbers the groups as they appear."""
    first = next((place for place, op in enumerate(ops) if op.phase == phase), 0)
    written = [
        ProgramOp(
            op=op.op,
            module=_NUMBER.sub("*", op.module),
            reads=op.reads,
            writes=op.writes,
            options=op.options,
            again=op.again,
            stream=op.stream,
            group=None if op.group is None else groups.setdefault(op.group, len(groups)),
            waits=[place - other for other in op.waits if other >= first],
            makes_bytes=op.makes_bytes,
            frees_bytes=op.frees_bytes,
            gradient_bytes=op.gradient_bytes,
        )
        for place, op in enumerate(ops)
        if op.phase == phase
    ]
    keys = [op.model_dump_json() for op in written]
    return [
        ProgramRun(count=part.count, ops=written[part.first : part.first + part.length])
        for part in repeats_of(keys)
    ]
