"""Layer norms and RMS norms, over this rank's tokens."""

from __future__ import annotations

from simtrain.scenario.model import Normalization
from simtrain.workload.blocks.eager import rms_norm_kernels
from simtrain.workload.blocks.grid_vectors import grid_norm
from simtrain.workload.fp8 import casts, fp8_tensors, recipe_of, transpose
from simtrain.workload.ops import Ops, Phase, Tensor, elementwise, gradient
from simtrain.workload.tape import Microbatch, Parameter, Tape
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
        x: this rank's tokens.
        name: name of its kernels.
        kind: layer norm or RMS norm.
        feeds_products: only linear layers read the output. In fp8, the norm then casts its output
            (Transformer Engine's LayerNormLinear).
    """
    if tape.microbatch.grid:
        return grid_norm(tape, x, name, kind, _PARAMETERS[kind])
    y, size, family = (
        tape.tensor(f"{name} output", x.rows, x.width),
        x.num_bytes,
        KernelFamily(kind),
    )
    weight = Parameter(norm_parameters(kind, x.width), is_whole=True)
    forward: Ops = (elementwise(name, size, size, saves=(x,), family=family),)
    backward: Ops = (gradient(name, 2 * size, size, reads=(x,), family=family),)
    if kind == "rms_norm" and not tape.microbatch.kernels.fused_rms_norm:
        forward, backward = rms_norm_kernels(tape, x, name)
    elif feeds_products and tape.microbatch.fp8_recipe:
        label = f"{name} output in {recipe_of(tape.microbatch).format}"
        tape.fp8_copies[y] = fp8_tensors(tape, label, x.rows, x.width)
        forward = _casting_norm(tape.microbatch, x, name, family)
    tape.record(name, (x,), (y,), forward, backward, parameters=(weight,))
    return y


def _casting_norm(batch: Microbatch, x: Tensor, name: str, family: KernelFamily) -> Ops:
    """Return a norm and the casts of its output that the recipe needs."""
    recipe, gathered, output = recipe_of(batch), batch.sequence_parallel, f"{name} output"
    written = recipe.copy_bytes(x.elements) if recipe.norm_casts else x.num_bytes
    op = elementwise(name, x.num_bytes, written, saves=(x,), family=family)
    if not recipe.norm_casts:
        return op, *casts(batch, output, x.elements, gathered=gathered, knows_largest=True)
    if recipe.transposes and not gathered and not batch.is_frozen:
        return op, transpose(recipe, output, x.elements, Phase.FORWARD)
    return (op,)


def norm_parameters(kind: Normalization, width: int) -> int:
    """Return the number of parameters of a norm over `width` channels."""
    return _PARAMETERS[kind] * width
