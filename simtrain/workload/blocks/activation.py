"""The activation of the MLP, fused with the bias before it or as separate kernels."""

from __future__ import annotations

from simtrain.workload.blocks.eager import activation_kernels
from simtrain.workload.blocks.linear import bias_gradient
from simtrain.workload.ops import Phase, Tensor, elementwise
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
        tape: the tape of the block.
        x: all tokens. With `gated`, gate and values side by side; the output has half the width.
        name: name of its kernels.
        gated: multiply the values by the activation of the gate.
        squared: squared ReLU.
        biased: name of the linear layer whose bias it adds; "" for none.
        output_name: name of the output.
    """
    width = x.width // 2 if gated else x.width
    y = tape.tensor(output_name or f"{name} output", x.rows, width)
    deferred = x.num_bytes if biased else 0
    bias = (bias_gradient(biased, x.num_bytes, x.width * x.element_bytes),) if biased else ()
    if not tape.microbatch.kernels.fused_activation:
        options = {"gated": gated, "biased": bool(biased), "squared": squared}
        forward, back = activation_kernels(tape, x, y, name, **options)
        return tape.kernels(name, x, y, forward, (*back, *bias), (), deferred)
    read_bytes, phase = x.num_bytes + y.num_bytes, Phase.INPUT_GRADIENT
    family = KernelFamily.SWIGLU if gated else KernelFamily.FUSED
    sizes = read_bytes, x.num_bytes
    ops = (
        elementwise(name, x.num_bytes, y.num_bytes, saves=(x,), family=family),
        elementwise(f"{name} gradient", *sizes, phase, reads=(x,), family=family),
    )
    return tape.kernels(name, x, y, ops[:1], (*ops[1:], *bias), (), deferred)
