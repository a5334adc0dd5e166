"""A chunk: consecutive blocks of a model that a virtual stage runs, and their parameters."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, repeat

from simtrain.base.mesh import Group
from simtrain.base.values import dataclass, fields, replace
from simtrain.workload.hashing import hashed_once
from simtrain.workload.segments import BlockRun, block_parameters
from simtrain.workload.tape import Block, ExpertGroups, Microbatch, Parameter

ROOT = -1
"""The unit of all blocks that are not units themselves."""
SMALL_TENSOR = 100_000
"""DeepSpeed's `stage3_param_persistence_threshold`: smaller tensors stay unsharded."""


@hashed_once
@dataclass(frozen=True)
class Chunk:
    """Consecutive blocks, as runs of equal blocks: each block with its number of repetitions."""

    runs: tuple[tuple[Block, int], ...]

    @property
    def blocks(self) -> Iterator[Block]:
        return chain.from_iterable(repeat(block, times) for block, times in self.runs)

    @property
    def num_layers(self) -> int:
        return sum(times for block, times in self.runs if block.is_unit)


def chunk_of(blocks: Iterable[Block]) -> Chunk:
    """Build a chunk from its blocks."""
    return Chunk(tuple((block, len([*same])) for block, same in groupby(blocks)))


@hashed_once
@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters on one rank.

    Args:
        total: all parameters.
        root: parameters of the root unit: of blocks that are not layers.
        tied: parameters that another stage holds too.
        partial_sums: parameters that every tensor-parallel rank holds whole. Under sequence
            parallelism their gradients are partial sums.
        experts: parameters of experts, which have other replicas.
        in_fp8: parameters of which products read fp8 copies.
        root_experts, root_in_fp8: how many of these are in the root unit.
        small_tensors: number of tensors with fewer than `SMALL_TENSOR` elements.
        frozen: the numbers of those that are not trained; None if all are trained.
    """

    total: int
    root: int
    tied: int
    partial_sums: int
    experts: int = 0
    in_fp8: int = 0
    root_experts: int = 0
    root_in_fp8: int = 0
    small_tensors: int = 0
    frozen: Parameters | None = None

    @property
    def trained(self) -> Parameters:
        """The numbers of parameters with gradients and optimizer states."""
        if self.frozen is None:
            return self
        names = [field.name for field in fields(self) if field.name != "frozen"]
        return Parameters(*(getattr(self, name) - getattr(self.frozen, name) for name in names))

    @property
    def layers(self) -> int:
        return self.total - self.root


@functools.lru_cache(maxsize=8192)
def parameters(chunks: tuple[Chunk, ...], microbatch: Microbatch) -> Parameters:
    """Count the parameters of a rank that holds these chunks; tied parameters count once."""
    every = tuple(
        (block.is_unit, times, parameter)
        for block, times in chain.from_iterable(chunk.runs for chunk in chunks)
        for parameter in block_parameters(BlockRun(block, microbatch))
    )
    if not microbatch.is_frozen:
        return _count(every)
    return replace(_count(every), frozen=_count(x for x in every if x[2].is_frozen))


def _count(every: Iterable[tuple[bool, int, Parameter]]) -> Parameters:
    numbers: dict[str, int] = {}
    total = root = partial_sums = experts = in_fp8 = root_experts = root_in_fp8 = small = 0
    for is_unit, times, parameter in every:
        number = times * parameter.elements
        if parameter.tied:
            if parameter.tied in numbers:
                continue
            numbers[parameter.tied] = number
        total += number
        partial_sums += number if parameter.is_whole else 0
        experts += number if parameter.is_expert else 0
        in_fp8 += number if parameter.in_fp8 else 0
        small += times if parameter.elements < SMALL_TENSOR else 0
        if not is_unit:
            root += number
            root_experts += number if parameter.is_expert else 0
            root_in_fp8 += number if parameter.in_fp8 else 0
    tied = sum(numbers.values())
    rest = root_experts, root_in_fp8, small
    return Parameters(total, root, tied, partial_sums, experts, in_fp8, *rest)


def whole_parameters(model: Chunk, microbatch: Microbatch) -> Parameters:
    """Count the parameters of a whole model."""
    alone = Group(("tp",), 1, ranks_per_node=1)
    experts = microbatch.experts and ExpertGroups(alone, alone, alone)
    whole = replace(microbatch, tensor=alone, sequence_parallel=False, experts=experts)
    return parameters((model,), whole)


@functools.lru_cache(maxsize=1024)
def layer_parameters(chunk: Chunk, microbatch: Microbatch) -> tuple[Parameters, ...]:
    """Count the parameters of each layer of a chunk."""
    runs = [(Chunk(((block, 1),)), times) for block, times in chunk.runs if block.is_unit]
    layers = [[parameters((layer,), microbatch)] * times for layer, times in runs]
    return tuple(chain.from_iterable(layers))


@functools.lru_cache(maxsize=1024)
def unit_parameters(chunk: Chunk, microbatch: Microbatch) -> dict[int, Parameters]:
    """Count the parameters of each unit of a chunk: its layers by number, and the root unit."""
    root = Chunk(tuple(run for run in chunk.runs if not run[0].is_unit))
    layers = enumerate(layer_parameters(chunk, microbatch))
    return {ROOT: parameters((root,), microbatch)} | dict(layers)


@functools.lru_cache(maxsize=1024)
def unit_tensors(chunk: Chunk, microbatch: Microbatch) -> dict[int, tuple[Parameter, ...]]:
    """Return the parameters of each unit of a chunk; a unit has tied ones once."""
    tensors: dict[int, dict[object, Parameter]] = {ROOT: {}}
    for block in chunk.blocks:
        sizes = tensors.setdefault(len(tensors) - 1 if block.is_unit else ROOT, {})
        for parameter in block_parameters(BlockRun(block, microbatch)):
            sizes[parameter.tied or object()] = parameter
    return {unit: tuple(sizes.values()) for unit, sizes in tensors.items()}
