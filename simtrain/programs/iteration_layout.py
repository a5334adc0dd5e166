"""Lays out a training iteration: the pipeline, the gradient reduction, the optimizer step.

After the pipeline, the order is that of Megatron-LM's `finalize_model_grads` and optimizer: reduce
gradients over data parallelism, of layer norms over tensor parallelism, and of the tied embedding
over the first and last stage; all-reduce the gradient norm over all stages; run Adam; and, with
ZeRO, all-gather the new parameters. If this all-gather overlaps the forward passes of the next
iteration, the iteration starts with the gathers of the previous one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import Engine, LinkLoads, Program, TaskGraph, Timeline, find_idle_seconds
from simtrain.engine.compiled import Floats, Ints
from simtrain.engine.program import rows_of, starts_of
from simtrain.programs.bucket_layout import (
    BucketSpans,
    aligned_gather_waits,
    aligned_reduction_starts,
    gather_waits,
    spread,
)
from simtrain.programs.parts import (
    BucketPart,
    IterationPart,
    IterationStructure,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
    TransferPart,
)
from simtrain.programs.pipeline import PipelineTasks, link_streams, stage_streams
from simtrain.programs.recent_cache import RecentCache
from simtrain.programs.sync_skips import actions_skipping_sync
from simtrain.schedules import KINDS, Messages

_REMEMBERED = 3_000_000
"""Total tasks of cached layouts, at about 60 bytes each."""

_LABELS = {
    # Name and kind of each type of task.
    "transfer": ("{message}", "transfer"),
    "forward": ("{action}", "forward"),
    "backward": ("{action}", "backward"),
    "synchronize": ("synchronize", "synchronize"),
    "receive_gather": ("gather {message}", "receive gather"),
    "gather": ("parameters of {action}", "data bucket"),
    "bucket": ("gradients of {action}", "data bucket"),
    "average": ("gradient average", "optimizer"),
    "data_reduction": ("gradient reduction", "data"),
    "sequence_parallel": ("layer norm gradient all-reduce", "tensor"),
    "embedding": ("embedding gradient all-reduce", "embedding"),
    "to_host": ("gradients to host", "optimizer"),
    "norm": ("gradient norm", "optimizer"),
    "norm_reduction": ("gradient norm all-reduce", "norm"),
    "update": ("Adam", "optimizer"),
    "parameter_gather": ("parameter all-gather", "parameter gather"),
    "weight_cast": ("weights to fp8", "optimizer"),
}
_PLACES = {label: place for place, label in enumerate(_LABELS)}
_LABEL_VALUES = tuple(_LABELS.values())
_TASK_KINDS = tuple(kind for _, kind in _LABEL_VALUES)
_FORWARD = KINDS.index("F")


@dataclass(frozen=True, slots=True, eq=False)
class _Names:
    """Makes the names of tasks when they are read.

    Task i has the type at place `label_of[i]` of `_LABELS`. Its name contains the message or action
    `subject_of[i]`; -1 for none.
    """

    messages: Messages
    label_of: Ints
    subject_of: Ints

    def __call__(self, task: int) -> str:
        name, _ = _LABEL_VALUES[int(self.label_of[task])]
        subject = int(self.subject_of[task])
        if "{message}" in name:
            return name.format(message=self.messages[subject])
        if "{action}" in name:
            return name.format(action=self.messages.schedule.action(subject))
        return name


@dataclass(frozen=True, eq=False)
class IterationTasks:
    """The tasks of an iteration.

    The compute streams of the stages are the first streams. Stream `data 3` has the buckets of
    stage 3; `embedding` and `model` have all-reduces over several stages.

    Args:
        graph: tasks, streams and dependencies.
        num_stages: pipeline stages.
        parts, part_of: task i belongs to part `parts[part_of[i]]`, which determines its duration.
        first, last: [actions], first and last task of each action of the schedule.
        norms: [stages], first task of each stage's optimizer.
    """

    graph: TaskGraph
    num_stages: int
    parts: tuple[IterationPart, ...]
    part_of: Ints
    first: Ints
    last: Ints
    norms: Ints

    def program(
        self,
        seconds: Callable[[IterationPart], float],
        adapter_load: Callable[[IterationPart], float] = lambda part: 0.0,
    ) -> Program:
        """Return the program, given the duration and the adapter load of each part.

        The ranks of a stage share their nodes' adapters, in each direction. Transfers only share
        them with buckets; without buckets there are no shared links.
        """
        duration_s, link_loads = np.array([*map(seconds, self.parts)])[self.part_of], None
        if any(isinstance(part, BucketPart) and adapter_load(part) > 0 for part in self.parts):
            link_loads = self._link_loads(np.array([*map(adapter_load, self.parts)])[self.part_of])
        return Program(self.graph, duration_s, link_loads)

    def _link_loads(self, load: Floats) -> LinkLoads:
        """Return the loads on adapters: outgoing links of all stages, then incoming links."""
        loaded = np.flatnonzero(load > 0)
        group, sender = np.divmod(self.graph.stream_of[loaded], self.num_stages)
        receiver = (sender + np.array([0, 1, -1, 0])[group]) % self.num_stages
        links = np.stack([sender, self.num_stages + receiver], axis=1).astype(np.int32)
        weight = 1 / np.where(load > 0, load, 1.0)
        starts = starts_of(2 * (load > 0))
        capacity = np.ones(2 * self.num_stages)
        return LinkLoads(capacity, starts, links.ravel(), np.repeat(load[loaded], 2), weight)

    @cached_property
    def num_parts(self) -> NDArray[np.int64]:
        """[stages, parts], number of tasks of each part on the compute stream of each stage."""
        shape = self.num_stages, len(self.parts)
        own = np.flatnonzero(self.graph.stream_of < self.num_stages)
        numbers = self.graph.stream_of[own] * shape[1] + self.part_of[own]
        return np.bincount(numbers, minlength=shape[0] * shape[1]).reshape(shape)

    def idle_seconds(self, timeline: Timeline, engine: Engine) -> Floats:
        """Return [stages, 3], idle seconds of each stage while other streams run.

        Columns: transfers and the embedding's all-reduce; the stage's buckets; the gradient norm.
        """
        return find_idle_seconds(timeline, *self._waits, engine)

    def concurrent_streams(self, stage: int) -> tuple[int, ...]:
        """Return the streams to which `idle_seconds` charges a stage's idle time, in its order.

        Transfers forward (out, in), transfers backward (out, in), embedding, buckets, norm.
        """
        own, others, _ = self._waits
        return tuple(dict.fromkeys(one for one in others[stage].tolist() if one != own[stage]))

    @cached_property
    def _waits(self) -> tuple[Ints, Ints, Ints]:
        """Compute streams, streams that each stage may wait for, and their categories."""
        stages = np.arange(self.num_stages, dtype=np.int32)
        forward, backward, data, embedding = (number * self.num_stages for number in (1, 2, 3, 4))
        others = (
            *(forward + stages, forward + np.roll(stages, 1)),
            *(backward + stages, backward + np.roll(stages, -1)),
            np.where((stages == 0) | (stages == stages[-1]), embedding, stages),
            *(data + stages, np.full_like(stages, embedding + 1)),
        )
        part_of = np.tile(np.array([0, 0, 0, 0, 0, 1, 2], np.int32), (len(stages), 1))
        return stages, np.stack(others, axis=1).astype(np.int32), part_of


_LAID_OUT = RecentCache[IterationStructure, IterationTasks](
    _REMEMBERED, lambda tasks: tasks.graph.num_tasks
)


def tasks_of(structure: IterationStructure) -> IterationTasks:
    """Return the tasks of a structure."""
    return _LAID_OUT.get(structure, lambda structure: _Layout(structure).lay_out())


class _Layout:
    """Builds the tasks of an iteration, as lists of arrays."""

    def __init__(self, structure: IterationStructure) -> None:
        order, schedule = structure.order, structure.order.schedule
        self.structure, self.schedule = structure, schedule
        self.stages, self.steps = np.arange(order.num_stages), np.array(structure.steps)
        self.chunk, self.saves_all = np.array(order.chunks)[schedule.virtual_stage], order.saves_all
        self.is_forward = schedule.kind == _FORWARD
        self.is_last = schedule.microbatch == schedule.num_microbatches - 1
        # Passes that are cut into spans, because buckets overlap them.
        reduces = self.is_last & (schedule.kind == KINDS.index("B"))
        gathers = (schedule.microbatch == 0) & self.is_forward & structure.gathers
        self.last_backwards = np.flatnonzero(reduces & (structure.num_buckets is not None))
        self.first_forwards = np.flatnonzero(gathers)
        self.numbers: dict[IterationPart, int] = {}
        self.num_tasks = 0
        self.columns: list[tuple[Ints, Ints, Ints, Ints]] = []
        self.waits: list[tuple[Any, Any]] = []

    def lay_out(self) -> IterationTasks:
        """Add all tasks."""
        num_stages, pipeline = len(self.stages), self.add_pipeline()
        # Each stage's last task, and a task on another stream that its next task waits for (-1:
        # none).
        self.last, self.awaited_elsewhere = pipeline.own_starts[1:] - 1, np.full(num_stages, -1)
        self.add_gathers(pipeline)
        self.add_reductions(pipeline)
        if self.structure.reduces_after:
            self.add_reductions_of_chunks()
        for field in ("average", "data_reduction", "sequence_parallel"):
            self.add_step(field)
        holders = self.stages[self.has("embedding")]
        if len(holders):
            self.add_barrier_all_reduce("embedding", holders, 4 * num_stages)
        self.add_step("to_host")
        norms = self.add_step("norm")
        # All ranks wait for the norm over all stages.
        self.add_barrier_all_reduce("norm_reduction", self.stages, 4 * num_stages + 1)
        self.add_step("update")
        self.add_step("parameter_gather")
        self.add_step("weight_cast")

        streams, labels, subjects, parts = map(np.concatenate, zip(*self.columns, strict=True))
        waiting, awaited = map(np.concatenate, zip(*self.waits, strict=True))
        graph = TaskGraph(
            (
                *stage_streams(num_stages),
                *link_streams(num_stages, 1),
                *link_streams(num_stages, -1),
                *(f"data {stage}" for stage in range(num_stages)),
                *("embedding", "model"),
            ),
            streams,
            *rows_of(self.num_tasks, waiting, awaited),
            _TASK_KINDS,
            labels,
            _Names(pipeline.messages, labels, subjects),
        )
        first, last = pipeline.first, pipeline.last
        return IterationTasks(graph, num_stages, tuple(self.numbers), parts, first, last, norms)

    def add(self, stream: Any, label: Any, subject: Any, part: Any) -> Ints:
        """Add tasks with these columns, at least one of them an array; return their numbers."""
        columns = np.broadcast_arrays(stream, label, subject, part)
        self.columns.append(tuple(column.astype(np.int32) for column in columns))  # type: ignore[arg-type]
        first, self.num_tasks = self.num_tasks, self.num_tasks + len(columns[0])
        return np.arange(first, self.num_tasks, dtype=np.int32)

    def parts(self, make: Callable[..., IterationPart], *columns: NDArray[Any]) -> Ints:
        """Return the number of each row's part; `make` makes a part from each different row."""
        shape = [int(column.max(initial=0)) + 1 for column in columns]
        codes = np.ravel_multi_index([column.astype(np.intp) for column in columns], shape)
        count = np.bincount(codes)
        numbers, present = np.zeros(len(count), np.int32), np.flatnonzero(count)
        rows = np.stack(np.unravel_index(present, shape), axis=1).tolist()
        for code, row in zip(present.tolist(), rows, strict=True):
            numbers[code] = self.numbers.setdefault(make(*row), len(self.numbers))
        found: Ints = numbers[codes]
        return found

    def add_pipeline(self) -> PipelineTasks:
        """Add messages, actions, synchronizations of hosts and gathers of receivers."""
        structure, schedule, num_stages = self.structure, self.schedule, len(self.stages)
        cut = np.concatenate([self.last_backwards, self.first_forwards])
        num_parts = np.ones(len(schedule.kind), np.int32)
        if structure.num_buckets:
            num_parts[cut] = np.array(structure.num_buckets)[schedule.virtual_stage[cut]]
        tasks = PipelineTasks.of(
            schedule,
            num_parts,
            overlaps=structure.overlap,
            gathers_on_receive=structure.gathers_on_receive,
        )
        self.waits.append((tasks.waiting, tasks.awaited))
        columns = np.empty((4, tasks.num_tasks), np.int32)

        def put(where: Any, label: Any, subject: Any, part: Ints) -> None:
            columns[1, where], columns[2, where], columns[3, where] = label, subject, part

        sender, goes_back = tasks.messages.sender, 1 - tasks.messages.goes_forward
        messages, own = np.arange(len(sender)), slice(len(sender), None)
        columns[0, messages] = (1 + goes_back) * num_stages + sender
        columns[0, own] = np.repeat(self.stages, np.diff(tasks.own_starts))
        crossed = np.array(structure.levels_crossed)[(sender - goes_back) % num_stages]
        transfers = self.parts(TransferPart, tasks.num_sends, crossed)
        put(messages, _PLACES["transfer"], messages, transfers)

        actions, numbers = spread(np.arange(len(num_parts)), num_parts)
        is_cut, is_forward = np.isin(actions, cut), self.is_forward[actions]
        sync_skips = actions_skipping_sync(schedule, structure.sync_skips)
        passes = (one[actions] for one in (self.chunk, schedule.kind, self.saves_all, sync_skips))
        # Order of the parts: whole forward passes, whole backward passes, then spans.
        parts = self.parts(_pass_part, is_cut, is_forward == is_cut, numbers, *passes)
        label = np.where(is_forward, _PLACES["forward"], _PLACES["backward"])
        put(tasks.first[actions] + numbers, label, actions, parts)

        synchronizing = self.parts(SynchronizationPart, tasks.num_messages)
        put(tasks.synchronizing, _PLACES["synchronize"], -1, synchronizing)
        received = messages[: len(tasks.receive_gathers)]
        gathers = self.parts(lambda _: ReceiveGatherPart(), np.zeros_like(received))
        put(tasks.receive_gathers, _PLACES["receive_gather"], received, gathers)
        self.add(*columns)
        return tasks

    def add_gathers(self, pipeline: PipelineTasks) -> None:
        """Add the gather of each parameter bucket, before the span that needs it."""
        if not len(self.first_forwards):
            return
        is_aligned = self.structure.aligns_gather
        spans = BucketSpans.of(self.schedule, pipeline, self.first_forwards, is_reversed=is_aligned)
        is_of_first_chunk = self.schedule.virtual_stage[spans.actions] < len(self.stages)
        is_last = (spans.numbers == 0) & is_of_first_chunk
        numbers = pipeline.last[spans.actions] - spans.tasks
        gathers = self.add_bucket_tasks("gather", spans, numbers, is_last)
        self.waits.append((spans.tasks, gathers))
        waits_of = aligned_gather_waits if is_aligned else gather_waits
        self.waits += waits_of(pipeline, spans, gathers)

    def add_reductions(self, pipeline: PipelineTasks) -> None:
        """Add the reduction of each gradient bucket, after the last microbatch's gradients."""
        if not len(self.last_backwards):
            return
        spans = BucketSpans.of(self.schedule, pipeline, self.last_backwards)
        is_last = np.append(spans.stages[1:] != spans.stages[:-1], True)
        buckets = self.add_bucket_tasks("bucket", spans, spans.numbers, is_last)
        awaited = spans.tasks
        if self.structure.aligns_reduction:
            awaited = aligned_reduction_starts(pipeline, spans)
        self.waits.append((buckets, awaited))
        self.awaited_elsewhere[spans.stages[is_last]] = buckets[is_last]

    def add_bucket_tasks(
        self, label: str, spans: BucketSpans, numbers: Ints, is_last: NDArray[np.bool_]
    ) -> Ints:
        """Add one task per span for its bucket, on the `data` stream of its stage."""

        def bucket(chunk: int, number: int, step: int, is_last: int) -> BucketPart:
            return BucketPart(chunk, number, step, bool(is_last), gathers=label == "gather")

        stages, chunks = spans.stages, self.chunk[spans.actions]
        parts = self.parts(bucket, chunks, numbers, self.steps[stages], is_last)
        return self.add(3 * len(self.stages) + stages, _PLACES[label], spans.actions, parts)

    def add_reductions_of_chunks(self) -> None:
        """Add the reduction of each chunk's gradients, after all passes of its stage."""
        order = self.structure.order
        for chunks in np.array(order.chunks).reshape(order.num_chunks, -1):
            parts = self.parts(_reduction, chunks)
            self.last = self.add(self.stages, _PLACES["data_reduction"], -1, parts)

    def has(self, field: str) -> NDArray[np.bool_]:
        """Return [stages], whether each stage's optimizer step has a field."""
        fields = self.structure.step_fields
        present: NDArray[np.bool_] = np.array([field in one for one in fields])[self.steps]
        return present

    def add_step(self, field: str) -> Ints:
        """Add a field of the optimizer step on the stages that have it; return their tasks."""
        stages = self.stages[self.has(field)]
        parts = self.parts(lambda step: OptimizerPart(field, step), self.steps[stages])
        tasks = self.add(stages, _PLACES[field], -1, parts)
        awaited_elsewhere = self.awaited_elsewhere[stages]
        self.waits.append(
            (tasks[awaited_elsewhere >= 0], awaited_elsewhere[awaited_elsewhere >= 0])
        )
        self.last[stages], self.awaited_elsewhere[stages] = tasks, -1
        return tasks

    def add_barrier_all_reduce(self, field: str, stages: Ints, stream: int) -> None:
        """Add an all-reduce over some stages, which all of them wait for."""
        part = self.numbers.setdefault(OptimizerPart(field), len(self.numbers))
        (task,) = self.add([stream], _PLACES[field], -1, part)
        awaited = np.concatenate([self.last[stages], self.awaited_elsewhere[stages]])
        awaited = awaited[awaited >= 0]
        self.waits.append((np.full(len(awaited), task), awaited))
        self.awaited_elsewhere[stages] = task


def _pass_part(
    is_cut: int, _: int, number: int, chunk: int, kind: int, saves_all: int, skips_sync: int
) -> PassPart:
    span = number if is_cut else None
    return PassPart(chunk, KINDS[kind], bool(saves_all), bool(skips_sync), span)


def _reduction(chunk: int) -> PassPart:
    return PassPart(chunk, "R", saves_all=False)
