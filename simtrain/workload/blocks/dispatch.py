"""Local steps of the dispatch of tokens to experts and back: permute, sort, cast.

Source: Megatron-LM's `permute`, `unpermute` and `sort_chunks_by_idxs` (core/transformer/moe/
moe_utils.py), each as one fused kernel.
"""

from __future__ import annotations

from simtrain.workload.blocks.router import INDEX_BYTES
from simtrain.workload.ops import Ops, Tensor, elementwise, gradient
from simtrain.workload.tape import Tape

RoutedTokens = tuple[Tensor, Tensor]
"""Tokens, and their probabilities."""


def permute(
    tape: Tape,
    x: Tensor,
    probabilities: Tensor,
    saved: tuple[Tensor, ...],
    rows: int,
    before: Ops = (),
    *,
    row_bytes: int | None = None,
    needs_host: bool = False,
) -> tuple[RoutedTokens, Tensor]:
    """Copy each token once for each of its experts, sorted by expert.

    Args:
        x: tokens.
        probabilities: of their experts.
        saved: what the gradient of the permuted probabilities reads (`masked_select` of the
            probabilities by the token map).
        rows: number of copies.
        before: ops that find the number of copies.
        row_bytes: bytes of a row, if it is not in the type of `x` (fp8).
        needs_host: the host needs this number before it launches the kernels.

    Returns:
        The copies with their probabilities, and the order of the copies, which is saved.
    """
    y = tape.tensor("permuted tokens", rows, x.width)
    weights = tape.tensor("permuted probabilities", rows, 1, probabilities.element_bytes)
    order_of = tape.tensor("token order", rows, 1, INDEX_BYTES)

    num_bytes, name = probabilities.num_bytes, "permute probabilities"
    moved_bytes = y.num_bytes if row_bytes is None else rows * row_bytes
    copies = elementwise("permute", moved_bytes, moved_bytes, saves=(order_of,))
    forward: Ops = (
        *before,
        copies.replace(needs_host=needs_host),
        elementwise(name, num_bytes, weights.num_bytes),
    )
    backward = (
        gradient(name, weights.num_bytes, num_bytes, reads=saved),
        gradient("permute", y.num_bytes, x.num_bytes, reads=(order_of,)),
    )
    tape.record("permute", (x, probabilities), (y, weights), forward, backward)
    return (y, weights), order_of


def unpermute(
    tape: Tape, x: Tensor, order_of: Tensor, rows: int, *, gradient_bytes: int | None = None
) -> Tensor:
    """Record the sum, for each token, of its experts' outputs, already weighted.

    `gradient_bytes` are the bytes of a row of the gradient, if they are not those of `x` (fp8).
    """
    y = tape.tensor("combined tokens", rows, x.width)
    forward = elementwise("unpermute", x.num_bytes, y.num_bytes, saves=(order_of,))
    moved_bytes = x.num_bytes if gradient_bytes is None else x.rows * gradient_bytes
    backward = gradient("unpermute", moved_bytes, moved_bytes, reads=(order_of,))
    tape.record("unpermute", (x,), (y,), (forward,), (backward,))
    return y


def sort_chunks(
    tape: Tape, tensors: tuple[Tensor, ...], name: str, *, needs_host: bool = False
) -> tuple[Tensor, ...]:
    """Record a kernel that reorders rows by rank or by expert; return the reordered tensors.

    `needs_host` is as in `Op`, for the forward pass.
    """
    outputs = tuple(
        tape.tensor(f"{tensor.name} sorted", tensor.rows, tensor.width, tensor.element_bytes)
        for tensor in tensors
    )
    size = sum(tensor.num_bytes for tensor in tensors)
    forward = elementwise(name, size, size).replace(needs_host=needs_host)
    tape.record(name, tensors, outputs, (forward,), (gradient(name, size, size),))
    return outputs


def cast(tape: Tape, x: Tensor, element_bytes: int) -> Tensor:
    """Record a cast to another type, unless `x` has this type."""
    if x.element_bytes == element_bytes:
        return x
    y = tape.tensor(f"{x.name} cast", x.rows, x.width, element_bytes)
    forward = elementwise(y.name, x.num_bytes, y.num_bytes)
    backward = gradient(y.name, y.num_bytes, x.num_bytes)
    tape.record(y.name, (x,), (y,), (forward,), (backward,))
    return y
