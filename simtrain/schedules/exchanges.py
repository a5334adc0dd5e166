"""What ranks tell each other between their actions, as Megatron-LM of 2022 did it.

An exchange is one call of `p2p_communication._communicate`: it posts its sends and receives
together (`batch_isend_irecv`) and goes on only when all have ended. Which messages share a call
decides who waits for whom, so it is part of the schedule, not of the network.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from simtrain.errors import InputError, Problem
from simtrain.schedules.actions import KINDS, Action
from simtrain.schedules.orders import num_warmup_forwards
from simtrain.schedules.schedule import Ints, Schedule

_F, _, _, _W = range(len(KINDS))


class Message(NamedTuple):
    """The result of `producer`, on rank `sender`, on its way to `consumer` on rank `receiver`.

    The result of a forward is an activation, that of a B or I an input gradient.
    """

    producer: Action
    consumer: Action
    sender: int
    receiver: int

    def __str__(self) -> str:
        return f"{self.producer} to {self.consumer}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One batched point-to-point call of one rank; each message is in two ranks' exchanges."""

    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()


Step = Action | Exchange


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """All messages of a schedule, rank after rank in the order in which they are produced.

    Message i goes from the action at place `producer[i]` of the schedule to that at `consumer[i]`.
    """

    schedule: Schedule
    producer: Ints
    consumer: Ints

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        """The messages of a schedule.

        Neighbours that live on the same rank (num_stages = 1) send none. With Megatron's
        overlap_p2p_comm no action waits for a send and each waits only for the message that it
        needs, so the messages are all there is to know.
        """
        stage, is_forward = schedule.virtual_stage, schedule.kind == _F
        # The place of each action that consumes, by virtual stage, direction and microbatch; there
        # is none beyond either end.
        shape = schedule.num_virtual_stages + 2, 2, schedule.num_microbatches
        consumers = np.full(shape, -1, np.int32)
        places = np.flatnonzero(schedule.kind != _W)
        where = stage[places] + 1, is_forward[places].astype(int), schedule.microbatch[places]
        consumers[where] = places
        following = where[0] + np.where(is_forward[places], 1, -1)
        consumer = consumers[following, where[1], where[2]]
        travels = (consumer >= 0) & (schedule.num_stages > 1)
        return cls(schedule, places[travels].astype(np.int32), consumer[travels])

    def __len__(self) -> int:
        return len(self.producer)

    def __getitem__(self, number: int) -> Message:
        schedule, sender, receiver = self.schedule, self.sender[number], self.receiver[number]
        producer, consumer = self.producer[number], self.consumer[number]
        ends = schedule.action(int(producer)), schedule.action(int(consumer))
        return Message(*ends, int(sender), int(receiver))

    @property
    def sender(self) -> Ints:
        """The rank that sends each message."""
        return self.schedule.rank[self.producer]

    @property
    def receiver(self) -> Ints:
        """The rank that receives each message."""
        return self.schedule.rank[self.consumer]

    @property
    def goes_forward(self) -> Ints:
        """1 for each message that carries an activation, 0 for one that carries a gradient."""
        is_forward: Ints = (self.schedule.kind[self.producer] == _F).astype(np.int32)
        return is_forward


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The moments at which ranks act and talk, counted over all ranks, one rank after the other.

    Action i acts at moment `action[i]` of its rank, perhaps with another. Message j is sent in an
    exchange at moment `send[j]` of its sender, and received in one at moment `receive[j]` of its
    receiver. Rank r has the moments from `starts[r]` up to and without `starts[r + 1]`; many stay
    empty.
    """

    starts: Ints
    action: Ints
    send: Ints
    receive: Ints


def asynchronous_moments(messages: Messages) -> Moments:
    """Each action is received for at the moment before it, alone; nobody waits for a send."""
    schedule = messages.schedule
    place = np.arange(len(schedule.kind)) - schedule.rank_starts[schedule.rank]
    return _moments(messages, place, np.False_)


def blocking_moments(messages: Messages) -> Moments:
    """Actions and the blocking exchanges between them.

    Sources: Megatron-LM `forward_backward_pipelining_without_interleaving` (1f1b) and
    `forward_backward_pipelining_with_interleaving` without overlap_p2p_comm (interleaved).
    GPipe is 1F1B that never leaves its warm-up.

    In warm-up and cool-down of the first, an action receives, acts and sends, each a call of its
    own. Elsewhere one call after each block sends its results and receives what the next block
    needs; a block is an action, or in the steady phase of the interleaved schedule a pair.

    Raises:
        InputError: the schedule splits its backward passes (E421), which none of these does.
    """
    schedule = messages.schedule
    _check_full_backwards(schedule)
    sizes = schedule.num_stages, schedule.num_chunks, schedule.num_microbatches
    stages = range(schedule.num_stages)
    warmup = np.array([num_warmup_forwards(schedule.name, stage, *sizes) for stage in stages])
    warmup = warmup[schedule.rank]
    place = np.arange(len(schedule.kind)) - schedule.rank_starts[schedule.rank]
    cooldown = np.diff(schedule.rank_starts)[schedule.rank] - warmup
    if schedule.name == "interleaved":
        num_steady = np.clip(place, warmup, cooldown) - warmup
        return _moments(messages, place - (num_steady + 1) // 2, np.True_)
    return _moments(messages, place, (place >= warmup) & (place + 1 < cooldown))


def blocking_steps(schedule: Schedule) -> tuple[tuple[Step, ...], ...]:
    """For each rank, its actions and the blocking exchanges between them, to be read one by one.

    Raises:
        InputError: as `blocking_moments`.
    """
    messages = Messages.of(schedule)
    moments = blocking_moments(messages)
    sends, receives = defaultdict[int, list[Message]](list), defaultdict[int, list[Message]](list)
    for number in range(len(messages)):
        sends[int(moments.send[number])].append(messages[number])
    for number in np.argsort(messages.consumer).tolist():
        receives[int(moments.receive[number])].append(messages[number])
    steps: list[tuple[int, Step]] = [
        (moment, Exchange(tuple(sends[moment]), tuple(receives[moment])))
        for moment in {*sends, *receives}
    ]
    steps += [(int(moment), schedule.action(i)) for i, moment in enumerate(moments.action)]
    steps.sort(key=lambda step: step[0])
    ranks = [
        bisect_left(steps, start, key=lambda step: step[0]) for start in moments.starts.tolist()
    ]
    return tuple(
        tuple(step for _, step in steps[start:end]) for start, end in itertools.pairwise(ranks)
    )


def _moments(messages: Messages, block: Any, joins: Any) -> Moments:
    """Three moments a block: receive, act, send. Blocks are counted from each rank's first action.

    A block that joins the next sends when that receives.
    """
    schedule = messages.schedule
    # Room for one more block on each rank, which the last may join.
    starts = 3 * (schedule.rank_starts + np.arange(schedule.num_stages + 1, dtype=np.int32))
    receive = starts[schedule.rank] + 3 * block
    send = receive + np.where(joins, 3, 2)
    found = starts, receive + 1, send[messages.producer], receive[messages.consumer]
    return Moments(*(one.astype(np.int32) for one in found))


def _check_full_backwards(schedule: Schedule) -> None:
    split = np.flatnonzero(schedule.kind > KINDS.index("B"))
    if len(split):
        message = f"{schedule.action(split[0])} in a schedule with blocking exchanges"
        reason = "Megatron's blocking schedules know forwards (F) and full backwards (B)"
        fix = "write each I and W as one B, or overlap the pipeline's communication"
        raise InputError([Problem("E421", message, reason=reason, fix=fix)])
