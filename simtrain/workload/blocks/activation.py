"""The activation of the MLP, fused with the bias before it or as separate kernels."""

from __future__ import annotations

from simtrain.workload.blocks.eager import activation_kernels
from simtrain.workload.blocks.linear import bias_gradient
from simtrain.workload.ops import Ops, Tensor, elementwise, gradient
from simtrain.workload.tape import Tape
from simtrain.workload.work import KernelFamily


def activation(
    tape: Tape,
    x: Tensor,
    name: str,
    *,
    gated: bool = False,
    squared: bool = False,
    biased: str = "",
    output_name: str = "",
) -> Tensor:
    """Record an activation, which saves its input, and return its output.

    Args:
        x: all tokens. With `gated`, gate and values side by side; the output has half the width.
        name: name of its kernels.
        gated: multiply the values by the activation of the gate.
        squared: squared ReLU.
        biased: name of the linear layer whose bias it adds; "" for none.
        output_name: name of the output.
    """
    y = tape.tensor(output_name or f"{name} output", x.rows, x.width // (1 + gated))
    if tape.microbatch.kernels.fused_activation:
        family = KernelFamily.SWIGLU if gated else KernelFamily.FUSED
        read_bytes = x.num_bytes + y.num_bytes
        forward: Ops = (elementwise(name, x.num_bytes, y.num_bytes, saves=(x,), family=family),)
        backward: Ops = (gradient(name, read_bytes, x.num_bytes, reads=(x,), family=family),)
    else:
        options = {"gated": gated, "biased": bool(biased), "squared": squared}
        forward, backward = activation_kernels(tape, x, y, name, **options)
    deferred = 0
    if biased:
        backward += (bias_gradient(biased, x),)
        deferred = x.num_bytes
    tape.record(name, (x,), (y,), forward, backward, deferred_gradient_bytes=deferred)
    return y
