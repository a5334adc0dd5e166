"""Builds the tasks of an iteration: the pipeline, the gradient reduction, the optimizer step.

After the pipeline, the order is that of Megatron-LM's `finalize_model_grads` and optimizer: reduce
gradients over data parallelism, of layer norms over tensor parallelism, and of the tied embedding
over the stages that hold it; all-reduce the gradient norm over all stages; run Adam; and, with
ZeRO, all-gather the new parameters. If this all-gather overlaps the forward passes of the next
iteration, the iteration starts with the gathers of the previous one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import TaskGraph
from simtrain.engine.compiled import Flags, Ints
from simtrain.engine.program import rows_of
from simtrain.iteration.plan import PassVariant
from simtrain.iteration.programs.iteration_tasks import (
    BUCKETS,
    NUM_GROUPS,
    IterationTasks,
    TaskNames,
    label_of,
    links_of_messages,
    stream_names,
)
from simtrain.iteration.programs.parts import (
    BucketPart,
    IterationPart,
    IterationStructure,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    actions_skipping_sync,
)
from simtrain.iteration.programs.pass_tasks import RecentCache
from simtrain.iteration.programs.pipeline import (
    BucketSpans,
    PipelineTasks,
    aligned_gather_waits,
    aligned_reduction_starts,
    gather_waits,
    spread,
)
from simtrain.schedules import KINDS

_CACHED_TASKS = 3_000_000
"""Limit of the tasks of all cached structures, at about 60 bytes each."""
_FORWARD = KINDS.index("F")

_CACHE = RecentCache[IterationStructure, IterationTasks](
    _CACHED_TASKS, lambda tasks: tasks.graph.num_tasks
)


def tasks_of(structure: IterationStructure) -> IterationTasks:
    """Return the tasks of a structure."""
    return _CACHE.get(structure, lambda structure: _Builder(structure).build())


class _Builder:
    """Builds the tasks of an iteration, as lists of arrays."""

    def __init__(self, structure: IterationStructure) -> None:
        order, schedule = structure.pass_order, structure.pass_order.actions
        self.structure, self.schedule = structure, schedule
        self.stages, self.steps = np.arange(schedule.num_stages), np.array(structure.steps)
        self.chunk, self.saves_all = np.array(order.chunks)[schedule.virtual_stage], order.saves_all
        self.is_forward = schedule.kind == _FORWARD
        no_action = np.zeros(len(schedule.kind), np.bool_)
        self.merges = no_action if schedule.merges is None else schedule.merges
        # Passes that are cut into spans, because buckets overlap them.
        none = np.zeros(0, np.int32)
        reduces, gathers = structure.num_buckets is not None, structure.gathers
        self.last_backwards = np.sort(schedule.last_backwards) if reduces else none
        self.first_forwards = np.sort(schedule.first_forwards) if gathers else none
        self.cut = np.concatenate([self.last_backwards, self.first_forwards])
        self.numbers: dict[IterationPart, int] = {}
        self.num_tasks = 0
        self.columns: list[tuple[Ints, Ints, Ints]] = []
        # Waiting tasks, and the tasks that they wait for.
        self.waits: list[tuple[Ints, Ints]] = []

    def build(self) -> IterationTasks:
        num_stages, pipeline = len(self.stages), self.add_pipeline()
        # Each stage's last task, and a task on another stream that its next task waits for (-1:
        # none).
        self.last = pipeline.own_starts[1:] - 1
        self.awaited_elsewhere = np.full(num_stages, -1, np.int32)
        self.add_gathers(pipeline)
        self.add_reductions(pipeline)
        if self.structure.reduces_after:
            virtual_stages = np.array(self.schedule.placement.virtual_stages)
            for chunks in np.array(self.structure.pass_order.chunks)[virtual_stages.T]:
                parts = self.parts(lambda chunk: PassPart(PassVariant(chunk, "R")), chunks)
                self.last = self.add(self.stages, parts)
        for field in ("average", "data_reduction", "sequence_parallel"):
            self.add_step(field)
        holders, shared_streams = self.stages[self.has("embedding")], NUM_GROUPS * num_stages
        if len(holders):
            self.add_barrier_all_reduce("embedding", holders, shared_streams)
        self.add_step("to_host")
        norms = self.add_step("norm")
        # All ranks wait for the norm over all stages.
        self.add_barrier_all_reduce("norm_reduction", self.stages, shared_streams + 1)
        self.add_step("update")
        self.add_step("parameter_gather")
        self.add_step("weight_cast")

        streams, part_of, subjects = map(np.concatenate, zip(*self.columns, strict=True))
        waiting, awaited = map(np.concatenate, zip(*self.waits, strict=True))
        part_of = part_of.astype(np.intp)  # numpy takes three times as long with other indices
        names, kinds = zip(*map(label_of, self.numbers), strict=True)
        graph = TaskGraph(
            stream_names(num_stages),
            streams,
            *rows_of(self.num_tasks, waiting, awaited),
            kinds,
            part_of,
            TaskNames(pipeline.messages, names, part_of, subjects),
        )
        return IterationTasks(
            graph,
            num_stages,
            (*self.numbers,),
            part_of,
            pipeline.first,
            pipeline.last,
            norms,
            self.has("embedding"),
        )

    def add(self, stream: Any, part: Any, subject: Any = -1) -> Ints:
        columns = np.broadcast_arrays(stream, part, subject)
        self.columns.append(tuple(column.astype(np.int32, copy=False) for column in columns))  # type: ignore[arg-type]
        first, self.num_tasks = self.num_tasks, self.num_tasks + len(columns[0])
        return np.arange(first, self.num_tasks, dtype=np.int32)

    def add_waits(self, waiting: Ints, awaited: Ints) -> None:
        exists = awaited >= 0
        self.waits.append((waiting[exists], awaited[exists]))

    def parts(self, make: Callable[..., IterationPart], *columns: NDArray[Any]) -> Ints:
        """Return the number of each row's part; `make` makes a part from each different row."""
        shape = [int(column.max(initial=0)) + 1 for column in columns]
        codes = np.zeros(columns[0].shape, np.intp)
        for column, size in zip(columns, shape, strict=True):
            if size > 1:
                codes = size * codes + column
        count = np.bincount(codes)
        numbers, present = np.zeros(len(count), np.int32), np.flatnonzero(count)
        rows = np.stack(np.unravel_index(present, shape), axis=1).tolist()
        for code, row in zip(present.tolist(), rows, strict=True):
            numbers[code] = self.numbers.setdefault(make(*row), len(self.numbers))
        part_numbers: Ints = numbers[codes]
        return part_numbers

    def add_pipeline(self) -> PipelineTasks:
        """Add messages, actions, synchronizations of hosts and gathers of receivers."""
        structure, schedule, num_stages = self.structure, self.schedule, len(self.stages)
        num_parts = np.where(schedule.follows_merged, 0, 1).astype(np.int32)
        if structure.num_buckets:
            num_parts[self.cut] = np.array(structure.num_buckets)[schedule.virtual_stage[self.cut]]
        exchanges_shapes = structure.overlap and structure.exchanges_shapes
        how = structure.overlap, structure.gathers_on_receive, exchanges_shapes
        tasks = PipelineTasks(schedule, num_parts, *how)
        self.waits.append(tasks.waits)
        columns = np.empty((3, tasks.num_tasks), np.int32)

        def put(where: Any, part: Ints, subject: Any = -1) -> None:
            columns[1, where], columns[2, where] = part, subject

        sender, step = tasks.messages.sender, tasks.messages.step
        messages, of_stage = np.arange(len(sender)), slice(len(sender), None)
        columns[0, messages] = links_of_messages(sender, step, num_stages)
        columns[0, of_stage] = np.repeat(self.stages, np.diff(tasks.own_starts))
        lower_end = np.where(step > 0, sender, tasks.messages.receiver)
        crossed = np.array(structure.levels_crossed)[lower_end]
        states = np.array(structure.sent_states)[tasks.messages.boundary]
        transfers = self.parts(structure.transfer, tasks.num_sends, crossed, states)
        put(messages, transfers, messages)

        actions, numbers = spread(np.arange(len(num_parts)), num_parts)
        is_forward, is_cut = self.is_forward[actions], np.isin(actions, self.cut)
        sync_skips = actions_skipping_sync(schedule, structure.sync_skips)
        columns_of = self.chunk, schedule.kind, self.saves_all, sync_skips
        passes = (column[actions] for column in columns_of)
        merges = self.merges[actions]
        beside = (np.where(merges, column[actions + merges], 0) for column in columns_of)
        # Order of the parts: whole forward passes, whole backward passes, then spans.
        parts = self.parts(
            _pass_part, is_cut, is_forward == is_cut, numbers, *passes, merges, *beside
        )
        put(tasks.first[actions] + numbers, parts, actions)

        farthest = np.zeros(len(tasks.num_messages), crossed.dtype)
        for slots in (tasks.slots.send, tasks.slots.receive):
            exchange = tasks.exchanges_of(slots)
            np.maximum.at(farthest, exchange, crossed[: len(exchange)])
        synchronizing = self.parts(structure.synchronization, tasks.num_messages, farthest)
        put(tasks.synchronizing, synchronizing)
        receive_gathers = tasks.receive_gathers
        received = messages[: len(receive_gathers)]
        put(receive_gathers, self.parts(ReceiveGatherPart, states[received]), received)
        self.add(*columns)
        return tasks

    def add_gathers(self, pipeline: PipelineTasks) -> None:
        """Add the gather of each parameter bucket, before the span that needs it."""
        if not len(self.first_forwards):
            return
        is_aligned = self.structure.aligns_gather
        spans = BucketSpans.of(self.schedule, pipeline, self.first_forwards, is_reversed=is_aligned)
        chunks = np.array(self.schedule.placement.chunks)
        is_of_first_chunk = chunks[self.schedule.virtual_stage[spans.actions]] == 0
        is_last = (spans.numbers == 0) & is_of_first_chunk
        numbers = pipeline.last[spans.actions] - spans.tasks
        gathers = self.add_bucket_tasks(spans, numbers, is_last, gathers=True)
        self.waits.append((spans.tasks, gathers))
        waits_of = aligned_gather_waits if is_aligned else gather_waits
        self.waits += waits_of(pipeline, spans, gathers)

    def add_reductions(self, pipeline: PipelineTasks) -> None:
        """Add the reduction of each gradient bucket, after the last microbatch's gradients."""
        if not len(self.last_backwards):
            return
        spans = BucketSpans.of(self.schedule, pipeline, self.last_backwards)
        is_last = np.append(spans.stages[1:] != spans.stages[:-1], True)
        buckets = self.add_bucket_tasks(spans, spans.numbers, is_last)
        awaited = spans.tasks
        if self.structure.aligns_reduction:
            awaited = aligned_reduction_starts(pipeline, spans)
        self.waits.append((buckets, awaited))
        self.awaited_elsewhere[spans.stages[is_last]] = buckets[is_last]

    def add_bucket_tasks(
        self, spans: BucketSpans, numbers: Ints, is_last: Flags, *, gathers: bool = False
    ) -> Ints:
        def bucket(chunk: int, number: int, step: int, is_last: int) -> BucketPart:
            return BucketPart(chunk, number, step, bool(is_last), gathers)

        stages, chunks = spans.stages, self.chunk[spans.actions]
        parts = self.parts(bucket, chunks, numbers, self.steps[stages], is_last)
        return self.add(BUCKETS * len(self.stages) + stages, parts, spans.actions)

    def has(self, field: str) -> Flags:
        """Return [stages], whether each stage's optimizer step has a field."""
        fields = self.structure.step_fields
        present: Flags = np.array([field in names for names in fields])[self.steps]
        return present

    def add_step(self, field: str) -> Ints:
        stages = self.stages[self.has(field)]
        parts = self.parts(lambda step: OptimizerPart(field, step), self.steps[stages])
        tasks = self.add(stages, parts)
        self.add_waits(tasks, self.awaited_elsewhere[stages])
        self.last[stages], self.awaited_elsewhere[stages] = tasks, -1
        return tasks

    def add_barrier_all_reduce(self, field: str, stages: Ints, stream: int) -> None:
        part = self.numbers.setdefault(OptimizerPart(field), len(self.numbers))
        (task,) = self.add([stream], part)
        awaited = np.concatenate([self.last[stages], self.awaited_elsewhere[stages]])
        self.add_waits(np.full_like(awaited, task), awaited)
        self.awaited_elsewhere[stages] = task


def _pass_part(is_cut: int, _: int, number: int, *passes: int) -> PassPart:
    """Return the part of these columns; the second four are of a backward pass that is merged."""
    chunk, kind, saves_all, skips_sync, merges, *beside = passes
    merged = _pass_part(0, 0, 0, *beside, 0).variant if merges else None
    switches = bool(saves_all), bool(skips_sync)
    return PassPart(PassVariant(chunk, KINDS[kind], *switches, merged), number if is_cut else None)
