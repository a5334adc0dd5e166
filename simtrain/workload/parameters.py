"""Where the parameters sit: how many each rank of each stage holds."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.scenario import Scenario
from simtrain.workload.chunk import Chunk
from simtrain.workload.shape import LayerShape


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Numbers of parameters on one rank of a stage.

    `sequence_parallel` counts those whose gradients are partial sums under sequence parallelism
    (layer norms and the biases of row-parallel linears, which every tensor-parallel rank holds
    whole), `embedding` the word embeddings, on the stages that hold them.
    """

    layers: int
    embedding: int
    other: int
    sequence_parallel: int

    @property
    def total(self) -> int:
        """All parameters of the rank."""
        return self.layers + self.embedding + self.other


def layer_parameters(shape: LayerShape) -> int:
    """Weights and biases of one layer on one rank: about 12h²/t."""
    h, f, t = shape.hidden, shape.ffn, shape.tensor
    column = (h + 1) * 3 * h // t + (h + 1) * f // t
    row = h * h // t + f * h // t
    return column + row + _replicated_in_layer(shape)


def stage_parameters(
    shape: LayerShape, chunks: tuple[Chunk, ...], *, tied: bool
) -> StageParameters:
    """Parameters of one rank of a stage that holds these chunks."""
    num_layers = sum(chunk.num_layers for chunk in chunks)
    first = any(chunk.has_embedding for chunk in chunks)
    last = any(chunk.has_head for chunk in chunks)
    table = shape.vocab // shape.tensor * shape.hidden
    tables = int(first) + int(last and not (first and tied))
    positions = shape.seq_length * shape.hidden if first else 0
    final_norm = 2 * shape.hidden if last else 0
    return StageParameters(
        layers=num_layers * layer_parameters(shape),
        embedding=tables * table,
        other=positions + final_norm,
        sequence_parallel=num_layers * _replicated_in_layer(shape) + final_norm,
    )


def held_part(scenario: Scenario, num_parameters: int, *, from_stage: int) -> int:
    """Of states that ZeRO divides from a stage on, those of the rank with the largest part."""
    if scenario.memory.zero_stage < from_stage:
        return num_parameters
    return -(-num_parameters // scenario.parallelism.data)


def _replicated_in_layer(shape: LayerShape) -> int:
    """Two layer norms and the two row-parallel biases, whole on every rank."""
    return 4 * shape.hidden + 2 * shape.hidden
