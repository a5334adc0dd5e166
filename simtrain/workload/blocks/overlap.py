"""Collectives that overlap independent kernels, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Tensor
from simtrain.workload.tape import Node, Tape

Record = Callable[[], tuple[Tensor, ...]]


def overlap_exchange(
    tape: Tape, exchange: Record, compute: Record, name: str
) -> tuple[Tensor, ...]:
    """Record an exchange and kernels that do not depend on it, as one node.

    In each direction, the collectives are launched, the kernels run, and the next op waits for the
    collectives. They overlap if the overlap policy makes the collectives asynchronous.

    Args:
        exchange: records only collectives, with one input each.
        compute: records a chain of nodes, each of which reads the output of the previous one.
        name: name of the node.

    Returns:
        The outputs of the exchange, then the outputs of the chain.
    """
    with tape.new_nodes() as exchanges:
        exchanged = exchange()
    with tape.new_nodes() as chain:
        computed = compute()

    def run(order: IssueOrder, passes: tuple[Iterable[Node], Iterable[Node]], half: str) -> None:
        """Issue half a pass: launch the exchange, compute, then wait for it."""
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
