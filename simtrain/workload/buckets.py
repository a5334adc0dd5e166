"""Gradient buckets: layers whose gradients are reduced, and parameters gathered, together.

A bucket contains the trained parameters of consecutive layers. The last layers of the chunk come
first, because their gradients are complete first. A bucket ends with the layer that fills it.
Megatron-LM's `_ParamAndGradBuffer` ends it inside that layer, with the parameter that fills it.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from simtrain.workload.chunk import Chunk, Parameters, layer_parameters
from simtrain.workload.ops import Op
from simtrain.workload.optimizer import (
    average,
    data_reduction,
    parameter_gather,
)
from simtrain.workload.step_options import StepOptions
from simtrain.workload.tape import Microbatch, Parameter, record

MEGATRON_BUCKET, MEGATRON_BUCKET_OF_A_REPLICA = 40_000_000, 1_000_000
"""Parameters of Megatron-LM's bucket: the first number, or the second times the number of replicas
if that is larger (core/distributed/distributed_data_parallel.py)."""


@dataclass(frozen=True, slots=True)
class GradientBuckets:
    """The buckets of a chunk, in the order of its backward pass.

    Args:
        num_layers: [buckets], layers of each bucket; a chunk without layers counts as one layer.
        parameters: [buckets], parameters on one rank.
        experts: [buckets], how many of these parameters belong to experts.
        in_fp8: [buckets], how many of these parameters are weights of fp8 products.
        holds_root: parameters outside the layers are in the bucket of the layer next to them.
            Otherwise they are in the last bucket of their stage, and not counted here.
    """

    num_layers: tuple[int, ...]
    parameters: tuple[int, ...]
    experts: tuple[int, ...]
    in_fp8: tuple[int, ...]
    holds_root: bool

    @property
    def layer_ends(self) -> tuple[int, ...]:
        """[buckets], number of layers that have run backward when each bucket is complete."""
        return tuple(itertools.accumulate(self.num_layers))


def bucket_ops(
    options: StepOptions,
    buckets: GradientBuckets,
    number: int,
    of_stage: Parameters | None,
    *,
    gathers: bool,
) -> tuple[Op, ...]:
    """Return the reduction of a bucket's gradients, or the gather of its parameters.

    Args:
        options: options of the optimizer step.
        buckets: buckets of the chunk.
        number: of the bucket, in the order of the backward pass.
        of_stage: parameters of the stage if this is its last bucket, else None.
        gathers: return the gather.
    """
    elements, experts = buckets.parameters[number], buckets.experts[number]
    in_fp8 = buckets.in_fp8[number]
    if of_stage and not buckets.holds_root:
        trained = of_stage.trained
        elements += trained.root
        experts += trained.root_experts
        in_fp8 += trained.root_in_fp8
    if not elements:
        return ()
    if gathers:
        return parameter_gather(options, elements, experts, in_fp8)
    return average(options, elements) + data_reduction(options, elements, experts)


@functools.lru_cache(maxsize=1024)
def buckets_of(
    chunks: tuple[Chunk, ...], microbatch: Microbatch, rule: str | int, replicas: int
) -> tuple[GradientBuckets, ...]:
    """Return the buckets of a model's different chunks.

    By Megatron-LM's rule only the first chunk has several buckets, because communication of the
    other chunks is not on the critical path (`DistributedDataParallel`, `disable_bucketing`).

    Args:
        chunks: the different chunks; the first one belongs to the first stage.
        microbatch: the hidden states on a rank.
        rule: as the scenario's overlap.gradient_buckets.
        replicas: size of data parallelism, without context parallelism.
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
    """Return one bucket per layer; an empty bucket for a chunk without layers."""
    layers = [layer.trained for layer in layer_parameters(chunk, microbatch)[::-1]]
    if not layers:
        return GradientBuckets((1,), (0,), (0,), (0,), holds_root=False)
    return GradientBuckets(
        (1,) * len(layers),
        tuple(layer.total for layer in layers),
        tuple(layer.experts for layer in layers),
        tuple(layer.in_fp8 for layer in layers),
        holds_root=False,
    )


def _filled_buckets(chunk: Chunk, microbatch: Microbatch, least: int | None) -> GradientBuckets:
    """Return buckets of at least `least` parameters, except the last; None makes one bucket."""
    layers = _parameters_around_layers(chunk, microbatch)[::-1]
    ends, total = [0], 0
    for place, layer in enumerate(layers, 1):
        total += sum(parameter.elements for parameter in layer)
        if place == len(layers) or (least is not None and total >= least):
            ends.append(place)
            total = 0
    slices = [slice(*pair) for pair in itertools.pairwise(ends)]
    buckets = [[*itertools.chain.from_iterable(layers[part])] for part in slices]
    return GradientBuckets(
        tuple(part.stop - part.start for part in slices),
        tuple(sum(parameter.elements for parameter in bucket) for bucket in buckets),
        tuple(
            sum(parameter.elements for parameter in bucket if parameter.is_expert)
            for bucket in buckets
        ),
        tuple(
            sum(parameter.elements for parameter in bucket if parameter.in_fp8)
            for bucket in buckets
        ),
        holds_root=True,
    )


def _parameters_around_layers(chunk: Chunk, microbatch: Microbatch) -> list[list[Parameter]]:
    """Return the parameters of each layer, with those of blocks outside the layers nearest to it.

    A parameter that two blocks of the chunk share is in the list of the first of them, where its
    gradient is completed. A chunk without layers has one list.
    """
    layers: list[list[Parameter]] = [[]]
    has_layer, tied = False, set[str]()
    for block in chunk.blocks:
        if block.is_unit and has_layer:
            layers.append([])
        has_layer |= block.is_unit
        for parameter in record(block, microbatch).parameters:
            if parameter.tied not in tied and not parameter.is_frozen:
                layers[-1].append(parameter)
            tied |= {parameter.tied} if parameter.tied else set()
    return layers
