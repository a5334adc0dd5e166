"""The 2.5-dimensional split of Tesseract: layers of q x q ranks, which hold equal weights.

Sources: Wang et al. 2021, "Tesseract: Parallelize the Tensor Parallelism Efficiently" (arXiv
2105.14500); Solomonik and Demmel 2011 (2.5D products); Colossal-AI's nn/layer/parallel_2p5d. The d
layers divide the sequences. Each multiplies by SUMMA as the two-dimensional split does, on 1/d of
the tokens and on all weights, and the layers sum the gradients of weights. Row 0 of a layer holds
the vectors of parameters, which it broadcasts along columns.

So a forward pass of GPT's layer broadcasts (7 bsh / d + 12 h²) / q elements to each rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from simtrain.scenario.tensor_splits.split import (
    Layout,
    Move,
    TableSplit,
    TensorSplit,
    VectorSplit,
)
from simtrain.scenario.tensor_splits.summa import (
    ALONG_COLUMN,
    ALONG_ROW,
    summa_linear,
    summa_logits,
)

_TOKENS, _DEPTH = ("row", "depth"), ("depth",)
_SUM = Move("all_reduce", _DEPTH)
_VECTORS = VectorSplit(
    forward=(Move("broadcast", ALONG_COLUMN),),
    backward=(Move("reduce", ALONG_COLUMN), _SUM),
)


class Tesseract(TensorSplit):
    """Blocks of q x q ranks in d layers."""

    name = "2.5d"
    summary = (
        "has d layers of q² ranks, which divide the sequences further and hold equal weights "
        "(Tesseract, Colossal-AI)"
    )
    ranks = "d q² for a whole q of 2 or more and tensor_depth d"
    has_depth = True
    layout = Layout(
        tokens=_TOKENS,
        hidden=ALONG_ROW,
        inner=ALONG_ROW,
        weights=("row", "column"),
        channels=ALONG_ROW,
        vocabulary=ALONG_ROW,
        first=summa_linear(_TOKENS, last=(_SUM,)),
        second=summa_linear(_TOKENS, last=(_SUM,)),
        logits=summa_logits(_TOKENS, last=(_SUM,)),
        table=TableSplit(divided=("row", "column"), scattered=ALONG_COLUMN, summed=_DEPTH),
        vectors=_VECTORS,
        hidden_vectors=_VECTORS,
    )

    def sizes(self, num_ranks: int, depth: int | None = None) -> Mapping[str, int] | None:
        """Return q columns, q rows and d layers."""
        side = isqrt(num_ranks // depth) if depth else 0
        if not depth or side < 2 or side**2 * depth != num_ranks:
            return None
        return {"column": side, "row": side, "depth": depth}
