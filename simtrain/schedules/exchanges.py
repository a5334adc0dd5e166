"""What ranks tell each other between their actions, as Megatron-LM of 2022 did it.

An exchange is one call of `p2p_communication._communicate`: it posts its sends and receives
together (`batch_isend_irecv`) and goes on only when all have ended. Which messages share a call
decides who waits for whom, so it is part of the schedule, not of the network.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self, assert_never

from simtrain.errors import InputError, Problem
from simtrain.schedules.actions import Action
from simtrain.schedules.orders import num_warmup_forwards
from simtrain.schedules.schedule import Schedule


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

    @property
    def is_activation(self) -> bool:
        """True for the output of a forward, False for an input gradient."""
        return self.producer.kind == "F"

    @property
    def wraps_around(self) -> bool:
        """True between the last and the first rank, where one chunk hands over to the next."""
        step = 1 if self.is_activation else -1
        return self.receiver != self.sender + step


@dataclass(frozen=True, slots=True)
class Exchange:
    """One batched point-to-point call of one rank; each message is in two ranks' exchanges."""

    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()


Step = Action | Exchange


def asynchronous_messages(schedule: Schedule) -> tuple[Message, ...]:
    """All messages of a schedule, rank after rank in the order in which they are produced.

    With Megatron's overlap_p2p_comm no action waits for a send and each waits only for the
    message that it needs, so the messages are all there is to know. Neighbours that live on the
    same rank (num_stages = 1) send none.
    """
    return tuple(_messages(schedule)) if schedule.num_stages > 1 else ()


def _messages(schedule: Schedule) -> Iterator[Message]:
    consumers = {
        (action.virtual_stage, action.kind == "F", action.microbatch): action
        for actions in schedule.ranks
        for action in actions
        if action.kind != "W"
    }
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.kind == "W":
                continue
            forward = action.kind == "F"
            stage = action.virtual_stage + (1 if forward else -1)
            consumer = consumers.get((stage, forward, action.microbatch))
            if consumer is not None:
                yield Message(action, consumer, rank, schedule.rank_of(stage))


def blocking_steps(schedule: Schedule) -> tuple[tuple[Step, ...], ...]:
    """For each rank, its actions and the blocking exchanges between them.

    Sources: Megatron-LM `forward_backward_pipelining_without_interleaving` (1f1b) and
    `forward_backward_pipelining_with_interleaving` without overlap_p2p_comm (interleaved).
    GPipe is 1F1B that never leaves its warm-up. Exchanges with nothing in them are left out.
    Raises InputError (E421) for a schedule that splits its backward, which none of these does.
    """
    _check_full_backwards(schedule)
    traffic = _Traffic.of(schedule)
    return tuple(
        tuple(step for step in _rank_steps(schedule, rank, traffic) if step != Exchange())
        for rank in range(schedule.num_stages)
    )


@dataclass(frozen=True, slots=True)
class _Traffic:
    """The messages of a schedule, looked up by either end."""

    by_producer: dict[Action, Message]
    by_consumer: dict[Action, Message]

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        messages = asynchronous_messages(schedule)
        return cls(
            {message.producer: message for message in messages},
            {message.consumer: message for message in messages},
        )


def _check_full_backwards(schedule: Schedule) -> None:
    split = next((a for rank in schedule.ranks for a in rank if a.kind in ("I", "W")), None)
    if split is not None:
        raise InputError(
            [
                Problem(
                    code="E421",
                    message=f"{split} in a schedule with blocking exchanges",
                    reason="Megatron's blocking schedules know forwards (F) and full backwards (B)",
                    fix="write each I and W as one B, or overlap the pipeline's communication",
                )
            ]
        )


def _rank_steps(schedule: Schedule, rank: int, traffic: _Traffic) -> Iterator[Step]:
    actions = schedule.ranks[rank]
    num_warmup = num_warmup_forwards(
        schedule.name, rank, schedule.num_stages, schedule.num_chunks, schedule.num_microbatches
    )
    warmup = [(action,) for action in actions[:num_warmup]]
    steady = actions[num_warmup : len(actions) - num_warmup]
    cooldown = [(action,) for action in actions[len(actions) - num_warmup :]]
    match schedule.name:
        case "gpipe" | "1f1b":
            yield from _separate(warmup, traffic)
            yield from _fused([(action,) for action in steady], traffic)
            yield from _separate(cooldown, traffic)
        case "interleaved":
            pairs = list(zip(steady[::2], steady[1::2], strict=True))
            yield from _fused([*warmup, *pairs, *cooldown], traffic)
        case _:
            assert_never(schedule.name)


_Block = tuple[Action, ...]


def _separate(blocks: Iterable[_Block], traffic: _Traffic) -> Iterator[Step]:
    """Receive, act, send: each a call of its own."""
    for block in blocks:
        yield _exchange(traffic, receive_for=block)
        yield from block
        yield _exchange(traffic, send_from=block)


def _fused(blocks: Sequence[_Block], traffic: _Traffic) -> Iterator[Step]:
    """After each block one call sends its results and receives what the next block needs."""
    for block, following in pairwise([(), *blocks, ()]):
        yield from block
        yield _exchange(traffic, send_from=block, receive_for=following)


def _exchange(traffic: _Traffic, send_from: _Block = (), receive_for: _Block = ()) -> Exchange:
    outgoing, incoming = traffic.by_producer, traffic.by_consumer
    return Exchange(
        sends=tuple(outgoing[action] for action in send_from if action in outgoing),
        receives=tuple(incoming[action] for action in receive_for if action in incoming),
    )
