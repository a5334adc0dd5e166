"""A traced step as a program for the engine.

Each worker runs its ops one after another. A transfer between two stages, or a collective, begins
when its last worker arrives; what it then takes is the shortest of the recorded durations, which
include waiting. Sends and receives that a worker starts at once end together (Megatron-LM's batched
isend and irecv). Gaps between the ops of a worker are left out: some of them are waiting, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np

from simtrain.engine import Program, Task, simulate
from simtrain.engine.compiled import Floats
from simtrain.errors import InputError
from simtrain.traces.stragglers.traced_step import OPS, PASSES, Group, TracedOp, workers_of

_BACK = {"forward-send": ("forward", 1, True), "forward-recv": ("forward", -1, False)} | {
    "backward-send": ("backward", -1, True),
    "backward-recv": ("backward", 1, False),
}
"""Of a transfer: its direction, the stage of the other worker, and whether this one sends."""


@dataclass(slots=True)
class _Meeting:
    """A task that one or several workers take part in.

    Args:
        name: in reports.
        op: the first op of it.
        durations_s: as recorded by each worker.
        after: tasks before it, of all its workers.
    """

    name: str
    op: TracedOp
    durations_s: list[float] = field(default_factory=list)
    after: list[int] = field(default_factory=list)


class Replay:
    """The program of a traced step.

    Args:
        ops: of one step, by worker and start.

    Raises:
        InputError: a transfer or a collective lacks a worker (E868).
    """

    def __init__(self, ops: tuple[TracedOp, ...]) -> None:
        self.ops = ops
        self._workers = (*workers_of(ops),)
        self._num_stages = 1 + max(op.worker.stage for op in ops)
        self._meetings: list[_Meeting] = []
        self._of_key: dict[Hashable, int] = {}
        self._expected: dict[int, int] = {}
        for _, of_worker in groupby(ops, key=lambda op: op.worker):
            self._add([*of_worker])
        self._check()

    @cached_property
    def program(self) -> Program:
        """The program with the recorded durations."""
        return Program.of(
            Task(
                each.name,
                _stream(number, each),
                self.durations_s[number],
                (*dict.fromkeys(each.after),),
            )
            for number, each in enumerate(self._meetings)
        )

    @cached_property
    def durations_s(self) -> Floats:
        """[tasks], what each task takes once all its workers are there."""
        return np.array([min(each.durations_s) for each in self._meetings])

    @property
    def names(self) -> list[str]:
        """[tasks], the name of each task's op."""
        return [each.op.name for each in self._meetings]

    @cached_property
    def passes(self) -> tuple[tuple[int, TracedOp], ...]:
        """The tasks of forward and backward passes, with their ops."""
        pairs = enumerate(each.op for each in self._meetings)
        return tuple((number, op) for number, op in pairs if op.name in PASSES)

    def step_s(self, durations_s: Floats) -> Floats:
        """[draws], time of the step with other durations, [draws, tasks]."""
        timeline = simulate(Program(self.program.graph, durations_s))
        ends: Floats = np.atleast_2d(timeline.end_s).max(axis=1)
        return ends

    @cached_property
    def time_s(self) -> float:
        """Time of the step with the recorded durations."""
        return float(self.step_s(self.durations_s)[0])

    @cached_property
    def measured_s(self) -> float:
        """Time of the step in the trace."""
        first = min(op.start_s for op in self.ops)
        return max(op.end_s for op in self.ops) - first

    @cached_property
    def pass_errors(self) -> Floats:
        """[2 x passes], start and end of each pass less those of the trace, in steps."""
        timeline, first = simulate(self.program), min(op.start_s for op in self.ops)
        errors = [
            (
                timeline.start_s[number] - op.start_s + first,
                timeline.end_s[number] - op.end_s + first,
            )
            for number, op in self.passes
        ]
        return np.array(errors).ravel() / self.measured_s

    def _add(self, ops: Sequence[TracedOp]) -> None:
        """Add the ops of a worker."""
        before: list[int] = []
        counts = defaultdict[str, int](int)
        for _, batch in groupby(ops, key=_batch):
            group = list(batch)
            numbers = []
            for op in group:
                number = self._meeting(self._key(op, counts[op.name]), op)
                counts[op.name] += 1
                self._meetings[number].durations_s.append(op.duration_s)
                self._meetings[number].after.extend(before)
                numbers.append(number)
            before = numbers

    def _meeting(self, key: Hashable, op: TracedOp) -> int:
        """Return the number of a task, which is added if its first worker arrives."""
        number = self._of_key.setdefault(key, len(self._meetings))
        if number == len(self._meetings):
            self._meetings.append(_Meeting(f"{op.name} of {op.worker}", op))
            self._expected[number] = self._num_workers(op)
        return number

    def _key(self, op: TracedOp, count: int) -> Hashable:
        """Return what is equal for the ops of all workers that meet."""
        worker, group = op.worker, OPS[op.name]
        if group is Group.ALONE:
            return op.name, worker, count
        if group is Group.NEXT_STAGE:
            direction, step, sends = _BACK[op.name]
            other = (worker.stage + step) % self._num_stages
            ends = (worker.stage, other) if sends else (other, worker.stage)
            return direction, worker.replica, ends, count
        if group is Group.REPLICAS:
            return op.name, worker.stage, count
        return op.name, worker.replica if group is Group.ENDS else None, count

    def _num_workers(self, op: TracedOp) -> int:
        """Return how many workers meet in an op."""
        match OPS[op.name]:
            case Group.ALONE:
                return 1
            case Group.NEXT_STAGE | Group.ENDS:
                return 2
            case group:
                stage = op.worker.stage if group is Group.REPLICAS else None
                return sum(stage in (None, worker.stage) for worker in self._workers)

    def _check(self) -> None:
        for number, each in enumerate(self._meetings):
            expected, present = self._expected[number], len(each.durations_s)
            if present != expected:
                raise InputError.of(
                    "E868",
                    f"the {each.name} at {each.op.start_s:g} s has {present} of {expected} workers",
                    fix="write the ops of all workers of the step",
                    reason="a transfer or a collective waits for all of its workers",
                )


def _batch(op: TracedOp) -> Hashable:
    """Return a key that is equal for transfers that a worker starts at once."""
    is_transfer = OPS[op.name] is Group.NEXT_STAGE
    return (op.start_s, op.duration_s) if is_transfer else (op.name, op.start_s, op.microbatch)


def _stream(number: int, each: _Meeting) -> str:
    """Return the stream of a task: its worker, or one of its own if several meet."""
    return str(each.op.worker) if len(each.durations_s) == 1 else f"meeting {number}"
