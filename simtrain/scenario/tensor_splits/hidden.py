"""Activations split along the hidden dimension, throughout the network.

Sources: Karakus et al. 2021, "Amazon SageMaker Model Parallelism" (arXiv 2111.05972); Xu et al.
2021, "GSPMD" (arXiv 2105.04663), with hidden states [B, S, M] split along M. Weights are split as
in Megatron-LM. Ranks gather the channels of hidden states before the first layer of attention or
MLP, and reduce and scatter those of the output of the second: as many bytes as sequence parallelism
moves. In addition, each norm sums over the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from simtrain.scenario.tensor_splits.split import (
    Layout,
    LinearSplit,
    Move,
    Multiplication,
    TableSplit,
    TensorSplit,
)

_AXES = ("hidden",)
_FIRST = LinearSplit(
    tokens=(),
    inputs=(),
    outputs=_AXES,
    forward=Multiplication(before=(Move("all_gather", _AXES, "input", copies=True),)),
    input_gradient=Multiplication(after=(Move("reduce_scatter", _AXES, "input", copies=True),)),
    weight_gradient=Multiplication(before=(Move("all_gather", _AXES, "input", copies=True),)),
)
_SECOND = LinearSplit(
    tokens=(),
    inputs=_AXES,
    outputs=(),
    forward=Multiplication(after=(Move("reduce_scatter", _AXES, "output", copies=True),)),
    input_gradient=Multiplication(before=(Move("all_gather", _AXES, "output", copies=True),)),
    weight_gradient=Multiplication(),
)


class Hidden(TensorSplit):
    """Each rank has all tokens, with its part of the channels."""

    name = "hidden"
    summary = (
        "splits all activations along the hidden dimension, so that each norm sums over the ranks "
        "(SageMaker, GSPMD)"
    )
    ranks = "2 or more"
    layout = Layout(
        tokens=(),
        hidden=_AXES,
        inner=_AXES,
        weights=_AXES,
        channels=_AXES,
        vocabulary=_AXES,
        first=_FIRST,
        second=_SECOND,
        logits=_FIRST,
        table=TableSplit(divided=_AXES, scattered=_AXES, copies=True),
    )

    def sizes(self, num_ranks: int, depth: int | None = None) -> Mapping[str, int] | None:
        """Return the size of the only axis."""
        return {"hidden": num_ranks} if num_ranks > 1 else None
