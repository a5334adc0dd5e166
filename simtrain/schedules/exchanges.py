"""Point-to-point messages between pipeline ranks, as Megatron-LM of 2022 sends them.

An exchange is one call of `p2p_communication._communicate`: it posts its sends and receives
together (`batch_isend_irecv`) and returns when all of them have completed. Which messages share a
call decides which rank waits for which, so exchanges belong to the schedule, not to the network.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from simtrain.base.values import dataclass
from simtrain.schedules.actions import KINDS, Action
from simtrain.schedules.schedule import Ints, Schedule

_F, _, _, _W = range(len(KINDS))


class Message(NamedTuple):
    """The output of action `producer` on rank `sender`, sent to `consumer` on rank `receiver`.

    A forward action sends its activation; a B or I sends its input gradient.
    """

    producer: Action
    consumer: Action
    sender: int
    receiver: int

    def __str__(self) -> str:
        return f"{self.producer} to {self.consumer}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One batched point-to-point call of one rank; sender and receiver each list the message."""

    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()


Step = Action | Exchange


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """All messages of a schedule, ordered by sending rank, then by the producing action.

    Args:
        schedule: the schedule whose actions exchange the messages.
        producer: index in the schedule of the action that sends each message, shape [message].
        consumer: index of the action that needs it, shape [message].
    """

    schedule: Schedule
    producer: Ints
    consumer: Ints

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        """List the messages of a schedule.

        Neighbouring virtual stages on the same rank send nothing. With Megatron's
        overlap_p2p_comm, no action waits for a send and each action waits only for its own input,
        so this list is all that the program needs.
        """
        stage, is_forward = schedule.virtual_stage, schedule.kind == _F
        # The index of each consuming action, by virtual stage, direction and microbatch; -1 beyond
        # either end of the pipeline.
        shape = schedule.num_virtual_stages + 2, 2, schedule.num_microbatches
        consumers = np.full(shape, -1, np.int32)
        places = np.flatnonzero(schedule.kind != _W)
        where = stage[places] + 1, is_forward[places].astype(int), schedule.microbatch[places]
        consumers[where] = places
        following = where[0] + np.where(is_forward[places], 1, -1)
        consumer = consumers[following, where[1], where[2]]
        # The last comparison is without meaning where there is no consumer.
        travels = (consumer >= 0) & (schedule.rank[consumer] != schedule.rank[places])
        return cls(schedule, places[travels].astype(np.int32), consumer[travels])

    def __len__(self) -> int:
        return len(self.producer)

    def __getitem__(self, number: int) -> Message:
        schedule, rank = self.schedule, self.schedule.rank
        producer, consumer = int(self.producer[number]), int(self.consumer[number])
        ends = schedule.action(producer), schedule.action(consumer)
        return Message(*ends, int(rank[producer]), int(rank[consumer]))

    @property
    def sender(self) -> Ints:
        return self.schedule.rank[self.producer]

    @property
    def receiver(self) -> Ints:
        return self.schedule.rank[self.consumer]

    @property
    def boundary(self) -> Ints:
        boundary: Ints = self.schedule.virtual_stage[self.producer] - 1 + self.goes_forward
        return boundary

    @property
    def step(self) -> Ints:
        """1 for each message to the next rank of the ring, -1 for one to the previous rank."""
        steps = np.array(self.schedule.placement.steps, np.int32)[self.boundary]
        step: Ints = np.where(self.goes_forward, steps, -steps)
        return step

    @property
    def goes_forward(self) -> Ints:
        is_forward: Ints = (self.schedule.kind[self.producer] == _F).astype(np.int32)
        return is_forward


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeSlots:
    """Numbered slots in which each rank runs an action or an exchange, in order of execution.

    Slots are numbered over all ranks, one rank after the other; many stay empty.

    Args:
        starts: first slot of each rank, shape [rank + 1]; rank r owns `starts[r]:starts[r + 1]`.
        action: slot of each action, shape [action].
        send: slot of the sender's exchange with each message, shape [message].
        receive: slot of the receiver's exchange with each message, shape [message].
    """

    starts: Ints
    action: Ints
    send: Ints
    receive: Ints


def asynchronous_slots(messages: Messages) -> ExchangeSlots:
    """Slots with overlapped transfers: each action is preceded by a receive of its own input.

    Merged actions are one block, which both of their inputs precede.
    """
    return slots_of_blocks(messages, messages.schedule.cell, np.False_)


def slots_of_blocks(messages: Messages, block: Any, joins: Any) -> ExchangeSlots:
    """Give each block three slots: receive, act, send.

    Args:
        messages: the schedule's messages.
        block: the block of each action, counted from its rank's first, shape [action].
        joins: whether an action's outputs are sent in the exchange that receives the next block's
            inputs, shape [action] or a scalar.
    """
    schedule = messages.schedule
    # One extra block per rank, because the last block may join the next.
    starts = 3 * (schedule.rank_starts + np.arange(schedule.num_stages + 1, dtype=np.int32))
    receive = starts[schedule.rank] + 3 * block
    send = receive + np.where(joins, 3, 2)
    slots = starts, receive + 1, send[messages.producer], receive[messages.consumer]
    return ExchangeSlots(*(numbers.astype(np.int32) for numbers in slots))


# ------------------------------------------------------------------------------
# A schedule as a grid of time slots, as papers draw it.


def time_slots(schedule: Schedule) -> Ints:
    """The slot of each action if every action takes one slot and messages take none, [action].

    An action runs in the first slot after the action before it on its rank and after the action
    whose message it needs. Merged actions share a slot. Actions of a deadlock have slot -1.
    """
    messages = Messages.of(schedule)
    awaited = np.full(len(schedule.kind), -1)
    awaited[messages.consumer] = messages.producer
    needed: list[int] = awaited.tolist()
    slots = [-1] * len(schedule.kind)
    following, ends = schedule.rank_starts[:-1].tolist(), schedule.rank_starts[1:].tolist()
    merges = (np.zeros_like(slots) if schedule.merges is None else schedule.merges).tolist()
    ranks, now = range(schedule.num_stages), 0

    def is_ready(action: int) -> bool:
        return needed[action] < 0 or slots[needed[action]] >= 0

    while ready := [
        (rank, following[rank] + 1 + merges[following[rank]])
        for rank in ranks
        if following[rank] < ends[rank]
        and is_ready(following[rank])
        and (not merges[following[rank]] or is_ready(following[rank] + 1))
    ]:
        for rank, end in ready:
            slots[following[rank] : end] = [now] * (end - following[rank])
            following[rank] = end
        now += 1
    return np.array(slots, np.int32)
