"""One training step as a table: each pass and each communication of each worker.

A CSV file has a row for each op, in any order; lines that begin with # are comments.
Tensor-parallel ranks count as one worker.

    replica  stage  op                 microbatch  start_s   duration_s
    0        0      forward-compute    0           0.321184  0.544901
    0        0      forward-send       0           0.866184  0.003555
"""

from __future__ import annotations

import csv
import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from simtrain.base.input_file import read_text
from simtrain.engine.compiled import Floats
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.traces.replayed_step import StepBuilder, StepTask, TracedStep


class Group(Enum):
    """Which workers take part in an op."""

    ALONE = "alone"
    NEXT_STAGE = "this stage and the one that it sends to, or receives from"
    REPLICAS = "this stage of all replicas"
    ENDS = "the first and the last stage of the replica"
    ALL = "all"


OPS = {
    "params-all-gather": Group.REPLICAS,
    "forward-recv": Group.NEXT_STAGE,
    "backward-recv": Group.NEXT_STAGE,
    "forward-compute": Group.ALONE,
    "backward-compute": Group.ALONE,
    "forward-send": Group.NEXT_STAGE,
    "backward-send": Group.NEXT_STAGE,
    "layernorm-grads-all-reduce": Group.ALONE,
    "embedding-grads-all-reduce": Group.ENDS,
    "grads-reduce-scatter": Group.REPLICAS,
    "grads-all-reduce": Group.REPLICAS,
    "optimizer-clip-main-grad": Group.ALL,
    "optimizer": Group.ALONE,
    "gc": Group.ALONE,
}
"""Ops by name, and the workers that meet in them.

Ops without duration that start at one moment follow each other in this order.
"""
PASSES = "forward-compute", "backward-compute"
_RECEIVER = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
"""The other worker of a transfer, in stages from this one."""
_ORDER = {name: place for place, name in enumerate(OPS)}
_OTHER_NAMES = {"dp_rank": "replica", "pp_rank": "stage", "seq_id": "sequence"}
_NEEDED = "replica", "stage", "op", "start_s", "duration_s"
_STEP = "job", "step"
_WHOLE = re.compile(r"-?[0-9]{1,9}")
_MOST_BYTES, _MOST_ROWS = 64 << 20, 500_000


class Worker(NamedTuple):
    """The tensor-parallel ranks of a stage of a replica."""

    replica: int
    stage: int

    def __str__(self) -> str:
        return f"stage {self.stage} of replica {self.replica}"


class TracedOp(NamedTuple):
    """An op of a worker.

    Args:
        worker: who runs it.
        name: one of `OPS`.
        microbatch: of a pass; -1 otherwise.
        start_s, duration_s: when, and how long.
        line: of the file.
    """

    worker: Worker
    name: str
    microbatch: int
    start_s: float
    duration_s: float
    line: int = 1

    @property
    def order(self) -> tuple[Hashable, ...]:
        """Sorts ops by worker and time, whatever the order of the rows."""
        end_s = self.start_s + self.duration_s
        return self.worker, self.start_s, end_s, _ORDER[self.name], self.microbatch


def read_table(path: Path) -> TracedStep:
    """Read a step.

    Raises:
        InputError: the file cannot be read or is too large, has other columns (E865), a value is
            missing, negative, unknown or twice (E866), it has several steps (E867), or a transfer
            or collective lacks a worker (E868).
    """
    return step_of([*_rows(path)], str(path))


def _rows(path: Path) -> Iterator[TracedOp]:
    lines = read_text(path, _MOST_BYTES).splitlines()
    kept = [number for number, line in enumerate(lines, start=1) if line[:1] != "#"]
    reader = csv.reader(lines[number - 1] for number in kept)
    try:
        header = [_OTHER_NAMES.get(name, name) for name in next(reader, [])]
        if missing := [name for name in _NEEDED if name not in header]:
            fix = f"write a CSV file with the columns {', '.join(_NEEDED)} and microbatch"
            reason = "a step is replayed from the ops of each worker"
            message = f"the table has no column {missing[0]}"
            raise InputError.of("E865", message, Location(str(path)), fix, reason)
        steps: set[tuple[str | None, ...]] = set()
        number = 0
        for number, cells in enumerate((cells for cells in reader if cells), start=1):
            place = Location(str(path), kept[reader.line_num - 1])
            if number > _MOST_ROWS:
                fix = "write one step; count tensor-parallel ranks as one worker"
                message = f"the table has more than {_MOST_ROWS:,} rows"
                raise InputError.of("E867", message, place, fix)
            row = dict(zip(header, cells, strict=False))
            steps.add(tuple(row.get(name) for name in _STEP))
            if len(steps) > 1:
                fix = "write the rows of one job and step to a file"
                reason = "steps follow each other, and one is replayed"
                raise InputError.of("E867", "the table has several steps", place, fix, reason)
            yield _op(row, place)
    except csv.Error as error:
        place = Location(str(path), kept[min(reader.line_num, len(kept)) - 1] if kept else None)
        fix = "write short cells, with commas between them"
        raise InputError.of("E865", f"the row cannot be read: {error}", place, fix) from error
    if not number:
        fix = "write a row for each op"
        raise InputError.of("E865", "the table has no rows", Location(str(path)), fix)


def _op(row: Mapping[str, str], place: Location) -> TracedOp:
    name = row.get("op", "")
    if name not in OPS:
        fix = f"{did_you_mean(name, OPS)}write one of {', '.join(OPS)}"
        raise InputError.of("E866", f"op is {name!r}, which is unknown", place, fix)
    return TracedOp(
        Worker(_whole(row, "replica", place), _whole(row, "stage", place)),
        name,
        _whole(row, "microbatch", place, least=-1) if name in PASSES else -1,
        _seconds(row, "start_s", place),
        _seconds(row, "duration_s", place),
        place.line or 1,
    )


def _whole(row: Mapping[str, str], name: str, place: Location, least: int = 0) -> int:
    text = row.get(name, "").strip()
    if not _WHOLE.fullmatch(text) or int(text) < least:
        fix = f"write a whole number from {least} to 999999999"
        raise InputError.of("E866", f"{name} is {text[:40]!r}", place, fix)
    return int(text)


def _seconds(row: Mapping[str, str], name: str, place: Location) -> float:
    text = row.get(name, "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError.of("E866", f"{name} is {text[:40]!r}", place, "write seconds, 0 or more")
    return value


def step_of(ops: Sequence[TracedOp], file: str) -> TracedStep:
    """Return the step of some ops, in any order."""
    ops = sorted(ops, key=lambda op: op.order)
    workers = {op.worker: None for op in ops}
    num_stages = 1 + max(worker.stage for worker in workers)
    of_stage = Counter(worker.stage for worker in workers)
    first_s = min(op.start_s for op in ops)
    builder = StepBuilder()
    kinds: dict[int, tuple[str, int | None]] = {}

    def num_workers(op: TracedOp) -> int:
        """Return how many workers meet in an op."""
        match OPS[op.name]:
            case Group.ALONE:
                return 1
            case Group.NEXT_STAGE | Group.ENDS:
                return 2
            case Group.REPLICAS:
                return of_stage[op.worker.stage]
        return len(workers)

    for _, of_worker in groupby(ops, key=lambda op: op.worker):
        before: list[int] = []
        counts, starts = Counter[str](), dict[tuple[str, float], int]()
        # Sends and receives that a worker starts at once end together (Megatron-LM's batched isend
        # and irecv): all of them follow what was before.
        for _, batch in groupby(of_worker, key=_batch):
            numbers = []
            for op in batch:
                place = Location(file, op.line)
                if (line := starts.setdefault((op.name, op.start_s), op.line)) != op.line:
                    message = f"{op.worker} starts a {op.name} twice at {op.start_s:g} s"
                    reason = f"line {line} starts one, too"
                    fix = "write each op of one step once"
                    raise InputError.of("E866", message, place, fix, reason)
                key = _key(op, num_stages, counts[op.name], place)
                counts[op.name] += 1
                task = _task(op, place, first_s)
                numbers.append(builder.add(key, num_workers(op), op.duration_s, before, task))
                kinds.setdefault(numbers[-1], (op.name, op.worker.stage if task.suspects else None))
            before = numbers

    def typical(durations_s: Floats) -> tuple[Floats, Floats]:
        """Return the means of all ops of a name, and of the passes of a stage."""
        of_name, of_pass = (
            defaultdict[Hashable, list[int]](list),
            defaultdict[Hashable, list[int]](list),
        )
        for number, (name, stage) in kinds.items():
            of_name[name].append(number)
            if stage is not None:
                of_pass[name, stage].append(number)
        return _with_means(durations_s, of_name), _with_means(durations_s, of_pass)

    measured_s = max(op.start_s + op.duration_s for op in ops) - first_s
    return builder.finish(measured_s, len(workers), typical)


def _with_means(durations_s: Floats, groups: Mapping[Hashable, Sequence[int]]) -> Floats:
    """Return durations with the mean of each group for its tasks."""
    means_s = durations_s.copy()
    for tasks in groups.values():
        means_s[tasks] = durations_s[tasks].mean()
    return means_s


def _task(op: TracedOp, place: Location, first_s: float) -> StepTask:
    worker, name = op.worker, f"{op.name} of {op.worker} at {op.start_s:g} s"
    if OPS[op.name] is not Group.ALONE:
        return StepTask(name, place, name)
    if op.name not in PASSES:
        return StepTask(name, place, str(worker))
    suspects = _suspects(worker, op.microbatch)
    start_s = op.start_s - first_s
    recorded_s = start_s, start_s + op.duration_s
    return StepTask(name, place, str(worker), suspects, recorded_s)


@functools.lru_cache(maxsize=1 << 16)
def _suspects(worker: Worker, microbatch: int) -> Mapping[str, str]:
    return {
        "sequence": f"microbatch {microbatch} of replica {worker.replica}",
        "worker": str(worker),
        "stage": f"stage {worker.stage}",
        "replica": f"replica {worker.replica}",
    }


def _key(op: TracedOp, num_stages: int, count: int, place: Location) -> Hashable:
    """Return what is equal for the ops of all workers that meet: their n-th op of a name does."""
    worker, group = op.worker, OPS[op.name]
    if group is Group.ALONE:
        return op.name, worker, count
    if group is Group.NEXT_STAGE:
        if num_stages == 1:
            fix = "write the ops of all stages, or leave the transfer out"
            raise InputError.of("E868", f"a {op.name} of the only stage", place, fix)
        direction, _, what = op.name.partition("-")
        other = (worker.stage + _RECEIVER[op.name]) % num_stages
        ends = (worker.stage, other) if what == "send" else (other, worker.stage)
        return direction, worker.replica, ends, count
    if group is Group.REPLICAS:
        return op.name, worker.stage, count
    return op.name, worker.replica if group is Group.ENDS else None, count


def _batch(op: TracedOp) -> Hashable:
    """Return a key that is equal for transfers that a worker starts at once."""
    is_transfer = OPS[op.name] is Group.NEXT_STAGE
    return (op.start_s, op.duration_s) if is_transfer else (op.name, op.start_s, op.microbatch)
