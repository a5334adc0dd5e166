"""Buckets of gradients: which layers of a chunk are reduced together, and gathered together.

A bucket holds the parameters of consecutive layers, the last layers of the chunk first, because
their gradients are complete first. It closes with the layer that fills it: Megatron-LM's
`_ParamAndGradBuffer` closes it within that layer, with the parameter that does.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from simtrain.workload.chunk import Chunk, Parameters, unit_experts, unit_fp8, unit_parameters
from simtrain.workload.ops import Op
from simtrain.workload.optimizer import (
    average,
    data_reduction,
    parameter_gather,
)
from simtrain.workload.step_options import StepOptions
from simtrain.workload.tape import Microbatch, record

MEGATRON_BUCKET, MEGATRON_BUCKET_OF_A_REPLICA = 40_000_000, 1_000_000
"""Parameters of Megatron-LM's bucket: the first, or the second times the number of replicas, if
that is more (core/distributed/distributed_data_parallel.py)."""


@dataclass(frozen=True, slots=True)
class GradientBuckets:
    """The buckets of a chunk, in the order of its backward pass.

    Args:
        num_layers: layers of each bucket.
        parameters: parameters of each bucket on one rank.
        experts: those of them that belong to experts.
        in_fp8: those of them that are weights of fp8 products.
        holds_root: parameters of no layer are in the bucket of the layer next to them. Without it
            they are in the last bucket of their stage, and not counted here.
    """

    num_layers: tuple[int, ...]
    parameters: tuple[int, ...]
    experts: tuple[int, ...]
    in_fp8: tuple[int, ...]
    holds_root: bool

    @property
    def layer_ends(self) -> tuple[int, ...]:
        """How many layers of the backward pass each bucket needs."""
        return tuple(itertools.accumulate(self.num_layers))


def bucket_ops(
    options: StepOptions,
    buckets: GradientBuckets,
    number: int,
    held: Parameters | None,
    *,
    gathers: bool,
) -> tuple[Op, ...]:
    """The reduction of a bucket's gradients, or the gather of its parameters.

    `number` counts in the order of the backward pass. `held` is what the stage holds if this is its
    last bucket, else None.
    """
    elements, experts = buckets.parameters[number], buckets.experts[number]
    elements += held.root if held and not buckets.holds_root else 0
    if gathers:
        return parameter_gather(options, elements, experts, buckets.in_fp8[number])
    return average(options, elements) + data_reduction(options, elements, experts)


@functools.lru_cache(maxsize=1024)
def buckets_of(
    chunks: tuple[Chunk, ...], microbatch: Microbatch, rule: str | int, replicas: int
) -> tuple[GradientBuckets, ...]:
    """The buckets of a model's different chunks, the first of which is that of the first stage.

    By Megatron-LM's rule all chunks but that one have one bucket, because their communication is
    not on the critical path (`DistributedDataParallel`, `disable_bucketing`).

    Args:
        rule: as the scenario's overlap.gradient_buckets.
        replicas: the size of data parallelism, without context parallelism.
    """
    if rule == "layer":
        return tuple(_layer_buckets(chunk, microbatch) for chunk in chunks)
    least = rule
    if not isinstance(least, int):
        least = max(MEGATRON_BUCKET, MEGATRON_BUCKET_OF_A_REPLICA * replicas)
    first, *others = chunks
    return (
        _filled_buckets(first, microbatch, least),
        *(_filled_buckets(chunk, microbatch, None) for chunk in others),
    )


def _layer_buckets(chunk: Chunk, microbatch: Microbatch) -> GradientBuckets:
    """A bucket for each layer."""
    held, experts = unit_parameters(chunk, microbatch), unit_experts(chunk, microbatch)
    in_fp8 = unit_fp8(chunk, microbatch)
    layers = range(chunk.num_layers)[::-1]
    ones = (1,) * len(layers)
    return GradientBuckets(ones, tuple(held[i] for i in layers), experts[::-1], in_fp8[::-1], False)


def _filled_buckets(chunk: Chunk, microbatch: Microbatch, least: int | None) -> GradientBuckets:
    """Buckets of at least `least` parameters, but for the last; None puts all in one."""
    sizes, experts = _sizes_around_layers(chunk, microbatch), unit_experts(chunk, microbatch)
    in_fp8 = unit_fp8(chunk, microbatch)
    ends, total = [0], 0
    for place, size in enumerate(reversed(sizes), 1):
        total += size
        if place == len(sizes) or (least is not None and total >= least):
            ends.append(place)
            total = 0
    slices = [slice(*one) for one in itertools.pairwise(ends)]
    return GradientBuckets(
        tuple(one.stop - one.start for one in slices),
        tuple(sum(sizes[::-1][one]) for one in slices),
        tuple(sum(experts[::-1][one]) for one in slices),
        tuple(sum(in_fp8[::-1][one]) for one in slices),
        True,
    )


def _sizes_around_layers(chunk: Chunk, microbatch: Microbatch) -> list[int]:
    """Parameters of each layer, with those before the first layer and after the last.

    A parameter that two blocks of the chunk hold is counted with the first of them, whose gradient
    is complete last.
    """
    sizes: list[int] = []
    before, tied = 0, set[str]()
    for block in chunk.blocks:
        number = 0
        for parameter in record(block, microbatch).parameters:
            number += 0 if parameter.tied in tied else parameter.elements
            tied |= {parameter.tied} if parameter.tied else set()
        if block.is_unit:
            sizes.append(before + number)
            before = 0
        elif sizes:
            sizes[-1] += number
        else:
            before += number
    return sizes
