"""The nonlinearity of the MLP, with the bias before it in one kernel or in kernels of their own."""

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
    """An elementwise function of its input, which it saves.

    Args:
        x: all tokens; if `gated`, gate and values side by side, of which half the width remains.
        squared: whether it is a squared ReLU.
        name: of its kernels.
        biased: name of the linear layer whose bias it adds, or "".
        output_name: of the tensor that it returns.
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
