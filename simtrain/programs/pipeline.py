"""From a pipeline schedule and the seconds of its parts to a program for the engine.

Every rank computes on one stream; every neighbour has a directed link to the next. A blocking
exchange is a rendezvous: its messages start when both ranks have got to it, and a rank goes on
when all messages of its exchange have arrived. With overlap a message leaves when its producer
has ended, and only its consumer waits for it.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simtrain.engine import Duration, ProgramBuilder
from simtrain.schedules import (
    Action,
    Exchange,
    Message,
    Schedule,
    Step,
    asynchronous_messages,
    blocking_steps,
)

_KINDS = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}


@dataclass(frozen=True, slots=True)
class PipelineCosts:
    """How long the parts of a pipeline last: in seconds, or as slots.

    `action(action)` is the compute of one action. `transfer(message, num_concurrent_sends)` is one
    message, where the sender has that many sends (itself included) in the same exchange to share
    its network adapter. `arrival(message)` is what the receiver's compute stream has to do before
    it can use the message (the all-gather of a scattered tensor); None for nothing.
    `synchronize(num_messages)` is the host's work for a blocking exchange of so many messages,
    while the device waits; None for nothing.
    `parts(action)` are the consecutive parts of an action that others wait for one by one (the
    layers of a backward pass whose gradients are reduced as they come); None for whole.
    """

    action: Callable[[Action], Duration]
    transfer: Callable[[Message, int], Duration]
    arrival: Callable[[Message], Duration] | None = None
    synchronize: Callable[[int], Duration] | None = None
    parts: Callable[[Action], tuple[Duration, ...] | None] = lambda action: None


@dataclass(frozen=True, slots=True)
class PipelineTasks:
    """Task indices of a pipeline within its program.

    `last[rank]` are the tasks after which the rank is done with the pipeline: with blocking
    exchanges its last send is one of them. `parts` are the tasks of the actions that were cut;
    in `actions` these stand with their last part.
    """

    actions: Mapping[Action, int]
    transfers: Mapping[Message, int]
    last: tuple[tuple[int, ...], ...]
    parts: Mapping[Action, tuple[int, ...]]


def add_pipeline(
    builder: ProgramBuilder, schedule: Schedule, costs: PipelineCosts, overlap: bool
) -> PipelineTasks:
    """Add the tasks of a pipeline to a program, with overlapped or blocking communication.

    Streams are `stage 3`, `link 3->4` and, between the last and the first rank, `wrap 7->0`.
    Kinds are "forward", "backward", "transfer", "arrival" and "synchronize".
    Raises InputError (E421) for blocking communication of a schedule that splits its backward.
    """
    pipeline = _Pipeline(builder, costs)
    if overlap:
        return pipeline.add_overlapped(schedule)
    return pipeline.add_blocking(blocking_steps(schedule))


@functools.cache
def stage_stream(rank: int) -> str:
    """Return the name of the stream on which a rank computes."""
    return f"stage {rank}"


def link_stream(message: Message) -> str:
    """Return the name of the directed link that a message takes.

    The wrap-around is a link of its own also between two stages, where both directions of the
    pipeline join the same two ranks: Megatron gives one of them another communicator.
    """
    return _link_stream(message.wraps_around, message.sender, message.receiver)


@functools.cache
def _link_stream(wraps_around: bool, sender: int, receiver: int) -> str:
    return f"{'wrap' if wraps_around else 'link'} {sender}->{receiver}"


class _Arrival(NamedTuple):
    """The name of what a message's receiver does."""

    message: Message

    def __str__(self) -> str:
        return f"{self.message} arrives"


class _Pipeline:
    """The tasks added so far."""

    def __init__(self, builder: ProgramBuilder, costs: PipelineCosts) -> None:
        self.builder = builder
        self.costs = costs
        self.actions: dict[Action, int] = {}
        self.transfers: dict[Message, int] = {}
        self.parts: dict[Action, tuple[int, ...]] = {}

    def add_blocking(self, ranks: tuple[tuple[Step, ...], ...]) -> PipelineTasks:
        # A link serves its messages in the order of the sender; all have to exist before any
        # rank can wait for what others send.
        for steps in ranks:
            for step in steps:
                if isinstance(step, Exchange):
                    for message in step.sends:
                        self.add_transfer(message, len(step.sends))
        last = tuple(self.add_blocking_rank(rank, steps) for rank, steps in enumerate(ranks))
        return PipelineTasks(self.actions, self.transfers, last, self.parts)

    def add_blocking_rank(self, rank: int, steps: tuple[Step, ...]) -> tuple[int, ...]:
        # `gate` is what must have ended before the rank gets to its next step.
        gate: tuple[int, ...] = ()
        for step in steps:
            if isinstance(step, Action):
                gate = self.add_action(rank, step, gate)
            else:
                gate = self.join(rank, step, gate)
        return gate

    def join(self, rank: int, exchange: Exchange, gate: tuple[int, ...]) -> tuple[int, ...]:
        """Let the exchange wait for the rank; return what the rank then waits for."""
        messages = (*exchange.sends, *exchange.receives)
        transfers = tuple(self.transfers[message] for message in messages)
        for transfer in transfers:
            self.builder.wait(transfer, gate)
        gate = transfers
        if self.costs.synchronize is not None:
            duration = self.costs.synchronize(len(messages))
            stream = stage_stream(rank)
            gate = (self.builder.add("synchronize", stream, duration, gate, kind="synchronize"),)
        for message in exchange.receives:
            gate = self.add_arrival(rank, message, gate)
        return gate

    def add_overlapped(self, schedule: Schedule) -> PipelineTasks:
        messages = asynchronous_messages(schedule)
        for message in messages:
            self.add_transfer(message, num_concurrent_sends=1)
        needed = {message.consumer: message for message in messages}
        last: list[tuple[int, ...]] = []
        for rank, actions in enumerate(schedule.ranks):
            gate: tuple[int, ...] = ()
            for action in actions:
                received = self.add_receive(rank, needed[action]) if action in needed else ()
                gate = self.add_action(rank, action, received)
            last.append(gate)
        for message, transfer in self.transfers.items():
            self.builder.wait(transfer, (self.actions[message.producer],))
        return PipelineTasks(self.actions, self.transfers, tuple(last), self.parts)

    def add_receive(self, rank: int, message: Message) -> tuple[int, ...]:
        return self.add_arrival(rank, message, (self.transfers[message],))

    def add_action(self, rank: int, action: Action, gate: tuple[int, ...]) -> tuple[int, ...]:
        name, stream, kind = action, stage_stream(rank), _KINDS[action.kind]
        if (parts := self.costs.parts(action)) is not None:
            tasks = tuple(self.builder.add(name, stream, part, gate, kind) for part in parts)
            self.parts[action] = tasks
            task = tasks[-1]
        else:
            task = self.builder.add(name, stream, self.costs.action(action), gate, kind)
        self.actions[action] = task
        return (task,)

    def add_transfer(self, message: Message, num_concurrent_sends: int) -> None:
        duration = self.costs.transfer(message, num_concurrent_sends)
        self.transfers[message] = self.builder.add(
            message, link_stream(message), duration, kind="transfer"
        )

    def add_arrival(self, rank: int, message: Message, gate: tuple[int, ...]) -> tuple[int, ...]:
        if self.costs.arrival is None:
            return gate
        duration = self.costs.arrival(message)
        arrival = _Arrival(message)
        return (self.builder.add(arrival, stage_stream(rank), duration, gate, kind="arrival"),)
