"""The activation of the MLP, fused with the bias before it or as separate kernels."""

from __future__ import annotations

from simtrain.workload.blocks.eager import activation_kernels
from simtrain.workload.blocks.linear import bias_gradient
from simtrain.workload.fp8 import narrow_copy
from simtrain.workload.ops import Op, Ops, Tensor, elementwise, gradient
from simtrain.workload.tape import Tape
from simtrain.workload.work import KernelFamily


def activation(
    tape: Tape,
    x: Tensor | tuple[Tensor, Tensor],
    name: str,
    *,
    gated: bool = False,
    squared: bool = False,
    biased: str = "",
    output_name: str = "",
) -> Tensor:
    """Record an activation, which saves its input, and return its output.

    Args:
        x: all tokens. With `gated`, gate and values side by side, or two tensors; the output has
            half the width.
        name: name of its kernels.
        gated: multiply the values by the activation of the gate.
        squared: squared ReLU.
        biased: name of the linear layer whose bias it adds; "" for none.
        output_name: name of the output.
    """
    inputs = x if isinstance(x, tuple) else (x,)
    size, width = sum(part.num_bytes for part in inputs), sum(part.width for part in inputs)
    y = tape.tensor(output_name or f"{name} output", inputs[0].rows, width // (1 + gated))
    if tape.microbatch.kernels.fused_activation:
        family = KernelFamily.SWIGLU if gated else KernelFamily.FUSED
        forward: Ops = (elementwise(name, size, y.num_bytes, saves=inputs, family=family),)
        backward: Ops = (gradient(name, size + y.num_bytes, size, reads=inputs, family=family),)
        if tape.microbatch.fp8_activation_inputs:
            forward, backward = saving_fp8(tape, inputs, forward[0], backward[0])
    else:
        adds_bias = bool(biased) and not tape.microbatch.kernels.biases_in_products
        options = {"gated": gated, "biased": adds_bias, "squared": squared}
        forward, backward = activation_kernels(tape, inputs, y, name, **options)
    deferred = 0
    if biased:
        backward += (bias_gradient(biased, inputs[0]),)
        deferred = size
    tape.record(name, inputs, (y,), forward, backward, deferred_gradient_bytes=deferred)
    return y


def saving_fp8(
    tape: Tape, inputs: tuple[Tensor, ...], forward: Op, backward: Op
) -> tuple[Ops, Ops]:
    """Return the passes of an activation that saves copies of some inputs in fp8 instead.

    Source: Megatron-LM's `SwiGLUFunction` with `fp8_input_store`.
    """
    copies = [narrow_copy(tape, x, 8) for x in inputs]
    others = tuple(tensor for tensor in forward.saves if tensor not in inputs)
    casts = [copy.cast.replace(saves=copy.tensors) for copy in copies]
    casts_back = [copy.cast_back for copy in copies]
    return (
        (*casts, forward.replace(saves=others)),
        (*casts_back, backward.replace(reads=others)),
    )
