"""Local steps of the dispatch of tokens to experts and back: permute, sort, cast.

Source: Megatron-LM's `permute`, `unpermute` and `sort_chunks_by_idxs` (core/transformer/moe/
moe_utils.py), each as one fused kernel.
"""

from __future__ import annotations

from simtrain.base.mesh import Group
from simtrain.workload.blocks.router import INDEX_BYTES, Routing
from simtrain.workload.ops import Ops, Tensor, collective, elementwise, gradient
from simtrain.workload.tape import Tape
from simtrain.workload.work import CollectiveKind

RoutedTokens = tuple[Tensor, Tensor]
"""Tokens, and their probabilities."""


def permute(
    tape: Tape, x: Tensor, probabilities: Tensor, routing: Routing, rows: int, counts: Group | None
) -> tuple[RoutedTokens, Tensor]:
    """Copy each token once for each of its experts, sorted by expert.

    Args:
        x: tokens.
        probabilities: those of `routing`, or of all ranks if they were gathered.
        routing: the gradient of the permuted probabilities reads both of its tensors
            (`masked_select` of the probabilities by the token map).
        rows: number of copies.
        counts: ranks that exchange the number of tokens for each expert, if they need to.

    Returns:
        The copies with their probabilities, and the order of the copies, which is saved.
    """
    y = tape.tensor("permuted tokens", rows, x.width)
    weights = tape.tensor("permuted probabilities", rows, 1, probabilities.element_bytes)
    order_of = tape.tensor("token order", rows, 1, INDEX_BYTES)

    num_bytes, name = probabilities.num_bytes, "permute probabilities"
    forward: Ops = (
        elementwise("permute", y.num_bytes, y.num_bytes, saves=(order_of,)),
        elementwise(name, num_bytes, weights.num_bytes),
    )
    if counts:
        counts_bytes = INDEX_BYTES * probabilities.width * counts.num_ranks
        gather = collective("token counts", CollectiveKind.ALL_GATHER, counts_bytes, counts)
        forward = gather, *forward
    backward = (
        gradient(name, weights.num_bytes, num_bytes, reads=routing.saved),
        gradient("permute", y.num_bytes, x.num_bytes, reads=(order_of,)),
    )
    tape.record("permute", (x, probabilities), (y, weights), forward, backward)
    return (y, weights), order_of


def unpermute(tape: Tape, x: Tensor, order_of: Tensor, rows: int) -> Tensor:
    """Record the sum, for each token, of its experts' outputs, already weighted."""
    y = tape.tensor("combined tokens", rows, x.width)
    forward = elementwise("unpermute", x.num_bytes, y.num_bytes, saves=(order_of,))
    backward = gradient("unpermute", x.num_bytes, x.num_bytes, reads=(order_of,))
    tape.record("unpermute", (x,), (y,), (forward,), (backward,))
    return y


def sort_chunks(tape: Tape, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Record a kernel that reorders rows by rank or by expert; return the reordered tensors."""
    outputs = tuple(
        tape.tensor(f"{tensor.name} sorted", tensor.rows, tensor.width, tensor.element_bytes)
        for tensor in tensors
    )
    size = sum(tensor.num_bytes for tensor in tensors)
    forward, backward = elementwise(name, size, size), gradient(name, size, size)
    tape.record(name, tensors, outputs, (forward,), (backward,))
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
