"""Dropout and residual sums."""

from __future__ import annotations

from simtrain.workload.blocks.linear import bias_gradient
from simtrain.workload.ops import Op, Ops, Tensor, elementwise, gradient
from simtrain.workload.tape import Tape
from simtrain.workload.work import KernelFamily

MASK_BYTES = 1
"""Bytes of a dropout mask per element (paper, Section 4)."""


def dropout(tape: Tape, x: Tensor, name: str, family: KernelFamily = KernelFamily.FUSED) -> Tensor:
    """Record dropout, which saves its mask."""
    y = tape.tensor(f"{name} output", x.rows, x.width)
    mask = tape.tensor(f"{name} mask", x.rows, x.width, MASK_BYTES)
    size, masked = x.num_bytes, y.num_bytes + mask.num_bytes
    forward = elementwise(name, size, masked, saves=(mask,), family=family)
    backward = gradient(name, masked, size, reads=(mask,), family=family)
    tape.record(name, (x,), (y,), (forward,), (backward,))
    return y


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
    name, size, branches_bytes = (
        f"{label} dropout",
        y.num_bytes,
        sum(branch.num_bytes for branch in branches),
    )
    masked = size + mask.num_bytes
    backward: Ops = (gradient(name, masked, size, reads=(mask,)),)
    if tape.microbatch.kernels.fused_dropout_add:
        # The residual is not counted: the block's norm saves it as its input.
        sizes, held_bytes = (branches_bytes + residual.num_bytes, masked), branches_bytes + masked
        fused = elementwise(f"{name} and residual", *sizes, saves=(mask,), holds_bytes=held_bytes)
        forward: Ops = (fused,)
    else:
        drop = elementwise(name, size, masked, saves=(mask,))
        add_residual = _add_residual((y,), residual, label)
        forward = (*_branch_sum(tape, branches, label, bias=bias), drop, add_residual)
    if bias:
        backward += _bias_gradients(branches, name)
    deferred = y.num_bytes if bias else 0
    inputs = (*branches, residual)
    tape.record(label, inputs, (y,), forward, backward, deferred_gradient_bytes=deferred)
    return y


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
    forward: Ops = (_add_residual(branches, residual, label),)
    if not tape.microbatch.kernels.fused_dropout_add:
        add_residual = _add_residual((y,), residual, label)
        forward = (*_branch_sum(tape, branches, label, bias=bias), add_residual)
    backward = _bias_gradients(branches, f"{label} sum") if bias else ()
    deferred = y.num_bytes if bias else 0
    inputs = (*branches, residual)
    tape.record(label, inputs, (y,), forward, backward, deferred_gradient_bytes=deferred)
    return y


def _add_residual(branches: tuple[Tensor, ...], residual: Tensor, label: str) -> Op:
    """Return the kernel that adds branches to the residual, which the block's norm saves."""
    branches_bytes, size = sum(branch.num_bytes for branch in branches), residual.num_bytes
    return elementwise(
        f"{label} sum", branches_bytes + size, size, holds_bytes=branches_bytes + size
    )


def _branch_sum(tape: Tape, branches: tuple[Tensor, ...], label: str, *, bias: bool) -> Ops:
    """Return kernels that add each branch's bias, and then the branches.

    Products whose results ranks sum cannot add the bias themselves.
    """
    batch, sizes = tape.microbatch, [branch.num_bytes for branch in branches]
    bias = bias and not (batch.kernels.biases_in_products and batch.tensor.num_ranks == 1)
    biases = [elementwise(f"{label} bias", size, size) for size in sizes if bias]
    return (*biases, *(elementwise(f"{label} branches", 2 * size, size) for size in sizes[1:]))


def _bias_gradients(branches: tuple[Tensor, ...], name: str) -> Ops:
    return tuple(bias_gradient(name, branch) for branch in branches)
