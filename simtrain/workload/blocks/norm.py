"""Layer norms and RMS norms, over this rank's tokens."""

from __future__ import annotations

from simtrain.scenario.model import Normalization
from simtrain.workload.blocks.eager import rms_norm_kernels
from simtrain.workload.ops import Phase, Tensor, elementwise
from simtrain.workload.tape import Parameter, Tape

_PARAMETERS = {"layer_norm": 2, "rms_norm": 1}
"""Vectors as wide as the input: a weight, and of layer norm a bias."""


def norm(tape: Tape, x: Tensor, name: str, kind: Normalization = "layer_norm") -> Tensor:
    """A norm that saves its input."""
    y, size = tape.tensor(f"{name} output", x.rows, x.width), x.num_bytes
    weight = (Parameter(norm_parameters(kind, x.width), is_whole=True),)
    if kind == "rms_norm" and not tape.microbatch.kernels.fused_rms_norm:
        return tape.kernels(name, x, y, *rms_norm_kernels(tape, x, name), weight)
    return tape.kernel(
        x,
        y,
        elementwise(name, size, size, saves=(x,)),
        elementwise(f"{name} gradient", 2 * size, size, Phase.INPUT_GRADIENT, reads=(x,)),
        weight,
    )


def norm_parameters(kind: Normalization, width: int) -> int:
    """Parameters of a norm over `width` numbers."""
    return _PARAMETERS[kind] * width
