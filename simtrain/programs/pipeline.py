"""The tasks of a pipeline: the actions of every stage, and the messages between them.

Each stage computes on one stream, and each pair of neighbours has a directed link. A blocking
exchange is a rendezvous: its messages start when both stages have reached it, and a stage continues
when all messages of its exchange are received and its host has synchronized. With overlap, a
message starts when its producer has ended, and only its consumer waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simtrain.engine.compiled import Ints
from simtrain.schedules import Messages, Schedule, asynchronous_slots, blocking_slots


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
    receive_gathers: Ints
    waiting: Ints
    awaited: Ints

    @classmethod
    def of(
        cls, schedule: Schedule, num_parts: Ints, *, overlaps: bool, gathers_on_receive: bool
    ) -> PipelineTasks:
        """Build the tasks of a schedule.

        Args:
            schedule: the actions of each stage.
            num_parts: [actions], number of tasks of each action.
            overlaps: messages are asynchronous.
            gathers_on_receive: receivers all-gather each message.

        Raises:
            InputError: messages block, and the schedule splits its backward passes (E421).
        """
        messages = Messages.of(schedule)
        slots = asynchronous_slots(messages) if overlaps else blocking_slots(messages)
        by_consumer = _inverse(messages.consumer, len(num_parts))
        send, receive = slots.send, slots.receive
        # Tasks in each slot of each stage: an action, or an exchange and the gathers after it.
        num_slots = slots.starts[-1]
        num_in_slot = np.bincount(np.concatenate([send, receive]), minlength=num_slots)
        sizes = np.bincount(slots.action, num_parts, num_slots).astype(np.int32)
        sizes += (num_in_slot > 0) * (not overlaps)
        sizes += np.bincount(receive, minlength=num_slots) * gathers_on_receive
        begins = (len(messages) + np.cumsum(sizes) - sizes).astype(np.int32)

        second = np.flatnonzero(slots.action[1:] == slots.action[:-1]) + 1
        first = begins[slots.action]
        first[second] += num_parts[second - 1]
        last = first + num_parts - 1
        receive_gathers = np.empty(len(messages) * gathers_on_receive, np.int32)
        if gathers_on_receive:
            at = receive[by_consumer]
            receive_gathers[by_consumer] = begins[at] + (not overlaps)
            receive_gathers[by_consumer[1:][at[1:] == at[:-1]]] += 1
        exchanges = np.flatnonzero(num_in_slot)[: 0 if overlaps else None]

        # The receiver's next task waits for the message: synchronization, gather, or action.
        numbers = np.arange(len(messages), dtype=np.int32)
        waits = [(begins[receive][by_consumer], numbers[by_consumer])]
        if overlaps:
            waits.append((numbers, last[messages.producer]))
        else:
            waits.append((begins[send], numbers))
            for stage, moment in ((messages.sender, send), (messages.receiver, receive)):
                has_begun = begins[moment] > begins[slots.starts[stage]]
                waits.append((numbers[has_begun], begins[moment][has_begun] - 1))
        waiting, awaited = map(np.concatenate, zip(*waits, strict=True))
        return cls(
            messages,
            np.ones(len(messages), np.int32) if overlaps else np.bincount(send)[send],
            np.append(begins, begins[-1] + sizes[-1])[slots.starts],
            first,
            last,
            begins[exchanges],
            num_in_slot[exchanges],
            receive_gathers,
            waiting,
            awaited,
        )

    @property
    def num_tasks(self) -> int:
        """Number of all tasks."""
        return int(self.own_starts[-1])


def stage_streams(num_stages: int) -> list[str]:
    """Return the names of the stages' compute streams."""
    return [f"stage {stage}" for stage in range(num_stages)]


def link_streams(num_stages: int, step: int) -> list[str]:
    """Return the names of the links on which each stage sends forward (step 1) or backward (-1).

    The wrap-around is a separate link, even between two stages: Megatron-LM gives it another
    communicator.
    """
    ends = [(stage, stage + step) for stage in range(num_stages)]
    return [
        f"{'link' if 0 <= end < num_stages else 'wrap'} {stage}->{end % num_stages}"
        for stage, end in ends
    ]


def _inverse(numbers: Ints, size: int) -> Ints:
    """Return the places of distinct numbers below `size`, in increasing order of the numbers."""
    places = np.full(size, -1, np.int32)
    places[numbers] = np.arange(len(numbers))
    found: Ints = places[places >= 0]
    return found
