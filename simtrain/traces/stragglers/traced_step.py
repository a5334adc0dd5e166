"""One training step as a tracer recorded it: each pass and each communication of each worker.

A CSV file has a row for each op, in any order; lines that begin with # are comments.
Tensor-parallel ranks count as one worker.

    replica  stage  op                 microbatch  start_s   duration_s
    0        0      forward-compute    0           0.321184  0.544901
    0        0      forward-send       0           0.866184  0.003555
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from simtrain.base.input_file import read_text
from simtrain.errors import InputError, Location, did_you_mean


class Group(Enum):
    """Which workers take part in an op."""

    ALONE = "alone"
    NEXT_STAGE = "this stage and the one that it sends to, or receives from"
    REPLICAS = "this stage of all replicas"
    ENDS = "the first and the last stage of the replica"
    ALL = "all"


OPS = {
    "forward-compute": Group.ALONE,
    "backward-compute": Group.ALONE,
    "forward-send": Group.NEXT_STAGE,
    "forward-recv": Group.NEXT_STAGE,
    "backward-send": Group.NEXT_STAGE,
    "backward-recv": Group.NEXT_STAGE,
    "params-all-gather": Group.REPLICAS,
    "grads-reduce-scatter": Group.REPLICAS,
    "grads-all-reduce": Group.REPLICAS,
    "embedding-grads-all-reduce": Group.ENDS,
    "layernorm-grads-all-reduce": Group.ALONE,
    "optimizer-clip-main-grad": Group.ALL,
    "optimizer": Group.ALONE,
    "gc": Group.ALONE,
}
"""Ops by name, and the workers that meet in them."""
PASSES = "forward-compute", "backward-compute"
_OTHER_NAMES = {"dp_rank": "replica", "pp_rank": "stage", "seq_id": "sequence"}
_NEEDED = "replica", "stage", "op", "start_s", "duration_s"
_STEP = "job", "step"
_MOST_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Worker:
    """The tensor-parallel ranks of a stage of a replica."""

    replica: int
    stage: int

    def __str__(self) -> str:
        return f"stage {self.stage} of replica {self.replica}"


@dataclass(frozen=True, slots=True)
class TracedOp:
    """An op of a worker.

    Args:
        worker: who runs it.
        name: one of `OPS`.
        microbatch: of a pass; -1 otherwise.
        start_s, duration_s: when, and how long.
    """

    worker: Worker
    name: str
    microbatch: int
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.start_s + self.duration_s


def read_traced_step(path: Path) -> tuple[TracedOp, ...]:
    """Read the ops of a step, by worker and start.

    Raises:
        InputError: the file cannot be read, has other columns (E865), a value is none, negative or
            unknown (E866), or it has several steps (E867).
    """
    lines = [line for line in read_text(path, _MOST_BYTES).splitlines() if line[:1] != "#"]
    reader = csv.DictReader(lines)
    names = [_OTHER_NAMES.get(name, name) for name in reader.fieldnames or ()]
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise InputError.of(
            "E865",
            f"{path} has no column {missing[0]}",
            Location(str(path)),
            fix=f"write a CSV file with the columns {', '.join(_NEEDED)} and microbatch",
            reason="a step is replayed from the ops of each worker",
        )
    reader.fieldnames = names
    ops, steps = [], set()
    for number, row in enumerate(reader, start=1):
        place = Location(f"{path}, row {number}")
        steps.add(tuple(row.get(name) for name in _STEP))
        ops.append(_op(row, place))
    if len(steps) > 1:
        raise InputError.of(
            "E867",
            f"{path} has {len(steps)} steps",
            Location(str(path)),
            fix="write the rows of one job and step to a file",
            reason="steps follow each other, and one is replayed",
        )
    if not ops:
        raise InputError.of(
            "E865", f"{path} has no rows", Location(str(path)), fix="write a row for each op"
        )
    return tuple(sorted(ops, key=lambda op: (op.worker.replica, op.worker.stage, op.start_s)))


def _op(row: dict[str, str], place: Location) -> TracedOp:
    name = row["op"]
    if name not in OPS:
        question = did_you_mean(str(name), OPS)
        fix = f"{question}write one of {', '.join(OPS)}"
        raise InputError.of("E866", f"op is {name!r}, which is unknown", place, fix)
    return TracedOp(
        Worker(_whole(row, "replica", place), _whole(row, "stage", place)),
        name,
        _whole(row, "microbatch", place, least=-1) if name in PASSES else -1,
        _seconds(row, "start_s", place),
        _seconds(row, "duration_s", place),
    )


def _whole(row: dict[str, str], name: str, place: Location, least: int = 0) -> int:
    text = row.get(name) or ""
    if not text.lstrip("-").isdecimal() or int(text) < least:
        fix = f"write a whole number from {least} on"
        raise InputError.of("E866", f"{name} is {text!r}", place, fix)
    return int(text)


def _seconds(row: dict[str, str], name: str, place: Location) -> float:
    text = row.get(name) or ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError.of("E866", f"{name} is {text!r}", place, "write seconds, 0 or more")
    return value


def workers_of(ops: tuple[TracedOp, ...]) -> Iterator[Worker]:
    """Yield the workers, each once."""
    yield from dict.fromkeys(op.worker for op in ops)
