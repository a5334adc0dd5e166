"""Layer norms and RMS norms, over this rank's tokens."""

from __future__ import annotations

from simtrain.scenario.model import Normalization
from simtrain.workload.blocks.eager import rms_norm_kernels
from simtrain.workload.fp8 import fp8_tensors, issue_casts, recipe_of, transpose
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import KernelFamily

_PARAMETERS = {"layer_norm": 2, "rms_norm": 1}
"""Number of parameter vectors: a weight, and for layer norm a bias."""


def norm(
    tape: Tape,
    x: Tensor,
    name: str,
    kind: Normalization = "layer_norm",
    *,
    feeds_products: bool = False,
) -> Tensor:
    """Record a norm, which saves its input.

    Args:
        tape: the tape of the block.
        x: this rank's tokens.
        name: name of its kernels.
        kind: layer norm or RMS norm.
        feeds_products: only linear layers read the output. In fp8, the norm then casts its output
            (Transformer Engine's LayerNormLinear).
    """
    y, size = tape.tensor(f"{name} output", x.rows, x.width), x.num_bytes
    weight = (Parameter(norm_parameters(kind, x.width), is_whole=True),)
    if kind == "rms_norm" and not tape.microbatch.kernels.fused_rms_norm:
        return tape.kernels(name, x, y, *rms_norm_kernels(tape, x, name), weight)
    if feeds_products and tape.microbatch.fp8_recipe:
        return _casting_norm(tape, x, y, name, kind)
    return tape.kernel(
        x,
        y,
        elementwise(name, size, size, saves=(x,), family=KernelFamily(kind)),
        _gradient(name, x, kind),
        weight,
    )


def _casting_norm(tape: Tape, x: Tensor, y: Tensor, name: str, kind: Normalization) -> Tensor:
    batch, size, elements = tape.microbatch, x.num_bytes, x.rows * x.width
    recipe, gathered, family = recipe_of(batch), batch.sequence_parallel, KernelFamily(kind)
    tape.fp8_copies[y] = fp8_tensors(tape, f"{name} output in fp8", x.rows, x.width)

    def forward(order: IssueOrder) -> None:
        """Issue the norm and the casts of its output that the recipe needs."""
        if not recipe.norm_casts:
            order.compute(elementwise(name, size, size, saves=(x,), family=family))
            issue_casts(
                order, batch, f"{name} output", elements, gathered=gathered, knows_largest=True
            )
            return
        copy_bytes = recipe.copy_bytes(elements)
        order.compute(elementwise(name, size, copy_bytes, saves=(x,), family=family))
        if recipe.transposes and not gathered:
            order.compute(transpose(f"{name} output", elements, Phase.FORWARD))

    gradient = _gradient(name, x, kind)
    parameters = (Parameter(norm_parameters(kind, x.width), is_whole=True),)
    tape.record(
        name, (x,), (y,), forward, lambda order: order.compute(gradient), parameters=parameters
    )
    return y


def _gradient(name: str, x: Tensor, kind: Normalization) -> Op:
    """Return the kernel that computes the gradients of the input and of the weight."""
    size, phase, family = x.num_bytes, Phase.INPUT_GRADIENT, KernelFamily(kind)
    return elementwise(f"{name} gradient", 2 * size, size, phase, reads=(x,), family=family)


def norm_parameters(kind: Normalization, width: int) -> int:
    """Return the number of parameters of a norm over `width` channels."""
    return _PARAMETERS[kind] * width
