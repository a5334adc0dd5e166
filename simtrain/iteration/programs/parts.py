"""The parts of an iteration, and the structure that decides which tasks it has.

An iteration has many tasks and few different parts; tasks of one part take equal time. Scenarios
that differ only in sizes, links or hardware share a structure.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from simtrain.durations.model import DurationModel
from simtrain.iteration.offload import OffloadLayout, offload_layout
from simtrain.iteration.pass_order import PassOrder
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.sync_skips import SyncSkipRule, sync_skip_rule
from simtrain.workload.host_update import UPDATE_KINDS, UpdateKind, update_op
from simtrain.workload.model_chunks import number_distinct
from simtrain.workload.passes import PassKind

_SHAPE_BYTES = 24
"""A shape is three integers of 64 bits (`_communicate_shapes` in p2p_communication.py)."""


@dataclass(frozen=True, slots=True)
class PassPart:
    """A pass of one microbatch on a chunk, or its layers of one bucket.

    Args:
        chunk: number of the chunk among the different ones.
        kind: F, B, I, W; R: the reduction of the chunk's gradients after all passes; or D: its
            deferred weight gradients.
        saves_all: it recomputes nothing.
        part: the slice of the sequences that it runs.
        skips_sync: it skips communication with other replicas (`programs.sync_skips`).
        defers: it leaves out the weight gradient of the output layer.
        turn: which of the variants that differ by what has run before (`Plan.passes_in_turn`).
        span: number of the bucket, in the order in which the last backward pass or the first
            forward pass runs the buckets; None for the whole pass.
        by_layer: the spans are layers, which are copied to the host, instead of buckets.
        beside: the backward pass that runs merged with this forward pass; None for none.
    """

    chunk: int
    kind: PassKind
    saves_all: bool
    part: int = 0
    skips_sync: bool = False
    defers: bool = False
    span: int | None = None
    by_layer: bool = False
    beside: PassPart | None = None
    turn: int = 0


@dataclass(frozen=True, slots=True)
class TransferPart:
    """A message between two stages.

    Args:
        num_sends: messages that the sender sends at the same time.
        levels_crossed: network levels that the message leaves; 0 inside a node.
        num_states: hidden states in the message, or their gradients; 0 for a norm, whose few bytes
            take no time beside the latency.
        follows_shape: an earlier message says its shape.
        part: the slice of the sequences, or which of the plan's sizes the message has.
    """

    num_sends: int
    levels_crossed: int
    num_states: int = 1
    follows_shape: bool = False
    part: int = 0

    def seconds(self, model: DurationModel, state_bytes: Sequence[float]) -> float:
        """Return the time of the message and of its shape.

        `state_bytes` are [slices], the bytes of a hidden state of each slice.
        """
        ends = self.levels_crossed, self.num_sends
        message_s = model.transfer_s(self.num_states * state_bytes[self.part], *ends)
        return message_s + (model.transfer_s(_SHAPE_BYTES, *ends) if self.follows_shape else 0.0)


@dataclass(frozen=True, slots=True)
class ReceiveGatherPart:
    """The all-gather of a scattered message of `num_states` hidden states, on the receiver.

    `part` is the slice of the sequences.
    """

    num_states: int = 1
    part: int = 0


@dataclass(frozen=True, slots=True)
class SynchronizationPart:
    """The host's work for an exchange of `num_messages` messages.

    If it waits for shapes, but not for the messages after them, `shape_levels` are the network
    levels that the farthest shape leaves.
    """

    num_messages: int
    shape_levels: int | None = None

    def seconds(self, model: DurationModel, post_s: float) -> float:
        """Return the time, given that of posting a message."""
        posts_s = self.num_messages * post_s
        if self.shape_levels is None:
            return posts_s
        return posts_s + model.transfer_s(_SHAPE_BYTES, self.shape_levels)


@dataclass(frozen=True, slots=True)
class BucketPart:
    """The reduction of a bucket's gradients, or the gather of its parameters.

    Args:
        chunk: number of the chunk among the different ones.
        number: of the bucket, in the order of the backward pass.
        step: number of the stage's optimizer step among the different ones.
        is_last: it is the last bucket of its stage in that order.
        gathers: the gather instead of the reduction.
    """

    chunk: int
    number: int
    step: int
    is_last: bool
    gathers: bool = False


@dataclass(frozen=True, slots=True)
class OffloadPart:
    """A copy of a unit of saved activations (`iteration.offload`) to the host, or back.

    Args:
        chunk: number of the chunk among the different ones.
        saves_all: the passes of its microbatch recompute nothing.
        unit: number of the unit in the chunk.
        to_host: to the host instead of back.
    """

    chunk: int
    saves_all: bool
    unit: int
    to_host: bool


@dataclass(frozen=True, slots=True)
class OptimizerPart:
    """A field of a stage's optimizer step.

    Args:
        name: of the field, one of `workload.optimizer.STEP_FIELDS`.
        step: number of the optimizer step among the different ones; None for an all-reduce over
            several stages.
    """

    name: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class HostUpdatePart:
    """Work of an update of the host that has streams of its own, on one group of parameters.

    Args:
        kind: Adam, or what NVMe reads or writes.
        step: number of the stage's optimizer step among the different ones.
        size: parameters of the group.
    """

    kind: UpdateKind
    step: int
    size: int


IterationPart: TypeAlias = (
    PassPart
    | TransferPart
    | ReceiveGatherPart
    | SynchronizationPart
    | BucketPart
    | OffloadPart
    | OptimizerPart
    | HostUpdatePart
)


@dataclass(frozen=True, slots=True)
class IterationStructure:
    """Everything that decides which tasks an iteration has.

    Args:
        pass_order: the order of each stage's actions, and their passes.
        steps: [stages], the number of each stage's optimizer step among the different ones.
        step_fields: for each different step, its fields (`workload.optimizer.STEP_FIELDS`).
        levels_crossed: [stages], network levels that a message from each stage to the next one
            leaves (from the last stage to the first); 0 inside a node.
        sent_states: [virtual stages], hidden states that each one sends to the next one.
        exchanges_shapes: each message is preceded by one that says its shape.
        overlap: transfers between stages are asynchronous.
        gathers_on_receive: a receiver all-gathers each message.
        num_buckets: [virtual stages], gradient buckets that overlap the last backward pass; None
            without this overlap.
        gathers: parameters are gathered in the same buckets and overlap the first forward passes.
        aligns_reduction, aligns_gather: all stages start their buckets at about the same time.
        sync_skips: which passes skip communication with other replicas.
        reduces_after: gradients are reduced after all passes, chunk by chunk.
        flushes: all passes end before the optimizer step. Otherwise iterations run into each other,
            and each stage has a gradient norm of its own.
        most_gathered: chunks whose parameters a stage holds at a time, if it gathers whole chunks
            ahead and reduces each after its last backward pass; None without.
        num_deferred: microbatches whose weight gradients of the output layer run after all passes.
        validates_after: a stage's optimizer waits for the norm of the stages before it instead of
            all stages.
        offload: which activations are copied to the host; None for none.
        update_sizes: for each different step, the groups of an update of the host that has streams
            of its own; empty without one.
        update_kinds: what this update does with each group.
        delays_update: this update is of the gradients of the iteration before.
        has_turns: backward passes add their gradients to a sum on the host, in turns.
    """

    pass_order: PassOrder
    steps: tuple[int, ...]
    step_fields: tuple[frozenset[str], ...]
    levels_crossed: tuple[int, ...]
    sent_states: tuple[int, ...]
    exchanges_shapes: bool
    overlap: bool
    gathers_on_receive: bool
    num_buckets: tuple[int, ...] | None
    gathers: bool
    aligns_reduction: bool
    aligns_gather: bool
    sync_skips: SyncSkipRule
    reduces_after: bool
    num_deferred: int
    validates_after: bool
    offload: OffloadLayout | None = None
    flushes: bool = True
    most_gathered: int | None = None
    update_sizes: tuple[tuple[int, ...], ...] = ()
    update_kinds: tuple[UpdateKind, ...] = ()
    delays_update: bool = False
    has_turns: bool = False

    def transfer(
        self, num_sends: int, levels_crossed: int, num_states: int, part: int = 0
    ) -> TransferPart:
        """Return the part of a message."""
        return TransferPart(num_sends, levels_crossed, num_states, self.exchanges_shapes, part)

    def synchronization(self, num_messages: int, levels_crossed: int) -> SynchronizationPart:
        """Return the part of the host's work for an exchange."""
        levels = levels_crossed if self.exchanges_shapes and self.overlap else None
        return SynchronizationPart((1 + self.exchanges_shapes) * num_messages, levels)


def structure_of(plan: Plan) -> IterationStructure:
    """Return the structure of a plan."""
    mesh, scenario, last = plan.mesh, plan.scenario, plan.mesh.pp - 1
    neighbours = [(stage, stage + 1) for stage in range(last)] + [(last, 0)]
    num_buckets = None
    if plan.has_buckets:
        num_buckets = tuple(
            len(plan.buckets[number].parameters) for number in plan.model_chunks.numbers
        )
    return IterationStructure(
        plan.pass_order,
        steps=number_distinct(plan.stage_parameters),
        step_fields=tuple(map(frozenset, plan.steps)),
        levels_crossed=tuple(itertools.starmap(mesh.levels_crossed, neighbours)),
        sent_states=plan.order.placement.copies * plan.contents.sent_states,
        exchanges_shapes=plan.contents.separates_loss,
        overlap=scenario.overlaps_pipeline,
        gathers_on_receive=bool(plan.receive_gathers),
        num_buckets=num_buckets,
        gathers=plan.step_options.gathers_during_forward,
        aligns_reduction=plan.has_buckets and scenario.aligns_gradient_reduction,
        aligns_gather=scenario.aligns_parameter_gather,
        sync_skips=sync_skip_rule(plan),
        reduces_after=bool(plan.reductions),
        num_deferred=plan.num_deferred,
        validates_after=scenario.overlap.optimizer_post_validation,
        offload=offload_layout(plan),
        flushes=plan.flushes,
        most_gathered=plan.most_gathered,
        update_sizes=plan.update_sizes if plan.step_options.updates_beside else (),
        update_kinds=tuple(
            kind for kind in UPDATE_KINDS if update_op(plan.step_options, kind, size=1)
        )
        if plan.step_options.updates_beside
        else (),
        delays_update=scenario.memory.delayed_update,
        has_turns=plan.has_turns,
    )
