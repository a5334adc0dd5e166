"""Vectors of parameters, norms, and the table of embeddings, on a grid of ranks.

Sources: Colossal-AI's legacy layers (`LayerNorm2D`, `_Layernorm3D`, `VocabParallelEmbedding2D`). A
norm adds its row sums over the ranks that share a token: forward the sum and, in a layer norm, the
sum of squares; backward as many sums, of the gradient and of its product with the normalized input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simtrain.related_work.grids import Move, VectorSplit
from simtrain.scenario.model import Normalization
from simtrain.workload.ops import Op, Ops, Phase, Tensor, collective, elementwise, gradient
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import FP32_BYTES, CollectiveKind, KernelFamily

if TYPE_CHECKING:
    from simtrain.related_work.tensor_grid import TensorGrid

_NUM_SUMS = {"layer_norm": 2, "rms_norm": 1}
"""Sums of each row that ranks add, in each direction."""


@dataclass(frozen=True, slots=True)
class GridVector:
    """A vector of parameters, one for each channel of an activation.

    Args:
        grid: the ranks.
        split: how they hold it.
        width: channels on this rank, times the vectors that are moved together.
        name: name of its collectives.
        element_bytes: of parameters.
    """

    grid: TensorGrid
    split: VectorSplit
    width: int
    name: str
    element_bytes: int

    @property
    def parameter(self) -> Parameter:
        return Parameter(-(-self.width // self.grid.size(self.split.divided)))

    def forward(self) -> Iterator[Op]:
        """Yield the collectives that give this rank the vector of its channels."""
        yield from self._moves(self.split.forward, self.name, Phase.FORWARD)

    def backward(self) -> Iterator[Op]:
        """Yield the collectives that sum its gradient."""
        yield from self._moves(self.split.backward, f"{self.name} gradient", Phase.WEIGHT_GRADIENT)

    def sum_over_tokens(self, y: Tensor) -> Op:
        """Return the kernel that sums the gradient of `y` over this rank's tokens."""
        written, phase = self.width * self.element_bytes, Phase.WEIGHT_GRADIENT
        return elementwise(f"{self.name} gradient", y.num_bytes, written, phase)

    def _moves(self, moves: tuple[Move, ...], name: str, phase: Phase) -> Iterator[Op]:
        num_bytes = self.width * self.element_bytes
        for move in moves:
            kind, group = CollectiveKind(move.exchange), self.grid.group(move.axes)
            yield collective(f"{name} {move.exchange}", kind, num_bytes, group, phase)


def grid_norm(
    tape: Tape, grid: TensorGrid, x: Tensor, name: str, kind: Normalization, vectors: int
) -> Tensor:
    """Record a norm over channels that several ranks divide; it saves its input.

    Args:
        grid: the ranks.
        x: this rank's part of the hidden states.
        name: name of its kernels.
        kind: layer norm or RMS norm.
        vectors: number of its parameter vectors.
    """
    batch = tape.microbatch
    y, size, family = (
        tape.tensor(f"{name} output", x.rows, x.width),
        x.num_bytes,
        KernelFamily(kind),
    )
    split = grid.layout.hidden_vectors
    weight = GridVector(grid, split, vectors * x.width, f"{name} weight", batch.element_bytes)
    sums, group = _NUM_SUMS[kind] * x.rows * FP32_BYTES, grid.group(grid.layout.hidden)
    work, phase = (CollectiveKind.ALL_REDUCE, sums, group), Phase.INPUT_GRADIENT
    forward: Ops = (
        *weight.forward(),
        elementwise(f"{name} sums", size, sums),
        collective(f"{name} sum", *work),
        elementwise(name, size + sums, size, saves=(x,), family=family),
    )
    backward: Ops = (
        gradient(f"{name} sums", 2 * size, sums, reads=(x,)),
        collective(f"{name} gradient sum", *work, phase),
        gradient(name, 2 * size + sums, size, reads=(x,), family=family),
        *weight.backward(),
    )
    tape.record(name, (x,), (y,), forward, backward, parameters=(weight.parameter,))
    return y


def grid_look_up(tape: Tape, grid: TensorGrid, vocab: int, tied: str) -> Tensor:
    """Record the lookup of words: each rank looks up words of several in its rows of the table."""
    batch = tape.microbatch
    table, hidden = grid.layout.table, batch.hidden * grid.size(grid.layout.hidden)
    elements = vocab * hidden // grid.size(table.divided)
    words = tape.tensor("word embedding", batch.tokens, batch.hidden)
    whole = words.num_bytes * grid.size(table.scattered)
    rows = elements * grid.size(table.gathered) * batch.element_bytes
    phase, stream = Phase.WEIGHT_GRADIENT, KernelFamily.STREAM
    scattered, gathered = grid.group(table.scattered), grid.group(table.gathered)
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    part, buffer = elements * batch.element_bytes, elements * batch.gradient_bytes
    copies = [
        elementwise("embedding copy", whole, whole, each)
        for each in (Phase.FORWARD, Phase.INPUT_GRADIENT)
        if table.copies
    ]
    forward: Ops = (
        collective("embedding table gather", gather, rows, gathered, holds_bytes=rows),
        elementwise("embedding lookup", whole, whole, holds_bytes=whole),
        elementwise("embedding mask", 0, whole),
        *copies[:1],
        collective("embedding sum", scatter, whole, scattered),
    )
    backward: Ops = (
        collective("embedding sum", gather, whole, scattered, Phase.INPUT_GRADIENT),
        *copies[1:],
        elementwise("embedding table zero", 0, rows, phase, family=stream),
        elementwise("embedding scatter", 2 * whole, whole, phase, holds_bytes=whole + rows),
        collective("embedding table reduce-scatter", scatter, rows, gathered, phase),
        elementwise(
            "embedding accumulate", part + buffer, buffer, phase, holds_bytes=part, family=stream
        ),
    )
    tape.record(
        "embedding",
        (),
        (words,),
        forward,
        backward,
        parameters=(Parameter(elements, tied=tied),),
        deferred_gradient_bytes=whole,
    )
    return words


def grid_positions(tape: Tape, grid: TensorGrid, x: Tensor) -> Tensor:
    """Record the sum of `x` and learned position embeddings."""
    batch = tape.microbatch
    y, name = tape.tensor("embedding output", x.rows, x.width), "position embedding"
    table = GridVector(
        grid, grid.layout.hidden_vectors, batch.whole_length * x.width, name, batch.element_bytes
    )
    forward = (*table.forward(), elementwise(name, 2 * x.num_bytes, y.num_bytes))
    backward = tuple(table.backward())
    tape.record(name, (x,), (y,), forward, backward, parameters=(table.parameter,))
    return y
