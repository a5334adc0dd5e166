"""The tasks of a pipeline: the actions of every stage, and the messages between them.

Each stage computes on one stream, and each pair of neighbours has a directed link. A blocking
exchange is a rendezvous: its messages start when both stages have reached it, and a stage continues
when all messages of its exchange are received and its host has synchronized. With overlap, a
message starts when its producer has ended, and only its consumer waits for it. If shapes are
exchanged before, a message starts when both stages have reached the exchange of its shape; its
consumer waits for it, and so do the next exchanges of both stages, which synchronize the device.
"""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np

from simtrain.base.values import dataclass
from simtrain.engine.compiled import Ints
from simtrain.engine.program import starts_of
from simtrain.schedules import (
    KINDS,
    ExchangeSlots,
    Messages,
    Schedule,
    asynchronous_slots,
    blocking_slots,
    shape_slots,
)


# No slots: cached properties need the dictionary of their object.
@dataclass(frozen=True, eq=False)
class PipelineTasks:
    """The tasks of a pipeline: one per message, then the tasks of each stage in order.

    Each stage runs numbered slots: an action, or an exchange of messages (`ExchangeSlots`). A slot
    has a task in which the host synchronizes, if it does; a gather for each received message, if
    receivers gather; and the parts of its action. So the slots' sizes number all tasks, and who
    waits for whom follows from the slots of the messages' ends.

    Args:
        schedule: the actions of each stage.
        num_parts: [actions], number of tasks of each action; 0 for an action that is merged with
            the one before it, whose task it shares.
        overlaps: messages are asynchronous.
        gathers_on_receive: receivers all-gather each message.
        exchanges_shapes: asynchronous messages follow a blocking exchange of their shapes.
    """

    schedule: Schedule
    num_parts: Ints
    overlaps: bool
    gathers_on_receive: bool
    exchanges_shapes: bool = False

    @cached_property
    def messages(self) -> Messages:
        """Message i is task i."""
        return Messages.of(self.schedule)

    @cached_property
    def slots(self) -> ExchangeSlots:
        if not self.overlaps:
            return blocking_slots(self.messages)
        return (shape_slots if self.exchanges_shapes else asynchronous_slots)(self.messages)

    @cached_property
    def num_exchanged(self) -> tuple[Ints, Ints]:
        """[slots], messages that the stage sends in a slot, and those that it receives."""
        sent, received = (
            np.bincount(slot, minlength=self.slots.starts[-1]).astype(np.int32)
            for slot in (self.slots.send, self.slots.receive)
        )
        return sent, received

    @cached_property
    def exchanges(self) -> Ints:
        """[exchanges], the slots in which a host synchronizes, with messages or their shapes."""
        synchronizes, (sent, received) = not self.overlaps, self.num_exchanged
        return np.flatnonzero((sent + received > 0) & (synchronizes or self.exchanges_shapes))

    @cached_property
    def begins(self) -> Ints:
        """[slots + 1], first task of each slot, and last the number of all tasks."""
        num_slots = self.slots.starts[-1]
        sizes = np.bincount(self.slots.action, self.num_parts, num_slots).astype(np.int32)
        sizes[self.exchanges] += 1
        sizes += self.num_exchanged[1] * self.gathers_on_receive
        return len(self.messages) + starts_of(sizes)

    @property
    def num_tasks(self) -> int:
        return int(self.begins[-1])

    @property
    def own_starts(self) -> Ints:
        """[stages + 1], first task of each stage."""
        return self.begins[self.slots.starts]

    @cached_property
    def first(self) -> Ints:
        """[actions], first task of each action."""
        action, num_parts = self.slots.action, self.num_parts
        first: Ints = self.begins[action]
        # Two actions can share a slot: the tasks of the second follow those of the first.
        second = np.flatnonzero(action[1:] == action[:-1]) + 1
        first[second] += num_parts[second - 1]
        # A merged action has no tasks: it shares those of the action before it.
        merged = num_parts == 0
        first[merged] = first[:-1][merged[1:]]
        return first

    @cached_property
    def last(self) -> Ints:
        """[actions], last task of each action."""
        last: Ints = self.first + self.num_parts - 1
        merged = self.num_parts == 0
        last[merged] = last[:-1][merged[1:]]
        return last

    @property
    def num_sends(self) -> Ints:
        """[messages], number of messages that the sender sends in the same exchange."""
        if self.overlaps:
            return np.ones(len(self.messages), np.int32)
        return self.num_exchanged[0][self.slots.send]

    @property
    def synchronizing(self) -> Ints:
        """[exchanges], tasks in which a host synchronizes with an exchange."""
        return self.begins[self.exchanges]

    @property
    def num_messages(self) -> Ints:
        """[exchanges], messages of each exchange."""
        sent, received = self.num_exchanged
        return (sent + received)[self.exchanges]

    def exchanges_of(self, slots: Ints) -> Ints:
        """Return [messages], the exchange in each one's slot; empty without exchanges."""
        return np.searchsorted(self.exchanges, slots[: len(slots) if len(self.exchanges) else 0])

    @property
    def receive_gathers(self) -> Ints:
        """[messages], all-gathers of messages on their receivers; empty without."""
        if not self.gathers_on_receive:
            return np.zeros(0, np.int32)
        receive, by_consumer = self.slots.receive, self._by_consumer
        gathers: Ints = self.begins[receive] + (not self.overlaps)
        gathers[by_consumer] += _places_in_groups(receive[by_consumer])
        return gathers

    @cached_property
    def waits(self) -> tuple[Ints, Ints]:
        """Waiting tasks, and the task that each waits for."""
        messages, by_consumer = self.messages, self._by_consumer
        numbers = np.arange(len(messages), dtype=np.int32)
        # The receiver's next task waits for the message: synchronization, gather, or action.
        is_later = self.exchanges_shapes
        needs = self.first[messages.consumer] if is_later else self.begins[self.slots.receive]
        waits = [(needs[by_consumer], numbers[by_consumer])]
        if len(self.exchanges):
            waits += self._rendezvous(numbers)
        else:
            waits.append((numbers, self.last[messages.producer]))
        if not self.overlaps:
            # The sender synchronizes too.
            waits.append((self.begins[self.slots.send], numbers))
        waiting, awaited = map(np.concatenate, zip(*waits, strict=True))
        return waiting, awaited

    @cached_property
    def _by_consumer(self) -> Ints:
        return _inverse(self.messages.consumer, len(self.num_parts))

    def _rendezvous(self, numbers: Ints) -> list[tuple[Ints, Ints]]:
        """Return the waits of exchanges for both of their ends: waiting and awaited tasks.

        A message starts when both stages have ended the task before their exchange. If the exchange
        is one of shapes, the message itself is asynchronous.
        """
        messages, begins, starts = self.messages, self.begins, self.slots.starts
        send, receive, waits = self.slots.send, self.slots.receive, []
        ends = (messages.sender, send, receive), (messages.receiver, receive, send)
        for stage, slot, other in ends:
            # An exchange that is the first task of its stage has nothing to wait for.
            follows = begins[slot] > begins[starts[stage]]
            before = begins[slot][follows] - 1
            waits.append((numbers[follows], before))
            if self.exchanges_shapes:
                # Both ends wait for each other, but only their next exchanges for the message.
                waits.append((begins[other][follows], before))
                following = np.searchsorted(self.exchanges, slot, side="right")
                later = np.append(self.exchanges, starts[-1])[following]
                is_own = later < starts[stage + 1]
                waits.append((begins[later[is_own]], numbers[is_own]))
        return waits


def _inverse(numbers: Ints, size: int) -> Ints:
    """Return the places of distinct numbers below `size`, in increasing order of the numbers."""
    places = np.full(size, -1, np.int32)
    places[numbers] = np.arange(len(numbers))
    in_use: Ints = places[places >= 0]
    return in_use


def _places_in_groups(groups: Ints) -> Ints:
    """Return [items], how many earlier items are in each item's group.

    Items of a group need not be neighbours: an interleaved rank can receive the input of a later
    action in the exchange before an earlier one.
    """
    by_group = np.argsort(groups, kind="stable")
    num_of_group = np.bincount(groups)
    places = np.empty_like(groups)
    places[by_group] = np.arange(len(groups)) - np.repeat(
        starts_of(num_of_group)[:-1], num_of_group
    )
    return places


# Dependencies of gradient and parameter buckets on the tasks of a pipeline.
#
# The last backward pass of a chunk is cut into spans, one per gradient bucket. The first forward
# pass is cut into spans, one per parameter bucket.

Dependencies = list[tuple[Ints, Ints]]
"""Pairs of arrays of equal length: waiting tasks, and the tasks that they wait for."""
_FORWARD = KINDS.index("F")
_WEIGHT_GRADIENTS = KINDS.index("B"), KINDS.index("W")


@dataclass(frozen=True, slots=True, eq=False)
class BucketSpans:
    """Spans of actions that are cut into buckets, action by action.

    Args:
        schedule: the schedule of the actions.
        cut: [cut actions], sorted by stage and then in the order of the stage.
        actions: [spans], action of each span.
        numbers: [spans], number of each span in its action.
        tasks: [spans], task of each span.
    """

    schedule: Schedule
    cut: Ints
    actions: Ints
    numbers: Ints
    tasks: Ints

    @classmethod
    def of(
        cls, schedule: Schedule, pipeline: PipelineTasks, cut: Ints, *, is_reversed: bool = False
    ) -> Self:
        """Return all spans of the cut actions; `is_reversed` puts each action's last span first."""
        counts = pipeline.last[cut] - pipeline.first[cut] + 1
        actions, numbers = spread(cut, counts)
        if is_reversed:
            numbers = np.repeat(counts, counts) - 1 - numbers
        return cls(schedule, cut, actions, numbers, pipeline.first[actions] + numbers)

    @property
    def stages(self) -> Ints:
        """[spans], stage of each span."""
        return self.schedule.rank[self.actions]


def gather_waits(pipeline: PipelineTasks, spans: BucketSpans, gathers: Ints) -> Dependencies:
    """Return the dependencies of gathers if each stage starts them when it needs them.

    Megatron-LM waits for a module's bucket before the module's forward pass, and then starts the
    gather of the chunk's next bucket (`finish_param_sync`). It starts the chunk's first bucket
    there too, which is exposed.
    """
    first = pipeline.first[spans.cut]
    of_first = gathers[spans.numbers == 0]
    has_before = first > pipeline.own_starts[spans.schedule.rank[spans.cut]]
    # The first gather waits for the same tasks as the first span.
    by_task = np.argsort(first)
    waiting, awaited = pipeline.waits
    is_of_first = np.isin(waiting, first)
    places = np.searchsorted(first[by_task], waiting[is_of_first])
    # The second follows the first on its stream. The third starts when the first span has ended.
    later = spans.numbers >= 2
    return [
        (of_first[has_before], first[has_before] - 1),
        (of_first[by_task][places], awaited[is_of_first]),
        (gathers[later], spans.tasks[later] - 2),
    ]


def aligned_gather_waits(
    pipeline: PipelineTasks, spans: BucketSpans, gathers: Ints
) -> Dependencies:
    """Return the dependencies of gathers if all stages start them at about the same time.

    Buckets of the first two chunks start at time 0. Buckets of a later chunk start when the first
    stage reaches the previous chunk. Stage s starts them s of its own forward passes earlier
    (`forward_step_helper_preprocess`). The buckets of a chunk start together, in the order of their
    gradients (`start_param_sync`).
    """
    schedule, starters = spans.schedule, np.full(len(spans.cut), -1, np.int32)
    for stage in range(schedule.num_stages):
        actions = np.arange(*schedule.rank_starts[stage : stage + 2])
        forwards = actions[schedule.kind[actions] == _FORWARD]
        (places,) = np.nonzero(schedule.rank[spans.cut] == stage)
        begins = np.searchsorted(forwards, spans.cut[places])
        starters[places[2:]] = forwards[begins[1:-1] - stage]
    before = pipeline.first[starters] - 1
    waits = (starters >= 0) & (before >= pipeline.own_starts[schedule.rank[spans.cut]])
    is_first_of_action = np.append(True, spans.actions[1:] != spans.actions[:-1])
    return [(gathers[is_first_of_action][waits], before[waits])]


def aligned_reduction_starts(pipeline: PipelineTasks, spans: BucketSpans) -> Ints:
    """Return [spans], the task after which each bucket is reduced if stages start together.

    With one chunk per stage, the first stage overlaps its reductions with its last backward pass,
    and the other stages reduce after all their passes. With several, stage s starts to reduce a
    chunk s backward passes after the chunk's last one (`backward_step_helper_postprocess`); of a
    split pass, its weight gradients count.
    """
    schedule, stages = spans.schedule, spans.stages
    ends = pipeline.own_starts[1:] - 1
    if schedule.num_chunks == 1:
        starts: Ints = np.where(stages == 0, spans.tasks, ends[stages])
        return starts
    waited_for = np.empty(len(spans.actions), np.int32)
    for stage in range(schedule.num_stages):
        actions = np.arange(*schedule.rank_starts[stage : stage + 2])
        backwards = actions[np.isin(schedule.kind[actions], _WEIGHT_GRADIENTS)]
        later = np.searchsorted(backwards, spans.actions[stages == stage]) + stage
        tasks = np.append(pipeline.last[backwards], ends[stage])
        waited_for[stages == stage] = tasks[np.minimum(later, len(backwards))]
    return waited_for


def spread(values: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Repeat each value by its count; also return the number of each repetition: 0, 1, 2, ..."""
    ends = np.cumsum(counts)
    number = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return np.repeat(values, counts), number
