"""The two-dimensional split of Optimus: every matrix in q x q blocks, multiplied by SUMMA.

Sources: Xu, Li et al. 2021, "An Efficient 2D Method for Training Super-Large Deep Learning Models"
(arXiv 2104.05343); van de Geijn and Watts 1997 (SUMMA); Colossal-AI's nn/layer/parallel_2d. Rank
(i, j) of q² ranks holds block (i, j) of each matrix: sequences i and channels j of an activation.
Each product takes q steps (Algorithms 1 to 3 of the paper):

- C = A B: in step l, blocks (i, l) of A are broadcast along rows and (l, j) of B along columns.
- C = A Bᵀ: blocks (l, j) of B are broadcast along columns; the products are reduced along rows.
- C = Aᵀ B: blocks (i, l) of A are broadcast along rows; the products are reduced along columns.

So a forward pass of GPT's layer broadcasts (7 bsh + 12 h²) / q elements to each rank, and a
backward pass broadcasts or reduces twice as many; a tree sends each log2 q times.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from simtrain.scenario.tensor_splits.split import (
    Axes,
    Layout,
    LinearSplit,
    Move,
    Multiplication,
    TableSplit,
    TensorSplit,
    VectorSplit,
)

ALONG_ROW, ALONG_COLUMN = ("column",), ("row",)
"""The ranks of a row differ in their column, and those of a column in their row."""


def summa_linear(tokens: Axes, last: tuple[Move, ...] = ()) -> LinearSplit:
    """Return Y = X A by SUMMA.

    Args:
        tokens: axes that divide the tokens of a block.
        last: moves of each weight gradient after its last step.
    """
    inputs, weights = Move("broadcast", ALONG_ROW, "input"), Move("broadcast", ALONG_COLUMN)
    return LinearSplit(
        tokens=tokens,
        inputs=ALONG_ROW,
        outputs=ALONG_ROW,
        forward=Multiplication(before=(inputs, weights)),
        input_gradient=Multiplication(
            before=(weights,), after=(Move("reduce", ALONG_ROW, "input"),)
        ),
        weight_gradient=Multiplication(
            before=(inputs,), after=(Move("reduce", ALONG_COLUMN),), last=last
        ),
        steps=ALONG_COLUMN,
    )


def summa_logits(tokens: Axes, last: tuple[Move, ...] = ()) -> LinearSplit:
    """Return Y = X Eᵀ with the table of embeddings; arguments as of `summa_linear`."""
    outputs, weights = Move("broadcast", ALONG_ROW, "output"), Move("broadcast", ALONG_COLUMN)
    return LinearSplit(
        tokens=tokens,
        inputs=ALONG_ROW,
        outputs=ALONG_ROW,
        forward=Multiplication(before=(weights,), after=(Move("reduce", ALONG_ROW, "output"),)),
        input_gradient=Multiplication(before=(outputs, weights)),
        weight_gradient=Multiplication(
            before=(outputs,), after=(Move("reduce", ALONG_COLUMN),), last=last
        ),
        steps=ALONG_COLUMN,
    )


_TOKENS = ALONG_COLUMN
_VECTORS = VectorSplit(
    divided=ALONG_COLUMN,
    forward=(Move("all_gather", ALONG_COLUMN),),
    backward=(Move("reduce_scatter", ALONG_COLUMN),),
)


class Summa(TensorSplit):
    """Blocks of q x q ranks; the ranks of a column gather vectors of parameters."""

    name = "2d"
    summary = (
        "splits every matrix into q x q blocks for q² ranks, multiplied by SUMMA's broadcasts and "
        "reductions; rows of ranks divide the sequences of a microbatch (Optimus, Colossal-AI)"
    )
    ranks = "q² for a whole q of 2 or more"
    layout = Layout(
        tokens=_TOKENS,
        hidden=ALONG_ROW,
        inner=ALONG_ROW,
        weights=("row", "column"),
        channels=("row", "column"),
        vocabulary=ALONG_ROW,
        first=summa_linear(_TOKENS),
        second=summa_linear(_TOKENS),
        logits=summa_logits(_TOKENS),
        table=TableSplit(divided=("row", "column"), scattered=ALONG_COLUMN),
        vectors=_VECTORS,
        hidden_vectors=_VECTORS,
    )

    def sizes(self, num_ranks: int, depth: int | None = None) -> Mapping[str, int] | None:
        """Return q columns and q rows."""
        side = isqrt(num_ranks)
        return {"column": side, "row": side} if side > 1 and side**2 == num_ranks else None
