"""The nonlinearity of the MLP, with the bias before it in one kernel."""

from __future__ import annotations

from simtrain.workload.blocks.linear import bias_gradient
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Phase, Tensor, elementwise
from simtrain.workload.tape import Tape


def activation(
    tape: Tape,
    x: Tensor,
    name: str,
    *,
    gated: bool = False,
    biased: str = "",
    output_name: str = "",
) -> Tensor:
    """An elementwise function of its input, which it saves.

    Args:
        x: all tokens; if `gated`, gate and values side by side, of which half the width remains.
        name: of its kernels.
        biased: name of the linear layer whose bias it adds, or "".
        output_name: of the tensor that it returns.
    """
    width = x.width // 2 if gated else x.width
    y = tape.tensor(output_name or f"{name} output", x.rows, width)

    def backward(order: IssueOrder) -> None:
        read_bytes, phase = x.num_bytes + y.num_bytes, Phase.INPUT_GRADIENT
        order.compute(elementwise(f"{name} gradient", read_bytes, x.num_bytes, phase, reads=(x,)))
        if biased:
            order.compute(bias_gradient(biased, x.num_bytes, x.width * x.element_bytes))

    tape.record(
        name,
        (x,),
        (y,),
        lambda order: order.compute(elementwise(name, x.num_bytes, y.num_bytes, saves=(x,))),
        backward,
        deferred_gradient_bytes=x.num_bytes if biased else 0,
    )
    return y
