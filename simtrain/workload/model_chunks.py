"""A model cut into the chunks of the stages."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simtrain.workload.chunk import Chunk, Parameters, chunk_of, parameters
from simtrain.workload.hashing import hashed_once
from simtrain.workload.tape import Block, Microbatch


@hashed_once
@dataclass(frozen=True)
class ModelChunks:
    """A model's chunks: each different one once, and their numbers by virtual stage."""

    different: tuple[Chunk, ...]
    numbers: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def cut_into_chunks(
    model: Chunk, layers: tuple[int, ...], first: Block | None = None
) -> ModelChunks:
    """Cut a model into chunks with these numbers of layers, each preceded by a `first` block.

    Blocks that are no layer go with the layer after them, and those after the last with it.
    """
    blocks = [*model.blocks]
    ends = [place + 1 for place, block in enumerate(blocks) if block.is_unit]
    cuts = [0, *(ends[number - 1] for number in itertools.accumulate(layers))]
    cuts[-1] = len(blocks)
    before = [] if first is None else [first]
    chunks = [chunk_of([*before, *blocks[start:end]]) for start, end in itertools.pairwise(cuts)]
    return ModelChunks(tuple(dict.fromkeys(chunks)), number_distinct(chunks))


@functools.lru_cache(maxsize=4096)
def stage_parameters(
    model: ModelChunks, num_stages: int, microbatch: Microbatch
) -> tuple[Parameters, ...]:
    """Parameters of one rank of each stage."""
    stages = [model.numbers[stage::num_stages] for stage in range(num_stages)]
    found = {
        held: parameters(tuple(model.different[number] for number in held), microbatch)
        for held in set(stages)
    }
    return tuple(found[held] for held in stages)


def number_distinct(values: Sequence[Any]) -> tuple[int, ...]:
    """For each value the number of its first like among the different ones."""
    numbers: dict[Any, int] = {}
    return tuple(numbers.setdefault(value, len(numbers)) for value in values)
