"""The tasks of a pipeline: the actions of every stage, and the messages between them.

Each stage computes on one stream, and each pair of neighbours has a directed link. A blocking
exchange is a rendezvous: its messages start when both stages have reached it, and a stage continues
when all messages of its exchange are received and its host has synchronized. With overlap, a
message starts when its producer has ended, and only its consumer waits for it. If shapes are
exchanged before, a message starts when both stages have reached the exchange of its shape; its
consumer waits for it, and so do the next exchanges of both stages, which synchronize the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simtrain.engine.compiled import Ints
from simtrain.engine.program import starts_of
from simtrain.schedules import (
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
        blocks = exchanges_shapes or not overlaps
        slots = _slots_of(messages, overlaps=overlaps, exchanges_shapes=exchanges_shapes)
        by_consumer = _inverse(messages.consumer, len(num_parts))
        send, receive = slots.send, slots.receive
        # Tasks in each slot of each stage: an action, or an exchange and the gathers after it.
        num_slots = slots.starts[-1]
        num_sent, num_received = (
            np.bincount(slot, minlength=num_slots).astype(np.int32) for slot in (send, receive)
        )
        num_in_slot = num_sent + num_received
        is_exchange = (num_in_slot > 0) & blocks
        sizes = np.bincount(slots.action, num_parts, num_slots).astype(np.int32)
        sizes += is_exchange + num_received * gathers_on_receive
        bounds = len(messages) + starts_of(sizes)
        begins = bounds[:-1]

        second = np.flatnonzero(slots.action[1:] == slots.action[:-1]) + 1
        first = begins[slots.action]
        first[second] += num_parts[second - 1]
        last = first + num_parts - 1
        shares = num_parts == 0
        first[shares], last[shares] = first[:-1][shares[1:]], last[:-1][shares[1:]]
        receive_gathers = np.zeros(0, np.int32)
        if gathers_on_receive:
            receive_gathers = begins[receive] + (not overlaps)
            receive_gathers[by_consumer] += _places_in_groups(receive[by_consumer])
        exchanges = np.flatnonzero(is_exchange)
        number_of_exchange = np.cumsum(is_exchange) - 1

        # The receiver's next task waits for the message: synchronization, gather, or action.
        numbers = np.arange(len(messages), dtype=np.int32)
        needs = first[messages.consumer] if exchanges_shapes else begins[receive]
        waits = [(needs[by_consumer], numbers[by_consumer])]
        if not blocks:
            waits.append((numbers, last[messages.producer]))
        ends = (messages.sender, send, receive), (messages.receiver, receive, send)
        for stage, moment, other in ends if blocks else ():
            has_begun = begins[moment] > begins[slots.starts[stage]]
            waits.append((numbers[has_begun], begins[moment][has_begun] - 1))
            if exchanges_shapes:
                # Both ends wait for each other, but only their next exchanges for the message.
                waits.append((begins[other][has_begun], begins[moment][has_begun] - 1))
                following = np.searchsorted(exchanges, moment, side="right")
                later = np.append(exchanges, num_slots)[following]
                is_own = later < slots.starts[stage + 1]
                waits.append((begins[later[is_own]], numbers[is_own]))
        if not overlaps:
            waits.append((begins[send], numbers))
        waiting, awaited = map(np.concatenate, zip(*waits, strict=True))
        return cls(
            messages,
            np.ones(len(messages), np.int32) if overlaps else num_sent[send],
            bounds[slots.starts],
            first,
            last,
            begins[exchanges],
            num_in_slot[exchanges],
            number_of_exchange[send if blocks else send[:0]],
            number_of_exchange[receive if blocks else receive[:0]],
            receive_gathers,
            waiting,
            awaited,
        )

    @property
    def num_tasks(self) -> int:
        """Number of all tasks."""
        return int(self.own_starts[-1])


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
