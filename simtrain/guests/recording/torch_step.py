"""A recorded step on the terms of the engine: ops with streams and waits, and bytes over time.

A recording has the ops of one rank in the order in which the program issued them, with the stream
of each and the ops that it waits for. The engine has fewer streams (`workload.issue.Stream`).
Streams of process groups, which have the collectives of tensor parallelism, become one. Streams
that the program makes, as fully_shard does, become that of data-parallel collectives: NCCL runs the
collectives of one communicator one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np

from simtrain.base.mesh import Domains, Group, group_of_ranks
from simtrain.base.plain_data import Number, Sentence
from simtrain.base.values import dataclass
from simtrain.guests.recording.fusion import fused
from simtrain.guests.recording.program import ProgramOp, ProgramRun, RecordedProgram, expanded
from simtrain.guests.recording.works import RecordedKernel, collective_work, has_rule, kernel_work
from simtrain.scenario.software import PAPER_KERNELS, Kernels
from simtrain.workload.issue import LaunchKind, Segment, Stream, stream_of
from simtrain.workload.ops import Op, Phase
from simtrain.workload.pass_record import PassRecord
from simtrain.workload.recorded_step import (
    BytesOverTime,
    RecordedModel,
    RecordedStep,
    StateBytes,
)
from simtrain.workload.work import Work

_MOST_NAMES = 5
_group_of_ranks = lru_cache(group_of_ranks)


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
        yield from self.op_waits


def _bytes_over_time(runs: Sequence[ProgramRun]) -> BytesOverTime:
    """Add up what the ops of a pass allocate and free."""
    ops = tuple(expanded(runs))
    names = "makes_bytes", "frees_bytes", "gradient_bytes", "freed_gradient_bytes"
    makes, frees, gradients, freed = (
        np.array([getattr(op, name) for op in ops], np.int64) for name in names
    )
    after = np.cumsum(makes - frees)
    of_ops = tuple(op.name for op in ops)
    return BytesOverTime(of_ops, after + frees, after, np.cumsum(gradients - freed) + freed)


@dataclass(frozen=True, eq=False)
class TorchStep(RecordedStep):
    """A recorded step of torch on a cluster.

    Args:
        program: the recording.
        domains: of the cluster.
        kernels: of the software stack. Of these, attention's kernel counts, and whether a compiler
            fuses memory-bound kernels that follow one another.
    """

    program: RecordedProgram
    domains: Domains
    kernels: Kernels = PAPER_KERNELS

    @cached_property
    def forward(self) -> PassRecord:
        return _Lowering(self, self.program.forward, Phase.FORWARD).record()

    @cached_property
    def backward(self) -> PassRecord:
        return _Lowering(self, self.program.backward, Phase.INPUT_GRADIENT).record()

    @cached_property
    def update(self) -> tuple[Op, ...]:
        return tuple(_Lowering(self, self.program.optimizer, Phase.OPTIMIZER).record().ops)

    @cached_property
    def memory(self) -> tuple[BytesOverTime, BytesOverTime, BytesOverTime]:
        forward, backward, optimizer = map(_bytes_over_time, self.program.passes.values())
        return forward, backward, optimizer

    @property
    def model(self) -> RecordedModel:
        return RecordedModel(self.program.num_parameters, self.program.num_trained)

    @property
    def states(self) -> StateBytes:
        states = self.program.states
        of_model = states.parameters_bytes, states.optimizer_bytes
        return StateBytes(*of_model, states.gradients_bytes, states.other_bytes)

    def remarks(self, seconds: Callable[[Work], float]) -> Iterator[str]:
        program, shares = self.program, self.unpriced(seconds)
        yield (
            f"The ops are those that torch {program.torch} issued ({program.command}). Measured "
            "runs were compared with simtrain's own models, not with recorded programs."
        )
        yield from program.remarks
        if shares:
            names = sorted(shares, key=lambda name: -shares[name])
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            share = sum(shares.values())
            yield Sentence(
                f"No rule knows {', '.join(names[:_MOST_NAMES])}{more}: they are priced by their "
                "bytes, and take ",
                Number(share, f"{share:.1%}"),
                " of the time of kernels.",
            )

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
        ranks = tuple(self.program.groups[number])
        return _group_of_ranks(("dp",) if is_data else ("tp",), ranks, self.domains)


class _Lowering:
    """Turns the ops of a recorded pass into segments, one for each run."""

    def __init__(self, step: TorchStep, runs: Sequence[ProgramRun], phase: Phase) -> None:
        self.step, self.runs, self.phase = step, runs, phase
        self.group_of_stream = self.groups_of_streams()

    def record(self) -> PassRecord:
        segments: list[Segment] = []
        kernels: list[list[Op | None]] = []
        for run in self.runs:
            lowered = [self.op(op) for op in run.ops]
            if self.step.kernels.partitions_recompute:
                lowered = fused(run.ops, lowered)
            kernels.append(lowered)
            if ops := tuple(op for op in lowered if op is not None):
                launches = tuple(_launches(run.ops, lowered))
                segment = Segment(ops, ((),) * len(ops), (), (0,) * len(ops), launches)
                segments += [segment] * run.count
        waits, unled = tuple(self.waits(kernels)), tuple(self.unled(kernels))
        owners, ends = (-1,) * len(segments), (len(segments),)
        return ProgramRecord(tuple(segments), owners, ends, op_waits=waits, unled=unled)

    def op(self, op: ProgramOp) -> Op | None:
        phase, name = self.phase, _name(op)
        if op.again:
            phase = Phase.RECOMPUTE
        if op.group is not None:
            group = self.step.group(op.group, is_data=self.is_data(op))
            is_alone = group.num_ranks == 1
            return None if is_alone else Op(name, collective_work(op, group), phase)
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
