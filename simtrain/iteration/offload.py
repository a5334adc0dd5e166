"""Copies of saved activations to the host and back: their bytes, and the units that are copied.

A unit is a layer of a chunk, or all layers of it. Embedding and head are never copied. Source of
what a module's tensors are: Megatron-Core's fine-grained activation offloading, which copies the
tensors that the module's autograd functions save.
"""

from __future__ import annotations

import difflib
import functools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.errors import InputError
from simtrain.iteration.memory.working import saved_tensors, unsharded
from simtrain.iteration.plan import PassKey, Plan
from simtrain.scenario.offload_section import OFFLOAD_MODULES
from simtrain.workload.ops import Op, Phase, Tensor
from simtrain.workload.passes import Pass
from simtrain.workload.record import record_pass
from simtrain.workload.work import HostResource, HostWork

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
        copies_stage: [virtual stages], whether tensors of its chunk are copied.
        bucket_layers: for each different chunk, the layers of each gradient bucket, in the order of
            the backward pass; empty without buckets.
    """

    units: tuple[tuple[tuple[bool, ...], tuple[bool, ...]], ...]
    copies_stage: tuple[bool, ...]
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
    first_chunks = plan.scenario.offload.chunks or plan.order.num_chunks
    return OffloadLayout(
        tuple(
            (_has_bytes(plan, number, False), _has_bytes(plan, number, True)) for number in numbers
        ),
        tuple(chunk < first_chunks for chunk in plan.order.placement.chunks),
        tuple(buckets.num_layers for buckets in plan.buckets) if plan.has_buckets else (),
    )


def offloaded_bytes(plan: Plan, chunk: int, saves_all: bool) -> tuple[int, ...]:
    """Return [units], the bytes that are copied after a forward pass of a chunk, by its number."""
    key: PassKey = chunk, "F", saves_all, 0
    if key not in plan.passes:
        return ()
    section = plan.scenario.offload
    of_layers = _bytes_of_layers(unsharded(plan.passes[key]), section.modules)
    of_layers = tuple(
        num_bytes if section.layers is None or layer < section.layers else 0
        for layer, num_bytes in enumerate(of_layers)
    )
    return of_layers if section.unit == "layer" else (sum(of_layers),)


def offload_op(plan: Plan, chunk: int, saves_all: bool, unit: int, *, to_host: bool) -> Op:
    """Return the copy of a unit to the host or back."""
    num_bytes, users = offloaded_bytes(plan, chunk, saves_all)[unit], plan.mesh.num_ranks
    resource = HostResource.SWAP if plan.scenario.offload.swaps else HostResource.LINK
    work = HostWork(num_bytes, resource, users, leaves=to_host)
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
