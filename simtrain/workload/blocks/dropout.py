"""Dropout and residual sums."""

from __future__ import annotations

from simtrain.workload.blocks.linear import bias_gradient
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Phase, Tensor, elementwise
from simtrain.workload.tape import Tape

MASK_BYTES = 1
"""A dropout mask keeps one byte an element (paper, Section 4)."""


def dropout(tape: Tape, x: Tensor, name: str) -> Tensor:
    """Dropout alone; saves its mask."""
    y = tape.tensor(f"{name} output", x.rows, x.width)
    mask = tape.tensor(f"{name} mask", x.rows, x.width, MASK_BYTES)
    size, masked, gradient = x.num_bytes, y.num_bytes + mask.num_bytes, Phase.INPUT_GRADIENT
    return tape.kernel(
        x,
        y,
        elementwise(name, size, masked, saves=(mask,)),
        elementwise(f"{name} gradient", masked, size, gradient, reads=(mask,)),
    )


def dropout_add(
    tape: Tape, x: Tensor, residual: Tensor, label: str, *, bias: bool = True
) -> Tensor:
    """Bias, dropout and residual in one kernel (Megatron's `bias_dropout_add_fused_train`)."""
    y = tape.tensor(f"{label} output with residual", x.rows, x.width)
    mask = tape.tensor(f"{label} dropout mask", x.rows, x.width, MASK_BYTES)

    def forward(order: IssueOrder) -> None:
        order.compute(
            elementwise(
                f"{label} dropout and residual",
                x.num_bytes + residual.num_bytes,
                y.num_bytes + mask.num_bytes,
                saves=(mask,),
                # Of what it reads, the residual is the input of the block's norm, and saved.
                holds_bytes=x.num_bytes + y.num_bytes + mask.num_bytes,
            )
        )

    def backward(order: IssueOrder) -> None:
        read_bytes = y.num_bytes + mask.num_bytes
        name, phase = f"{label} dropout gradient", Phase.INPUT_GRADIENT
        order.compute(elementwise(name, read_bytes, x.num_bytes, phase, reads=(mask,)))
        if bias:
            width_bytes = x.width * x.element_bytes
            order.compute(bias_gradient(f"{label} dropout", x.num_bytes, width_bytes))

    tape.record(
        label,
        (x, residual),
        (y,),
        forward,
        backward,
        deferred_gradient_bytes=x.num_bytes if bias else 0,
    )
    return y


def add(tape: Tape, x: Tensor, residual: Tensor, label: str, *, bias: bool = False) -> Tensor:
    """The sum of two tensors, and of a bias, in one kernel; their gradients are that of the sum."""
    y = tape.tensor(f"{label} sum", x.rows, x.width)
    read_bytes = x.num_bytes + residual.num_bytes
    # The residual is the input of the block's norm, and saved.
    held = x.num_bytes + y.num_bytes

    def forward(order: IssueOrder) -> None:
        order.compute(elementwise(f"{label} sum", read_bytes, y.num_bytes, holds_bytes=held))

    def backward(order: IssueOrder) -> None:
        if bias:
            order.compute(bias_gradient(f"{label} sum", x.num_bytes, x.width * x.element_bytes))

    deferred = x.num_bytes if bias else 0
    tape.record(label, (x, residual), (y,), forward, backward, deferred_gradient_bytes=deferred)
    return y
