"""Local steps of the dispatch of tokens to experts and back: permute, sort, cast.

Source: Megatron-LM's `permute`, `unpermute` and `sort_chunks_by_idxs` (core/transformer/moe/
moe_utils.py), each as one fused kernel.
"""

from __future__ import annotations

from simtrain.mesh import Group
from simtrain.workload.blocks.router import INDEX_BYTES, Routing
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Tape
from simtrain.workload.work import Collective, CollectiveKind

RoutedTokens = tuple[Tensor, Tensor]
"""Tokens, and their probabilities."""


def permute(
    tape: Tape, x: Tensor, probabilities: Tensor, routing: Routing, rows: int, counts: Group | None
) -> tuple[RoutedTokens, Tensor]:
    """Copy each token once for each of its experts, sorted by expert.

    Args:
        tape: the tape of the block.
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

    def forward(order: IssueOrder) -> None:
        """Issue the gather of token counts and the copies into the experts' order."""
        if counts:
            num_bytes = INDEX_BYTES * probabilities.width * counts.num_ranks
            work = Collective(CollectiveKind.ALL_GATHER, num_bytes, counts)
            order.block(collective("token counts", work))
        order.compute(elementwise("permute", y.num_bytes, y.num_bytes, saves=(order_of,)))
        name, read_bytes = "permute probabilities", probabilities.num_bytes
        order.compute(elementwise(name, read_bytes, weights.num_bytes))

    def backward(order: IssueOrder) -> None:
        """Issue the copies back into the tokens' order."""
        phase, name = Phase.INPUT_GRADIENT, "permute probabilities gradient"
        written, reads = probabilities.num_bytes, routing.saved
        order.compute(elementwise(name, weights.num_bytes, written, phase, reads=reads))
        name = "permute gradient"
        order.compute(elementwise(name, y.num_bytes, x.num_bytes, phase, reads=(order_of,)))

    tape.record("permute", (x, probabilities), (y, weights), forward, backward)
    return (y, weights), order_of


def unpermute(tape: Tape, x: Tensor, order_of: Tensor, rows: int) -> Tensor:
    """Record the sum, for each token, of its experts' outputs, already weighted."""
    y = tape.tensor("combined tokens", rows, x.width)

    def forward(order: IssueOrder) -> None:
        order.compute(elementwise("unpermute", x.num_bytes, y.num_bytes, saves=(order_of,)))

    def backward(order: IssueOrder) -> None:
        name, phase = "unpermute gradient", Phase.INPUT_GRADIENT
        order.compute(elementwise(name, x.num_bytes, x.num_bytes, phase, reads=(order_of,)))

    tape.record("unpermute", (x,), (y,), forward, backward)
    return y


def sort_chunks(tape: Tape, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Record a kernel that reorders rows by rank or by expert; return the reordered tensors."""
    outputs = tuple(
        tape.tensor(f"{one.name} sorted", one.rows, one.width, one.element_bytes) for one in tensors
    )
    size = sum(one.num_bytes for one in tensors)
    gradient = elementwise(f"{name} gradient", size, size, Phase.INPUT_GRADIENT)
    tape.record(
        name,
        tensors,
        outputs,
        lambda order: order.compute(elementwise(name, size, size)),
        lambda order: order.compute(gradient),
    )
    return outputs


def cast(tape: Tape, x: Tensor, element_bytes: int) -> Tensor:
    """Record a cast to another type, unless `x` has this type."""
    if x.element_bytes == element_bytes:
        return x
    y = tape.tensor(f"{x.name} cast", x.rows, x.width, element_bytes)
    forward = elementwise(f"{x.name} cast", x.num_bytes, y.num_bytes)
    name, phase = f"{x.name} cast gradient", Phase.INPUT_GRADIENT
    return tape.kernel(x, y, forward, elementwise(name, y.num_bytes, x.num_bytes, phase))
