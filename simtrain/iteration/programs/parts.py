"""The parts of an iteration, and the structure that decides which tasks it has.

An iteration has many tasks and few different parts; tasks of one part take equal time. Scenarios
that differ only in sizes, links or hardware share a structure.
"""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simtrain.base.mesh import Mesh
from simtrain.base.values import dataclass
from simtrain.durations.model import DurationModel
from simtrain.iteration.plan import PassOrder, PassVariant, Plan
from simtrain.schedules import KINDS, Schedule
from simtrain.workload.model_ends import number_distinct

# Passes of ZeRO stages 2 and 3 that skip communication with other replicas.
#
# Without a pipeline, only the last microbatch's backward pass may reduce gradients. In a pipeline
# with PyTorch's fully_shard, a pass needs no gather if an earlier pass of its chunk has left the
# parameters unsharded: torch/distributed/pipelining/stage.py does not reshard after backward passes
# until gradients are reduced; `reshard_after_forward` decides about forward passes.

SyncSkipRule: TypeAlias = Literal["none", "before_last", "after_first", "after_backward"]
"""Passes that skip communication: none; backward passes before the last microbatch; all passes of a
chunk after its first; or passes that follow a backward pass of their chunk."""


def sync_skip_rule(plan: Plan) -> SyncSkipRule:
    """Return the rule of a plan."""
    if not any(variant.skips_sync for variant in plan.variants):
        return "none"
    if plan.mesh.pp == 1:
        return "before_last"
    return "after_backward" if plan.scenario.memory.reshard_after_forward else "after_first"


def actions_skipping_sync(schedule: Schedule, rule: SyncSkipRule) -> NDArray[np.bool_]:
    """Return [actions], whether each action runs a pass that skips communication."""
    is_backward: NDArray[np.bool_] = schedule.kind != KINDS.index("F")
    if rule == "none":
        return np.zeros_like(is_backward)
    if rule == "before_last":
        is_backward[schedule.last_backwards] = False
        return is_backward
    # Actions grouped by chunk, in the order in which the stage runs them.
    order = np.argsort(schedule.virtual_stage, kind="stable")
    chunk, follows_backward = schedule.virtual_stage[order], is_backward[order][:-1]
    quiet = np.zeros_like(is_backward)
    quiet[order[1:]] = (chunk[1:] == chunk[:-1]) & (follows_backward | (rule == "after_first"))
    return quiet


_SHAPE_BYTES = 24
"""A shape is three integers of 64 bits (`_communicate_shapes` in p2p_communication.py)."""


@dataclass(frozen=True, slots=True)
class PassPart:
    """A pass of one microbatch on a chunk, or its layers of one bucket.

    Args:
        variant: which of the plan's passes it is.
        span: number of the bucket, in the order in which the last backward pass or the first
            forward pass runs the buckets; None for the whole pass.
    """

    variant: PassVariant
    span: int | None = None


@dataclass(frozen=True, slots=True)
class TransferPart:
    """A message between two stages.

    Args:
        num_sends: messages that the sender sends at the same time.
        levels_crossed: network levels that the message leaves; 0 inside a node.
        num_states: hidden states in the message, or their gradients.
        follows_shape: an earlier message says its shape.
    """

    num_sends: int
    levels_crossed: int
    num_states: int = 1
    follows_shape: bool = False

    def seconds(self, model: DurationModel, state_bytes: float) -> float:
        """Return the time of the message and of its shape, given the bytes of a hidden state."""
        ends = self.levels_crossed, self.num_sends
        message_s = model.transfer_s(self.num_states * state_bytes, *ends)
        return message_s + (model.transfer_s(_SHAPE_BYTES, *ends) if self.follows_shape else 0.0)


@dataclass(frozen=True, slots=True)
class ReceiveGatherPart:
    """The all-gather of a scattered message of `num_states` hidden states, on the receiver."""

    num_states: int = 1


@dataclass(frozen=True, slots=True)
class SynchronizationPart:
    """The host's work for an exchange of `num_messages` messages.

    If it waits for shapes, but not for the messages after them, `shape_levels` are the network
    levels that the farthest shape leaves.
    """

    num_messages: int
    shape_levels: int | None = None

    def seconds(self, model: DurationModel, post_s: float) -> float:
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
class OptimizerPart:
    """A field of a stage's optimizer step.

    Args:
        name: of the field, one of `workload.optimizer.STEP_FIELDS`.
        step: number of the optimizer step among the different ones; None for an all-reduce over
            several stages.
    """

    name: str
    step: int | None = None


IterationPart: TypeAlias = (
    PassPart | TransferPart | ReceiveGatherPart | SynchronizationPart | BucketPart | OptimizerPart
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

    def transfer(self, num_sends: int, levels_crossed: int, num_states: int) -> TransferPart:
        return TransferPart(num_sends, levels_crossed, num_states, self.exchanges_shapes)

    def synchronization(self, num_messages: int, levels_crossed: int) -> SynchronizationPart:
        levels = levels_crossed if self.exchanges_shapes and self.overlap else None
        return SynchronizationPart((1 + self.exchanges_shapes) * num_messages, levels)


def structure_of(plan: Plan) -> IterationStructure:
    """Return the structure of a plan."""
    scenario, num_buckets = plan.scenario, None
    if plan.has_buckets:
        numbers = [len(buckets.parameters) for buckets in plan.buckets]
        num_buckets = tuple(numbers[number] for number in plan.model_chunks.numbers)
    return IterationStructure(
        plan.pass_order,
        steps=number_distinct(plan.stage_parameters),
        step_fields=tuple(map(frozenset, plan.steps)),
        levels_crossed=_levels_to_next(plan.mesh),
        sent_states=plan.order.placement.copies * plan.contents.sent_states,
        exchanges_shapes=plan.contents.separates_loss,
        overlap=scenario.overlaps_pipeline,
        gathers_on_receive=plan.receive_gather is not None,
        num_buckets=num_buckets,
        gathers=plan.step_options.gathers_during_forward,
        aligns_reduction=plan.has_buckets and scenario.aligns_gradient_reduction,
        aligns_gather=scenario.aligns_parameter_gather,
        sync_skips=sync_skip_rule(plan),
        reduces_after=bool(plan.reductions),
    )


@functools.lru_cache(maxsize=4096)
def _levels_to_next(mesh: Mesh) -> tuple[int, ...]:
    return tuple(mesh.levels_crossed(i, (i + 1) % mesh.pp) for i in range(mesh.pp))
