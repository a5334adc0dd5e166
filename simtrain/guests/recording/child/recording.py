"""Write a logged step as a recording: without numbers of modules, with repeated ops once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simtrain.guests.recording.child.op_log import LoggedOp
from simtrain.guests.recording.child.step import Step
from simtrain.guests.recording.program import (
    ProgramOp,
    ProgramRun,
    RecordedProgram,
    program_text,
)

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_SAME_FIELDS = ProgramOp.model_fields.keys() - {"module", "group", "waits"}


def program_of(step: Step, request: dict[str, Any]) -> str:
    """Return the text of the recording of a step."""
    groups: dict[tuple[int, ...], int] = {}
    names = "forward", "backward", "optimizer"
    passes: dict[str, Any] = {name: runs_of(step.ops, name, groups) for name in names}
    is_exact = torch.get_float32_matmul_precision() == "highest"
    program = RecordedProgram(
        version=1,
        torch=torch.__version__,
        f32_products="fp32" if is_exact else "tf32",
        command=request["command"],
        gpus=request["gpus"],
        groups=[[*ranks] for ranks in groups],
        **step.fields,
        **passes,
    )
    return program_text(program)


def runs_of(
    ops: Sequence[LoggedOp], phase: str, groups: dict[tuple[int, ...], int]
) -> list[ProgramRun]:
    """Return the ops of a pass as runs; `groups` numbers the groups as they appear."""
    first = next((place for place, op in enumerate(ops) if op.phase == phase), 0)
    written = [
        ProgramOp(
            module=_NUMBER.sub("*", op.module),
            group=None if op.group is None else groups.setdefault(op.group, len(groups)),
            waits=[place - other for other in op.waits if other >= first],
            **{name: getattr(op, name) for name in _SAME_FIELDS},
        )
        for place, op in enumerate(ops)
        if op.phase == phase
    ]
    keys = [op.model_dump_json() for op in written]
    return [
        ProgramRun(count=part.count, ops=written[part.first : part.first + part.length])
        for part in repeats_of(keys)
    ]


_MOST_PERIODS = 64
_LEAST_LENGTH = 2


@dataclass(frozen=True, slots=True)
class Repeat:
    """Places `first` to `first + length` of a sequence, which occur `count` times in a row."""

    first: int
    length: int
    count: int


def repeats_of(values: Sequence[Hashable]) -> list[Repeat]:
    """Cut a sequence into parts, each repeated some number of times; together they are all of it.

    The part that saves most is found first, then those before and after it. Periods that are tried
    are the most frequent distances between neighbours that are equal.
    """
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)
    parts: list[Repeat] = []
    waiting = [(codes, 0)]
    while waiting:
        piece, first = waiting.pop()
        best = _best(piece)
        if best is None:
            parts += [Repeat(first, len(piece), 1)] * bool(len(piece))
            continue
        end = best.first + best.length * best.count
        parts.append(Repeat(first + best.first, best.length, best.count))
        waiting += [(piece[: best.first], first), (piece[end:], first + end)]
    return sorted(parts, key=lambda part: part.first)


def _best(codes: NDArray[np.int64]) -> Repeat | None:
    """Return the repeat that saves most elements; None if none does."""
    latest: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for place, code in enumerate(codes.tolist()):
        if code in latest:
            distances[place - latest[code]] += 1
        latest[code] = place
    best, saved = None, _LEAST_LENGTH - 1
    periods = [period for period, _ in distances.most_common(_MOST_PERIODS)]
    for period in sorted(periods):
        is_equal = np.concatenate([[False], codes[period:] == codes[:-period], [False]])
        changes = np.flatnonzero(is_equal[1:] != is_equal[:-1])
        for start, end in zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True):
            extra = (end - start) // period
            if extra and extra * period > saved:
                best, saved = Repeat(start, period, extra + 1), extra * period
    return best
