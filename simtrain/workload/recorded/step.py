"""A recorded step on the terms of the engine: ops with streams and waits, and bytes over time.

A recording has the ops of one rank in the order in which the program issued them, with the stream
of each and the ops that it waits for. The engine has fewer streams (`workload.issue.Stream`).
Streams of process groups, which have the collectives of tensor parallelism, become one. Streams
that the program makes, as fully_shard does, become that of data-parallel collectives: NCCL runs the
collectives of one communicator one after another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simtrain.base.input_file import FileVersion
from simtrain.base.mesh import Axis, Domains, Group, group_of_ranks
from simtrain.base.program import Program, ProgramOp, ProgramRun, expanded, read_program
from simtrain.scenario.software import PAPER_KERNELS, Kernels
from simtrain.workload.chunk import Parameters
from simtrain.workload.issue import LaunchKind, Segment, Stream, stream_of
from simtrain.workload.ops import Op, Phase, Tensor
from simtrain.workload.passes import Pass, PassRecord
from simtrain.workload.recorded.fusion import fused
from simtrain.workload.recorded.works import (
    RecordedKernel,
    collective_work,
    has_rule,
    kernel_work,
)
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import Work

Bytes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ProgramRecord(PassRecord):
    """The ops of a recorded pass.

    Args:
        op_waits: pairs of an op and an earlier op of another stream that it waits for.
        unled: ops of other streams than the first one. These wait for events alone, so that a
            gather overlaps kernels that the program has issued before it.
    """

    op_waits: tuple[tuple[int, int], ...] = ()
    unled: tuple[int, ...] = ()

    def joints(self) -> Iterator[tuple[int, int]]:
        """Pairs of an op and an op that it waits for."""
        yield from self.op_waits


@dataclass(frozen=True, slots=True, eq=False)
class BytesOverTime:
    """Memory of a pass, op by op.

    Args:
        ops: [ops], the ops.
        held: [ops], bytes while each op runs, relative to the start of the pass.
        after: [ops], bytes after each op.
        gradients: [ops], bytes of gradients of parameters while each op runs.
    """

    ops: tuple[ProgramOp, ...]
    held: Bytes
    after: Bytes
    gradients: Bytes

    @classmethod
    def of(cls, runs: Sequence[ProgramRun]) -> BytesOverTime:
        """Add up what the ops of a pass allocate and free."""
        ops = tuple(expanded(runs))
        makes, frees, gradients = (
            np.array([getattr(op, name) for op in ops], np.int64)
            for name in ("makes_bytes", "frees_bytes", "gradient_bytes")
        )
        after = np.cumsum(makes - frees)
        return cls(ops, after + frees, after, np.cumsum(gradients))

    def shifted(self, held_bytes: int, gradient_bytes: int) -> BytesOverTime:
        """Return it with what exists at the start of the pass."""
        return replace(
            self,
            held=self.held + held_bytes,
            after=self.after + held_bytes,
            gradients=self.gradients + gradient_bytes,
        )


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """A recorded step on a cluster.

    Args:
        program: the recording.
        domains: of the cluster.
        kernels: of the software stack. Of these, attention's kernel counts, and whether a compiler
            fuses memory-bound kernels that follow one another.
    """

    program: Program
    domains: Domains
    kernels: Kernels = PAPER_KERNELS
    _groups: dict[tuple[int, bool], Group] = field(default_factory=dict, repr=False)

    @cached_property
    def forward(self) -> PassRecord:
        """The forward pass."""
        return _Lowering(self, self.program.forward, Phase.FORWARD).record()

    @cached_property
    def backward(self) -> PassRecord:
        """The backward pass."""
        return _Lowering(self, self.program.backward, Phase.INPUT_GRADIENT).record()

    @cached_property
    def update(self) -> tuple[Op, ...]:
        """The ops of the optimizer."""
        record = _Lowering(self, self.program.optimizer, Phase.OPTIMIZER).record()
        return tuple(record.ops)

    @cached_property
    def memory(self) -> dict[str, BytesOverTime]:
        """Memory of each pass."""
        return {name: BytesOverTime.of(runs) for name, runs in self.program.passes.items()}

    def record_of(self, pass_: Pass) -> PassRecord:
        """Return the ops of a pass, which is the forward or the backward pass."""
        return self.forward if pass_.kind == "F" else self.backward

    def update_of(self, parameters: Parameters) -> tuple[Op, ...]:
        """Return the ops of the optimizer of the only stage."""
        return self.update

    def unpriced(self, seconds: Callable[[Work], float]) -> dict[str, float]:
        """Return the share of the time of all kernels that ops without a rule take, by name.

        Args:
            seconds: time of an op's work alone.
        """
        total_s, unpriced_s = 0.0, dict[str, float]()
        for run in (run for runs in self.program.passes.values() for run in runs):
            for op in run.ops:
                kernel = RecordedKernel(op, False, self.program.f32_products, self.kernels)
                work = kernel_work(kernel) if op.group is None else None
                if work is None:
                    continue
                time_s = run.count * seconds(work)
                total_s += time_s
                if not has_rule(op):
                    unpriced_s[op.op] = unpriced_s.get(op.op, 0.0) + time_s
        return {name: time_s / total_s for name, time_s in unpriced_s.items()}

    @cached_property
    def has_only_replicas(self) -> bool:
        """Whether all ranks have batches of their own, and the program makes no streams for them.

        Then the collectives that it issues itself reduce gradients.
        """
        program, others = self.program, {0, *self.program.group_streams}
        runs = (run for runs in program.passes.values() for run in runs)
        streams = {op.stream for run in runs for op in run.ops}
        return program.tensor == 1 and streams <= others

    def group(self, number: int, *, is_data: bool) -> Group:
        """Return a group of the recording."""
        key = number, is_data
        if key not in self._groups:
            axes: tuple[Axis, ...] = ("dp",) if is_data else ("tp",)
            ranks = self.program.groups[number]
            self._groups[key] = group_of_ranks(axes, ranks, self.domains)
        return self._groups[key]


@functools.lru_cache(maxsize=64)
def recorded_step(file: FileVersion, domains: Domains, kernels: Kernels) -> RecordedStep:
    """Return the step of a recording on a cluster; equal calls return one object."""
    return RecordedStep(read_program(file), domains, kernels)


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """The model of a recording, as a block that has its parameters and no ops."""

    num_parameters: int
    num_trained: int
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the parameters."""
        y = tape.tensor("output", x.rows, x.width)
        frozen = self.num_parameters - self.num_trained
        parameters = Parameter(self.num_trained), Parameter(frozen, is_frozen=True)
        tape.record("recorded model", (x,), (y,), (), parameters=parameters)
        return y


class _Lowering:
    """Turns the ops of a recorded pass into segments, one for each run."""

    def __init__(self, step: RecordedStep, runs: Sequence[ProgramRun], phase: Phase) -> None:
        self.step, self.runs, self.phase = step, runs, phase
        self.group_of_stream = self.groups_of_streams()

    def record(self) -> PassRecord:
        """Return the record of the pass."""
        segments: list[Segment] = []
        kernels: list[list[Op | None]] = []
        for run in self.runs:
            lowered = [self.op(op) for op in run.ops]
            if self.step.kernels.partitions_recompute:
                lowered = fused(run.ops, lowered)
            kernels.append(lowered)
            ops = tuple(op for op in lowered if op is not None)
            if ops:
                launches = tuple(_launches(run.ops, lowered))
                empty = ((),) * len(ops)
                segment = Segment(ops, empty, (), (0,) * len(ops), launches)
                segments += [segment] * run.count
        waits, unled = tuple(self.waits(kernels)), tuple(self.unled(kernels))
        owners = (-1,) * len(segments)
        ends = (len(segments),)
        return ProgramRecord(tuple(segments), owners, ends, op_waits=waits, unled=unled)

    def op(self, op: ProgramOp) -> Op | None:
        """Return an op; None if it runs no kernel."""
        phase, name = self.phase, _name(op)
        if op.again:
            phase = Phase.RECOMPUTE
        if op.group is not None:
            group = self.step.group(op.group, is_data=self.is_data(op))
            if group.num_ranks == 1:
                return None
            return Op(name, collective_work(op, group), phase)
        is_backward = phase is Phase.INPUT_GRADIENT
        f32, kernels = self.step.program.f32_products, self.step.kernels
        work = kernel_work(RecordedKernel(op, is_backward, f32, kernels))
        if work is None:
            return None
        if is_backward and getattr(work, "layout", "") == "NT":
            phase = Phase.WEIGHT_GRADIENT
        stream_group = None
        if op.stream and (number := self.group_of_stream.get(op.stream)) is not None:
            stream_group = self.step.group(number, is_data=self.is_data(op))
        return Op(name, work, phase, stream_group=stream_group)

    def is_data(self, op: ProgramOp) -> bool:
        """Whether an op runs on the stream of data-parallel collectives."""
        if op.stream and op.stream not in self.step.program.group_streams:
            return True
        return self.step.has_only_replicas

    def groups_of_streams(self) -> dict[int, int]:
        """Return a group of each stream on which kernels run, except the first one.

        A stream without collectives, on which fully_shard copies, has the first group of a pass
        with a stream like it.
        """
        ops = [op for run in self.runs for op in run.ops if op.stream]
        groups: dict[int, int] = {}
        first: dict[bool, int] = {}
        for op in ops:
            if op.group is not None:
                groups.setdefault(op.stream, op.group)
                first.setdefault(self.is_data(op), op.group)
        for op in ops:
            if op.stream not in groups and (group := first.get(self.is_data(op))) is not None:
                groups[op.stream] = group
        return groups

    def unled(self, lowered: Sequence[Sequence[Op | None]]) -> Iterator[int]:
        """Yield the numbers of ops that the program has issued on other streams than the first."""
        number = 0
        for run, of_run in zip(self.runs, lowered, strict=True):
            others = [bool(op.stream) for op, kernel in zip(run.ops, of_run, strict=True) if kernel]
            for _ in range(run.count):
                yield from (number + place for place, is_other in enumerate(others) if is_other)
                number += len(others)

    def waits(self, lowered: Sequence[Sequence[Op | None]]) -> Iterator[tuple[int, int]]:
        """Yield pairs of an op and an op that it waits for, by their numbers among those that run.

        A collective on the first stream holds up the ops after it, until a kernel has waited.
        """
        numbers: list[int] = []
        blocking: list[int] = []
        carried: set[int] = set()
        number = 0
        for run, of_run in zip(self.runs, lowered, strict=True):
            for _ in range(run.count):
                for op, kernel in zip(run.ops, of_run, strict=True):
                    place = len(numbers)
                    # What runs no kernel stands for the op before it.
                    numbers.append(number if kernel is not None else number - 1)
                    awaited = {numbers[place - distance] for distance in op.waits}
                    if kernel is None:  # fused into the next kernel
                        carried |= awaited
                        continue
                    awaited |= {*blocking} | carried
                    carried = set()
                    yield from ((number, other) for other in sorted(awaited) if 0 <= other < number)
                    stream = stream_of(kernel)
                    if stream is Stream.COMPUTE:
                        blocking = []
                    elif op.stream == 0:
                        blocking = [number]
                    number += 1


def _name(op: ProgramOp) -> str:
    name = op.op.removeprefix("aten.")
    return f"{op.module}: {name}" if op.module else name


def _launches(ops: Sequence[ProgramOp], lowered: Sequence[Op | None]) -> Iterator[LaunchKind]:
    """Yield how the host launches each op: a call of the framework begins with a new module."""
    module: str | None = None
    for op, kernel in zip(ops, lowered, strict=True):
        if kernel is None:
            continue
        yield LaunchKind.KERNEL if op.module == module else LaunchKind.CALL
        module = op.module
