"""The parts of an iteration, and the structure that decides which tasks it has.

An iteration has many tasks and few different parts; tasks of one part take equal time. Scenarios
that differ only in sizes, links or hardware share a structure.
"""

from __future__ import annotations

import difflib
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simtrain.durations.model import DurationModel
from simtrain.errors import InputError
from simtrain.iteration.memory.working import saved_tensors, unsharded
from simtrain.iteration.plan import PassKey, PassOrder, Plan
from simtrain.scenario.section import OFFLOAD_MODULES
from simtrain.schedules import KINDS, Schedule
from simtrain.workload.model_ends import number_distinct
from simtrain.workload.ops import Op, Phase, Tensor
from simtrain.workload.passes import Pass, PassKind
from simtrain.workload.record import record_pass
from simtrain.workload.work import HostResource, HostWork

# Copies of saved activations to the host and back: their bytes, and the units that are copied.
#
# A unit is a layer of a chunk. Embedding and head are never copied. Source of
# what a module's tensors are: Megatron-Core's fine-grained activation offloading, which copies the
# tensors that the module's autograd functions save.

_OPS_OF_MODULES = {
    # Names of the ops of each module; a separate product for the gate is of the dense MLP.
    "attn_norm": ("attention layer norm", "attention RMS norm"),
    "qkv_linear": ("QKV", "query", "key", "value"),
    "core_attn": ("fused attention", "QKᵀ", "softmax", "softmax dropout", "attention over V"),
    "attn_proj": ("projection",),
    "mlp_norm": ("MLP layer norm", "MLP RMS norm"),
    "expert_fc1": ("experts up",),
    "moe_act": ("experts GeLU", "experts SwiGLU"),
}


@dataclass(frozen=True, slots=True)
class OffloadLayout:
    """Which units of which passes are copied.

    Args:
        units: for each different chunk, whether each unit has tensors to copy, if the pass
            recomputes as the scenario says, and if it saves everything.
        bucket_layers: for each different chunk, the layers of each gradient bucket, in the order of
            the backward pass; empty without buckets.
    """

    units: tuple[tuple[tuple[bool, ...], tuple[bool, ...]], ...]
    bucket_layers: tuple[tuple[int, ...], ...] = ()


def offload_layout(plan: Plan) -> OffloadLayout | None:
    """Return the layout of a plan's copies; None if nothing is copied.

    Raises:
        InputError: a module that is to be copied is in no layer (E442).
    """
    if not plan.offloads:
        return None
    _check_modules(plan)
    numbers = range(len(plan.model_chunks.different))
    return OffloadLayout(
        tuple(
            (_has_bytes(plan, number, False), _has_bytes(plan, number, True)) for number in numbers
        ),
        tuple(buckets.num_layers for buckets in plan.buckets) if plan.has_buckets else (),
    )


def offloaded_bytes(plan: Plan, chunk: int, saves_all: bool) -> tuple[int, ...]:
    """Return [units], the bytes that are copied after a forward pass of a chunk, by its number."""
    key: PassKey = chunk, "F", saves_all
    if key not in plan.passes:
        return ()
    section = plan.scenario.offload
    of_layers = _bytes_of_layers(unsharded(plan.passes[key]), section.modules)
    return tuple(
        num_bytes if section.layers is None or layer < section.layers else 0
        for layer, num_bytes in enumerate(of_layers)
    )


def offload_op(plan: Plan, chunk: int, saves_all: bool, unit: int, *, to_host: bool) -> Op:
    """Return the copy of a unit to the host or back."""
    num_bytes, users = offloaded_bytes(plan, chunk, saves_all)[unit], plan.mesh.num_ranks
    work = HostWork(num_bytes, HostResource.LINK, users, leaves=to_host)
    if to_host:
        return Op("activations to host", work, Phase.FORWARD)
    return Op("activations from host", work, Phase.INPUT_GRADIENT)


def _has_bytes(plan: Plan, chunk: int, saves_all: bool) -> tuple[bool, ...]:
    return tuple(num_bytes > 0 for num_bytes in offloaded_bytes(plan, chunk, saves_all))


@functools.lru_cache(maxsize=1024)
def _bytes_of_layers(forward: Pass, modules: tuple[str, ...]) -> tuple[int, ...]:
    """Return [layers], bytes of the saved tensors that only ops of these modules save."""
    record, saved = record_pass(forward), saved_tensors(forward)
    kept: dict[int, set[Tensor]] = defaultdict(set)
    for segment, place in zip(record.segments, record.owners, strict=True):
        for op in segment.ops:
            if not _is_copied(op, modules):
                kept[place].update(op.saves)
    blocks = enumerate(forward.chunk.blocks)
    layers = (place for place, block in blocks if block.is_unit)
    return tuple(
        sum(tensor.num_bytes for tensor in saved.get(place, frozenset()) - kept[place])
        for place in layers
    )


def _is_copied(op: Op, modules: tuple[str, ...]) -> bool:
    return not modules or any(
        op.name in _OPS_OF_MODULES.get(module, (module,)) for module in modules
    )


def _layer_ops(plan: Plan) -> Iterator[Op]:
    """Yield the ops of the forward passes that save tensors of layers."""
    for (_, kind, *_), pass_ in plan.passes.items():
        if kind == "F":
            record, blocks = record_pass(unsharded(pass_)), [*pass_.chunk.blocks]
            for segment, place in zip(record.segments, record.owners, strict=True):
                if blocks[place].is_unit:
                    yield from (op for op in segment.ops if op.saves)


def _check_modules(plan: Plan) -> None:
    """Check that each module has an op that saves tensors.

    Raises:
        InputError: a module has none (E442).
    """
    ops = [*_layer_ops(plan)]
    names = sorted({op.name for op in ops})
    for module in plan.scenario.offload.modules:
        if any(_is_copied(op, (module,)) for op in ops):
            continue
        near = difflib.get_close_matches(module, [*OFFLOAD_MODULES, *names], 1)
        reason = f"the ops that save tensors are {', '.join(names)}"
        fix = f"write {near[0]!r}" if near and near[0] != module else "remove it"
        message = f"offload.modules: no layer saves tensors of {module!r}"
        raise InputError.of("E442", message, fix=fix, reason=reason)


# Passes of ZeRO stages 2 and 3 that skip communication with other replicas.
#
# Without a pipeline, only the last microbatch's backward pass may reduce gradients. In a pipeline
# with PyTorch's fully_shard, a pass needs no gather if an earlier pass of its chunk has left the
# parameters
# unsharded: torch/distributed/pipelining/stage.py does not reshard after backward passes until
# gradients are reduced; `reshard_after_forward` decides about forward passes.

SyncSkipRule: TypeAlias = Literal["none", "before_last", "after_first", "after_backward"]
"""Passes that skip communication: none; backward passes before the last microbatch; all passes of a
chunk after its first; or passes that follow a backward pass of their chunk."""


def sync_skip_rule(plan: Plan) -> SyncSkipRule:
    """Return the rule of a plan."""
    if not plan.quiet_passes:
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
        chunk: number of the chunk among the different ones.
        kind: F, B, I, W; or R: the reduction of the chunk's gradients after all passes.
        saves_all: it recomputes nothing.
        skips_sync: it skips communication with other replicas (`sync_skip_rule`).
        span: number of the bucket, in the order in which the last backward pass or the first
            forward pass runs the buckets; None for the whole pass.
        by_layer: the spans are layers, which are copied to the host, instead of buckets.
        beside: the backward pass that runs merged with this forward pass; None for none.
    """

    chunk: int
    kind: PassKind
    saves_all: bool
    skips_sync: bool = False
    span: int | None = None
    by_layer: bool = False
    beside: PassPart | None = None


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


IterationPart: TypeAlias = (
    PassPart
    | TransferPart
    | ReceiveGatherPart
    | SynchronizationPart
    | BucketPart
    | OffloadPart
    | OptimizerPart
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
        offload: which activations are copied to the host; None for none.
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
    offload: OffloadLayout | None = None

    def transfer(self, num_sends: int, levels_crossed: int, num_states: int) -> TransferPart:
        return TransferPart(num_sends, levels_crossed, num_states, self.exchanges_shapes)

    def synchronization(self, num_messages: int, levels_crossed: int) -> SynchronizationPart:
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
        gathers_on_receive=plan.receive_gather is not None,
        num_buckets=num_buckets,
        gathers=plan.step_options.gathers_during_forward,
        aligns_reduction=plan.has_buckets and scenario.aligns_gradient_reduction,
        aligns_gather=scenario.aligns_parameter_gather,
        sync_skips=sync_skip_rule(plan),
        reduces_after=bool(plan.reductions),
        offload=offload_layout(plan),
    )
