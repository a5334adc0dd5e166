"""Layer norms and RMS norms, over this rank's tokens."""

from __future__ import annotations

from simtrain.scenario.model import Normalization
from simtrain.workload.blocks.eager import rms_norm_kernels
from simtrain.workload.fp8 import casts, fp8_tensors, recipe_of, transpose
from simtrain.workload.ops import Ops, Phase, Tensor, elementwise, gradient
from simtrain.workload.recompute import CHECKPOINTED_NORM
from simtrain.workload.tape import Microbatch, Parameter, Tape
from simtrain.workload.work import FP32_BYTES, KernelFamily

_PARAMETERS = {"layer_norm": 2, "rms_norm": 1}
"""Number of parameter vectors: a weight, and for layer norm a bias."""


def norm(
    tape: Tape,
    x: Tensor,
    name: str,
    kind: Normalization = "layer_norm",
    *,
    feeds_products: bool = False,
    is_checkpointed: bool = True,
) -> Tensor:
    """Record a norm, which saves its input.

    Args:
        x: this rank's tokens.
        name: name of its kernels.
        kind: layer norm or RMS norm.
        feeds_products: only linear layers read the output. In fp8, the norm then casts its output
            (Transformer Engine's LayerNormLinear).
        is_checkpointed: it runs again in the backward pass if the software stack checkpoints norms.
    """
    if grid := tape.microbatch.grid:
        return grid.norm(tape, x, name, kind, _PARAMETERS[kind])
    if is_checkpointed and tape.microbatch.kernels.checkpointed_fp32_norms:
        with tape.region(CHECKPOINTED_NORM):
            return _norm(tape, x, name, kind, feeds_products=feeds_products)
    return _norm(tape, x, name, kind, feeds_products=feeds_products)


def _norm(tape: Tape, x: Tensor, name: str, kind: Normalization, *, feeds_products: bool) -> Tensor:
    kernels = tape.microbatch.kernels
    is_fused = kind == "layer_norm" or kernels.fused_rms_norm
    if is_fused and kernels.checkpointed_fp32_norms and x.element_bytes < FP32_BYTES:
        x = _in_fp32(tape, x, name)
    y, family = tape.tensor(f"{name} output", x.rows, x.width), KernelFamily(kind)
    weight = Parameter(norm_parameters(kind, x.width), is_whole=True)
    size, read = y.num_bytes, x.num_bytes
    forward: Ops = (elementwise(name, read, size, saves=(x,), family=family),)
    backward: Ops = (gradient(name, size + read, read, reads=(x,), family=family),)
    if not is_fused:
        forward, backward = rms_norm_kernels(tape, x, name)
    elif feeds_products and tape.microbatch.fp8_recipe:
        label = f"{name} output in {recipe_of(tape.microbatch).format}"
        tape.fp8_copies[y] = fp8_tensors(tape, label, x.rows, x.width)
        forward = _casting_norm(tape.microbatch, x, name, family)
    tape.record(name, (x,), (y,), forward, backward, parameters=(weight,))
    return y


def _in_fp32(tape: Tape, x: Tensor, name: str) -> Tensor:
    """Record the kernel that casts a norm's input, whose gradient is cast back."""
    copy = tape.tensor(f"{name} input in fp32", x.rows, x.width, FP32_BYTES)
    label, size, wide = f"{name} to fp32", x.num_bytes, copy.num_bytes
    backward = (gradient(f"{name} from fp32", wide, size),)
    tape.record(label, (x,), (copy,), (elementwise(label, size, wide),), backward)
    return copy


def _casting_norm(batch: Microbatch, x: Tensor, name: str, family: KernelFamily) -> Ops:
    """Return a norm and the casts of its output that the recipe needs."""
    recipe, gathered, output = recipe_of(batch), batch.sequence_parallel, f"{name} output"
    plain_bytes = x.elements * batch.element_bytes
    written = recipe.copy_bytes(x.elements) if recipe.norm_casts else plain_bytes
    op = elementwise(name, x.num_bytes, written, saves=(x,), family=family)
    if not recipe.norm_casts:
        return op, *casts(batch, output, x.elements, gathered=gathered, knows_largest=True)
    if recipe.transposes and not gathered and not batch.is_frozen:
        return op, transpose(recipe, output, x.elements, Phase.FORWARD)
    return (op,)


def norm_parameters(kind: Normalization, width: int) -> int:
    """Return the number of parameters of a norm over `width` channels."""
    return _PARAMETERS[kind] * width
