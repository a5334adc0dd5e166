"""Settings of a scenario that only some points of a space can have; other points turn them off.

An imported scenario has the flags of its training run. `overlap.pipeline`, for example, breaks a
rule without interleaving, so a search would otherwise never evaluate points without interleaving.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping
from operator import attrgetter
from typing import Any

from simtrain.scenario import Scenario
from simtrain.scenario.context_exchanges import CONTEXT_EXCHANGES
from simtrain.scenario.model import Experts
from simtrain.scenario.rule import default_of
from simtrain.scenario.schema import STACK_DEFAULTS
from simtrain.scenario.tensor_splits import TensorSplit
from simtrain.schedules.registry import FAMILIES
from simtrain.schedules.stage_placement import looped

Follows = Callable[[Any], Any]
"""A field's value as a function of the point."""


def _reduces_in_buckets(point: Any) -> bool:
    """Whether replicas reduce the gradients of the same parameters in buckets."""
    ranks, expert_tensor = point.data * point.context, point.expert_tensor or point.tensor
    copies = FAMILIES[point.schedule].placement(point.pipeline, point.interleave).copies
    has_replicas = copies * ranks > 1 or point.tensor > point.expert * expert_tensor
    return bool(has_replicas and point.zero_stage < 2)


def _is_looped(point: Any) -> bool:
    """Whether stages have one chunk, or chunks that loop over them."""
    sizes = point.pipeline, point.interleave
    placement = FAMILIES[point.schedule].placement(*sizes)
    return placement.num_chunks == 1 or placement == looped(*sizes)


_CONDITIONS: dict[str, tuple[object, Follows]] = {
    "overlap.pipeline": (False, lambda point: FAMILIES[point.schedule].overlaps),
    "overlap.align_gradient_reduction": (
        False,
        lambda point: point.pipeline > 1 and _is_looped(point) and _reduces_in_buckets(point),
    ),
    "overlap.gradient_buckets": ("layer", _reduces_in_buckets),
    "overlap.align_parameter_gather": (
        False,
        lambda point: FAMILIES[point.schedule].gathers_by_chunk and point.zero_stage == 1,
    ),
    "memory.reshard_after_forward": (True, lambda point: point.zero_stage == 3),
    "memory.gathered_chunks": (
        None,
        lambda point: point.zero_stage == 3 and point.pipeline > 1,
    ),
    "parallelism.sequence_slices": (1, lambda point: FAMILIES[point.schedule].cuts_sequences),
}
"""For settings that a schedule or several fields decide: the off value, and whether a point can
have the setting. Tests compare these conditions with the rules."""
_SUBGROUPS = {name for name, exchange in CONTEXT_EXCHANGES.items() if exchange.has_subgroups}
_BESIDE: dict[str, Container[object]] = {
    "memory.offload_optimizer": {True},
    "parallelism.pipeline": {1},
    "parallelism.sequence_slices": {1},
}
_SEVERAL = range(2, 1 << 20)
_REQUIRING: dict[str, dict[str, Container[object]]] = {
    "overlap.userbuffers": {"parallelism.sequence_parallel": {True}},
    "overlap.parameter_gather": {"overlap.data_parallel": {True}, "memory.zero_stage": {1}},
    "overlap.prefetch": {"memory.zero_stage": {3}, "overlap.data_parallel": {True}},
    "overlap.deferred_output_gradients": {
        "parallelism.pipeline": _SEVERAL,
        "schedule": {"1f1b", "interleaved"},
        "memory.zero_stage": {0, 1},
    },
    "memory.reduce_every_microbatch": {"memory.zero_stage": {2, 3}},
    "memory.shard_over": {"memory.zero_stage": {1, 2, 3}},
    "memory.offload_gradients": _BESIDE,
    "memory.offload_parameters": _BESIDE,
    "memory.parameter_owners": {
        "memory.offload_parameters": {True},
        "parallelism.data": _SEVERAL,
    },
    "memory.delayed_update": _BESIDE,
    "parallelism.context_communication": {"parallelism.context": _SEVERAL},
    "parallelism.context_a2a": {"parallelism.context_communication": _SUBGROUPS},
    "parallelism.slice_balance": {"parallelism.sequence_slices": _SEVERAL},
    "parallelism.slice_lengths": {
        "parallelism.sequence_slices": _SEVERAL,
        "parallelism.slice_balance": {"tokens"},
    },
}
"""The values of other fields that a setting needs; each after the settings that it needs."""


def conditional_values(base: Scenario, coordinates: Mapping[str, str]) -> dict[str, Follows]:
    """Settings of a scenario that some points of its space cannot have, by field.

    Args:
        base: the scenario.
        coordinates: the coordinate of a point for each field that points set.
    """
    values: dict[str, Follows] = {
        field: _if(can_have, written, off)
        for field, (off, can_have) in _CONDITIONS.items()
        if (written := attrgetter(field)(base)) not in (None, off)  # None: each layout's default
    }
    at_points: dict[str, Follows] = {
        field: attrgetter(name) for field, name in coordinates.items()
    } | values
    for field in _REQUIRING:
        # Where a point cannot have it, a default of the stack is off.
        off = False if field in STACK_DEFAULTS else default_of(field)
        written = attrgetter(field)(base)
        if written not in (None, off):
            values[field] = at_points[field] = _if(_has_needs(field, at_points), written, off)
    if (split := base.parallelism.matrix_split) is not None:
        depth = base.parallelism.tensor_depth
        on = functools.partial(_has_grid, split, depth)
        for field, written in (("tensor_split", split.name), ("tensor_depth", depth)):
            off = default_of(f"parallelism.{field}")
            if written != off:
                values[f"parallelism.{field}"] = _if(on, written, off)
    if (layout := base.parallelism.layout) is not None:
        values["parallelism.layout"] = _by_chunks(layout, len(base.parallelism.layout_chunks))
    experts = base.model.experts
    if experts is not None and experts.imbalance > 1:
        values["model.experts.imbalance"] = _by_imbalance(experts)
    return values


def _has_needs(setting: str, at_points: Mapping[str, Follows]) -> Follows:
    """Whether a point has what a setting needs, of the fields that vary."""
    needs = [
        (at_points[field], values)
        for field, values in _REQUIRING[setting].items()
        if field in at_points
    ]
    return lambda point: all(value_at(point) in values for value_at, values in needs)


def _if(can_have: Follows, value: object, off: object) -> Follows:
    return lambda point: value if can_have(point) else off


def _by_chunks(layout: str, num_chunks: int) -> Follows:
    """The layout, at points with its number of chunks."""
    return lambda point: (
        layout if point.pipeline > 1 and point.pipeline * point.interleave == num_chunks else None
    )


def _has_grid(split: TensorSplit, depth: int | None, point: Any) -> bool:
    """Whether the tensor-parallel ranks of a point form the grid of a split of matrices."""
    return split.sizes(point.tensor, depth) is not None


def _by_imbalance(experts: Experts) -> Follows:
    """The experts section; the imbalance is at most the number of expert-parallel ranks.

    Without an imbalance no loads are drawn.
    """

    def follows(point: Any) -> Experts:
        most = min(experts.imbalance, float(point.expert))
        seed = experts.imbalance_seed if most > 1 else None
        return experts.model_copy(update={"imbalance": most, "imbalance_seed": seed})

    return follows
