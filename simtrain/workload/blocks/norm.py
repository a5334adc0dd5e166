"""Layer norms and RMS norms, over this rank's tokens."""

from __future__ import annotations

from typing import Literal

from simtrain.workload.ops import Phase, Tensor, elementwise
from simtrain.workload.tape import Parameter, Tape

Normalization = Literal["layer_norm", "rms_norm"]
_PARAMETERS = {"layer_norm": 2, "rms_norm": 1}
"""Vectors as wide as the input: a weight, and of layer norm a bias."""


def norm(tape: Tape, x: Tensor, name: str, kind: Normalization = "layer_norm") -> Tensor:
    """A norm that saves its input."""
    y = tape.tensor(f"{name} output", x.rows, x.width)
    size = x.num_bytes
    tape.record(
        name,
        (x,),
        (y,),
        lambda order: order.compute(elementwise(name, size, size, saves=(x,))),
        lambda order: order.compute(
            elementwise(f"{name} gradient", 2 * size, size, Phase.INPUT_GRADIENT, reads=(x,))
        ),
        parameters=(Parameter(_PARAMETERS[kind] * x.width, is_whole=True),),
    )
    return y
