"""Collectives with independent kernels beside them, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Tensor
from simtrain.workload.tape import Node, Tape

Record = Callable[[], tuple[Tensor, ...]]


def overlap_exchange(
    tape: Tape, exchange: Record, compute: Record, name: str
) -> tuple[Tensor, ...]:
    """Record an exchange and kernels that do not need it, as one node.

    The collectives start first, the kernels run, and then the collectives are waited for; backward
    too. They run at the same time if the overlap policy hides their collectives.

    Args:
        tape: the block's.
        exchange: records collectives and nothing else; each has one input.
        compute: records a chain of nodes, each of which takes what the one before it gives.
        name: of the node.

    Returns the outputs of the exchange, then those of the chain.
    """
    with tape.new_nodes() as exchanges:
        exchanged = exchange()
    with tape.new_nodes() as chain:
        computed = compute()

    def run(order: IssueOrder, passes: tuple[Iterable[Node], Iterable[Node]], half: str) -> None:
        with order.deferring_waits() as handles:
            for node in passes[0]:
                getattr(node, half)(order)
        for node in passes[1]:
            getattr(node, half)(order)
        for handle in handles:
            order.wait(handle)

    tape.record(
        name,
        tuple(tensor for node in (*exchanges, chain[0]) for tensor in node.inputs),
        (*exchanged, *computed),
        lambda order: run(order, (exchanges, chain), "forward"),
        lambda order: run(order, (exchanges[::-1], chain[::-1]), "backward"),
        deferred_gradient_bytes=sum(node.deferred_gradient_bytes for node in chain),
    )
    return *exchanged, *computed
