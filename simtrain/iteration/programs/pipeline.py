"""The tasks of a pipeline: the actions of every stage, and the messages between them.

Each stage computes on one stream, and each pair of neighbours has a directed link. A blocking
exchange is a rendezvous: its messages start when both stages have reached it, and a stage continues
when all messages of its exchange are received and its host has synchronized. With overlap, a
message starts when its producer has ended, and only its consumer waits for it. If shapes are
exchanged before, a message starts when both stages have reached the exchange of its shape; its
consumer waits for it, and so do the next exchanges of both stages, which synchronize the device.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True, eq=False)
class PipelineTasks:
    """The tasks of a pipeline: one per message, then the tasks of each stage in order.

    Args:
        messages: message i is task i.
        num_sends: [messages], number of messages that the sender sends in the same exchange.
        own_starts: [stages + 1], first task of each stage.
        first, last: [actions], first and last task of each action; an action may have several.
        synchronizing: [exchanges], tasks in which a host synchronizes with an exchange.
        num_messages: [exchanges], messages of each of these exchanges.
        sent_in, received_in: [messages], the exchange of the sender, and of the receiver; empty
            without exchanges.
        receive_gathers: [messages], all-gathers of messages on their receivers; empty without.
        waiting, awaited: task `waiting[i]` waits for task `awaited[i]`.
    """

    messages: Messages
    num_sends: Ints
    own_starts: Ints
    first: Ints
    last: Ints
    synchronizing: Ints
    num_messages: Ints
    sent_in: Ints
    received_in: Ints
    receive_gathers: Ints
    waiting: Ints
    awaited: Ints

    # More than 60 lines: one array after the other, of which each needs those before.
    @classmethod
    def of(
        cls,
        schedule: Schedule,
        num_parts: Ints,
        *,
        overlaps: bool,
        gathers_on_receive: bool,
        exchanges_shapes: bool = False,
    ) -> PipelineTasks:
        """Build the tasks of a schedule.

        Args:
            schedule: the actions of each stage.
            num_parts: [actions], number of tasks of each action; 0 for an action that is merged
                with the one before it, whose task it shares.
            overlaps: messages are asynchronous.
            gathers_on_receive: receivers all-gather each message.
            exchanges_shapes: asynchronous messages follow a blocking exchange of their shapes.
        """
        messages = Messages.of(schedule)
        slots = _slots_of(messages, overlaps=overlaps, exchanges_shapes=exchanges_shapes)
        synchronizes = exchanges_shapes or not overlaps
        tasks = _SlotTasks.of(
            messages,
            slots,
            num_parts,
            synchronizes=synchronizes,
            gathers_on_receive=gathers_on_receive,
        )
        first, last = tasks.of_actions(num_parts)
        begins, send, receive = tasks.begins, slots.send, slots.receive
        by_consumer = _inverse(messages.consumer, len(num_parts))
        receive_gathers = np.zeros(0, np.int32)
        if gathers_on_receive:
            receive_gathers = begins[receive] + (not overlaps)
            receive_gathers[by_consumer] += _places_in_groups(receive[by_consumer])

        # The receiver's next task waits for the message: synchronization, gather, or action.
        numbers = np.arange(len(messages), dtype=np.int32)
        needs = first[messages.consumer] if exchanges_shapes else begins[receive]
        waits = [(needs[by_consumer], numbers[by_consumer])]
        if synchronizes:
            waits += tasks.rendezvous(of_shapes=exchanges_shapes)
        else:
            waits.append((numbers, last[messages.producer]))
        if not overlaps:
            # The sender synchronizes too.
            waits.append((begins[send], numbers))
        waiting, awaited = map(np.concatenate, zip(*waits, strict=True))
        exchanges, number_of_exchange = tasks.exchanges, np.cumsum(tasks.is_exchange) - 1
        in_exchanges = slice(None if synchronizes else 0)
        return cls(
            messages,
            np.ones(len(messages), np.int32) if overlaps else tasks.num_sent[send],
            begins[slots.starts],
            first,
            last,
            begins[exchanges],
            (tasks.num_sent + tasks.num_received)[exchanges],
            number_of_exchange[send[in_exchanges]],
            number_of_exchange[receive[in_exchanges]],
            receive_gathers,
            waiting,
            awaited,
        )

    @property
    def num_tasks(self) -> int:
        return int(self.own_starts[-1])


@dataclass(frozen=True, slots=True, eq=False)
class _SlotTasks:
    """The tasks in each slot of each stage: an action, or an exchange and the gathers after it.

    Args:
        messages, slots: of the schedule.
        synchronizes: hosts synchronize with exchanges, of messages or of their shapes.
        num_sent, num_received: [slots], messages that the stage sends and receives in a slot.
        begins: [slots + 1], first task of each slot, and last the number of all tasks.
    """

    messages: Messages
    slots: ExchangeSlots
    synchronizes: bool
    num_sent: Ints
    num_received: Ints
    begins: Ints

    @classmethod
    def of(
        cls,
        messages: Messages,
        slots: ExchangeSlots,
        num_parts: Ints,
        *,
        synchronizes: bool,
        gathers_on_receive: bool,
    ) -> _SlotTasks:
        num_slots = slots.starts[-1]
        num_sent, num_received = (
            np.bincount(slot, minlength=num_slots).astype(np.int32)
            for slot in (slots.send, slots.receive)
        )
        sizes = np.bincount(slots.action, num_parts, num_slots).astype(np.int32)
        if synchronizes:
            sizes += num_sent + num_received > 0
        sizes += num_received * gathers_on_receive
        begins = len(messages) + starts_of(sizes)
        return cls(messages, slots, synchronizes, num_sent, num_received, begins)

    @property
    def is_exchange(self) -> NDArray[np.bool_]:
        """[slots], whether a host synchronizes in the slot, which is its first task."""
        return (self.num_sent + self.num_received > 0) & self.synchronizes

    @property
    def exchanges(self) -> Ints:
        return np.flatnonzero(self.is_exchange)

    def of_actions(self, num_parts: Ints) -> tuple[Ints, Ints]:
        action = self.slots.action
        first = self.begins[action]
        # Two actions can share a slot: the tasks of the second follow those of the first.
        second = np.flatnonzero(action[1:] == action[:-1]) + 1
        first[second] += num_parts[second - 1]
        last = first + num_parts - 1
        # A merged action has no tasks: it shares those of the action before it.
        merged = num_parts == 0
        first[merged], last[merged] = first[:-1][merged[1:]], last[:-1][merged[1:]]
        return first, last

    def rendezvous(self, *, of_shapes: bool) -> list[tuple[Ints, Ints]]:
        """Return the waits of exchanges for both of their ends: waiting and awaited tasks.

        A message starts when both stages have ended the task before their exchange. `of_shapes`
        says that the exchange is one of shapes, after which the message itself is asynchronous.
        """
        messages, send, receive = self.messages, self.slots.send, self.slots.receive
        begins, starts = self.begins, self.slots.starts
        numbers = np.arange(len(messages), dtype=np.int32)
        waits = []
        ends = (messages.sender, send, receive), (messages.receiver, receive, send)
        for stage, slot, other in ends:
            # An exchange that is the first task of its stage has nothing to wait for.
            follows = begins[slot] > begins[starts[stage]]
            before = begins[slot][follows] - 1
            waits.append((numbers[follows], before))
            if of_shapes:
                # Both ends wait for each other, but only their next exchanges for the message.
                waits.append((begins[other][follows], before))
                following = np.searchsorted(self.exchanges, slot, side="right")
                later = np.append(self.exchanges, starts[-1])[following]
                is_own = later < starts[stage + 1]
                waits.append((begins[later[is_own]], numbers[is_own]))
        return waits


def _slots_of(messages: Messages, *, overlaps: bool, exchanges_shapes: bool) -> ExchangeSlots:
    if not overlaps:
        return blocking_slots(messages)
    return shape_slots(messages) if exchanges_shapes else asynchronous_slots(messages)


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
    is_of_first = np.isin(pipeline.waiting, first)
    places = np.searchsorted(first[by_task], pipeline.waiting[is_of_first])
    # The second follows the first on its stream. The third starts when the first span has ended.
    later = spans.numbers >= 2
    return [
        (of_first[has_before], first[has_before] - 1),
        (of_first[by_task][places], pipeline.awaited[is_of_first]),
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
