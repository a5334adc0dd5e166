"""Cuts a model into chunks, one for each virtual stage."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simtrain.scenario.pipeline_layout import ChunkContents
from simtrain.workload.chunk import Chunk, Parameters, chunk_of, parameters
from simtrain.workload.hashing import hashed_once
from simtrain.workload.model_ends import InputCopy
from simtrain.workload.tape import Block, Microbatch


@hashed_once
@dataclass(frozen=True)
class ModelChunks:
    """The chunks of a model: the different chunks, and the number of each virtual stage's chunk."""

    different: tuple[Chunk, ...]
    numbers: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def cut_into_chunks(
    model: Chunk, contents: ChunkContents, first: Block | None = None, copies: int = 1
) -> ModelChunks:
    """Cut a model into chunks.

    Args:
        model: all blocks.
        contents: what each chunk contains. With token prediction it is the last block but one.
        first: a block that is put before each chunk.
        copies: of the model, with equal chunks.

    A block that is not a layer joins the chunk of the next layer; blocks after the last layer join
    its chunk. A first chunk without layers has only the first block, a last one the last block.
    Other chunks without layers copy their input.
    """
    blocks, layers, prediction = [*model.blocks], contents.layers, contents.prediction
    last = len(layers) - 1
    ends = [1, *(place + 1 for place, block in enumerate(blocks) if block.is_unit)]
    ends[-1] = len(blocks) - (1 if prediction is None else 2)
    cuts = [0, *(ends[number] for number in itertools.accumulate(layers))]
    if prediction is not None:
        cuts[prediction + 1 :] = [len(blocks) - 1] * (last + 1 - prediction)
    cuts[-1] = len(blocks)
    before = [] if first is None else [first]
    chunks = []
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        copied: list[Block] = []
        if number and not layers[number] and (number < last or prediction is not None):
            copied = [InputCopy(contents.received_states(number))]
        chunks.append(chunk_of([*before, *copied, *blocks[start:end]]))
    return ModelChunks(tuple(dict.fromkeys(chunks)), copies * number_distinct(chunks))


@functools.lru_cache(maxsize=4096)
def stage_parameters(
    model: ModelChunks, virtual_stages: tuple[tuple[int, ...], ...], microbatch: Microbatch
) -> tuple[Parameters, ...]:
    """Count the parameters of one rank of each stage.

    Args:
        model: the chunks.
        virtual_stages: [stages], the virtual stages of each stage.
        microbatch: the hidden states of a microbatch on one rank.
    """
    stages = [tuple(model.numbers[number] for number in numbers) for numbers in virtual_stages]
    parameters_of = {
        chunks: parameters(tuple(model.different[number] for number in chunks), microbatch)
        for chunks in set(stages)
    }
    return tuple(parameters_of[chunks] for chunks in stages)


def number_distinct(values: Sequence[Any]) -> tuple[int, ...]:
    """Number the different values by first appearance; return the number of each value."""
    numbers: dict[Any, int] = {}
    return tuple(numbers.setdefault(value, len(numbers)) for value in values)
