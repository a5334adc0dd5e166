"""Dropout and residual sums."""

from __future__ import annotations

from simtrain.workload.blocks.linear import bias_gradient
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.tape import Emit, Tape
from simtrain.workload.work import KernelFamily

MASK_BYTES = 1
"""Bytes of a dropout mask per element (paper, Section 4)."""


def dropout(tape: Tape, x: Tensor, name: str, family: KernelFamily = KernelFamily.FUSED) -> Tensor:
    """Record dropout, which saves its mask."""
    y = tape.tensor(f"{name} output", x.rows, x.width)
    mask = tape.tensor(f"{name} mask", x.rows, x.width, MASK_BYTES)
    size, masked, gradient = x.num_bytes, y.num_bytes + mask.num_bytes, Phase.INPUT_GRADIENT
    return tape.kernel(
        x,
        y,
        elementwise(name, size, masked, saves=(mask,), family=family),
        elementwise(f"{name} gradient", masked, size, gradient, reads=(mask,), family=family),
    )


def dropout_add(
    tape: Tape,
    branches: Tensor | tuple[Tensor, ...],
    residual: Tensor,
    label: str,
    *,
    bias: bool = True,
) -> Tensor:
    """Record bias, dropout and residual sum in one kernel (`bias_dropout_add_fused_train`).

    Several `branches` are summed before the dropout in the same kernel, as Transformer Engine does
    for parallel attention and MLP. Each branch has a bias. A software stack without this kernel
    runs one kernel per step, with the same backward kernels.
    """
    branches = branches if isinstance(branches, tuple) else (branches,)
    y = tape.tensor(f"{label} output with residual", residual.rows, residual.width)
    mask = tape.tensor(f"{label} dropout mask", residual.rows, residual.width, MASK_BYTES)
    size, given = y.num_bytes, sum(branch.num_bytes for branch in branches)
    masked = size + mask.num_bytes
    # The residual is not counted: the block's norm saves it as its input.
    fused = elementwise(
        f"{label} dropout and residual",
        given + residual.num_bytes,
        masked,
        saves=(mask,),
        holds_bytes=given + masked,
    )
    drop = elementwise(f"{label} dropout", size, masked, saves=(mask,))
    steps = (*_branch_sum(branches, label, bias=bias), drop, _add_residual((y,), residual, label))
    ops = (fused,) if tape.microbatch.kernels.fused_dropout_add else steps

    def backward(order: IssueOrder) -> None:
        name, phase = f"{label} dropout gradient", Phase.INPUT_GRADIENT
        order.compute(elementwise(name, masked, size, phase, reads=(mask,)))
        if bias:
            _bias_gradients(order, f"{label} dropout", branches)

    return _sum(tape, branches, residual, y, ops, backward, label=label, bias=bias)


def add(
    tape: Tape,
    branches: Tensor | tuple[Tensor, ...],
    residual: Tensor,
    label: str,
    *,
    bias: bool = False,
) -> Tensor:
    """Record the sum of tensors and their biases in one kernel, which needs no backward kernel.

    A software stack without this kernel adds them one after another.
    """
    branches = branches if isinstance(branches, tuple) else (branches,)
    y = tape.tensor(f"{label} sum", residual.rows, residual.width)
    steps = (*_branch_sum(branches, label, bias=bias), _add_residual((y,), residual, label))
    fused = (_add_residual(branches, residual, label),)
    ops = fused if tape.microbatch.kernels.fused_dropout_add else steps

    def backward(order: IssueOrder) -> None:
        if bias:
            _bias_gradients(order, f"{label} sum", branches)

    return _sum(tape, branches, residual, y, ops, backward, label=label, bias=bias)


def _add_residual(branches: tuple[Tensor, ...], residual: Tensor, label: str) -> Op:
    """Return the kernel that adds branches to the residual, which the block's norm saves."""
    given, size = sum(branch.num_bytes for branch in branches), residual.num_bytes
    return elementwise(f"{label} sum", given + size, size, holds_bytes=given + size)


def _branch_sum(branches: tuple[Tensor, ...], label: str, *, bias: bool) -> tuple[Op, ...]:
    """Return kernels that add each branch's bias, and then the branches."""
    sizes = [branch.num_bytes for branch in branches]
    biases = [elementwise(f"{label} bias", size, size) for size in sizes if bias]
    return (*biases, *(elementwise(f"{label} branches", 2 * size, size) for size in sizes[1:]))


def _bias_gradients(order: IssueOrder, name: str, branches: tuple[Tensor, ...]) -> None:
    for branch in branches:
        order.compute(bias_gradient(name, branch.num_bytes, branch.width * branch.element_bytes))


def _sum(
    tape: Tape,
    branches: tuple[Tensor, ...],
    residual: Tensor,
    y: Tensor,
    ops: tuple[Op, ...],
    backward: Emit,
    *,
    label: str,
    bias: bool,
) -> Tensor:
    deferred = y.num_bytes if bias else 0
    inputs = (*branches, residual)
    tape.record(
        label,
        inputs,
        (y,),
        lambda order: order.compute_all(ops),
        backward,
        deferred_gradient_bytes=deferred,
    )
    return y
