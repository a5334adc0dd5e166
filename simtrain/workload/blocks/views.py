"""Tensors cut side by side, and put side by side."""

from __future__ import annotations

from simtrain.workload.ops import Phase, Tensor, elementwise
from simtrain.workload.tape import Tape


def split(tape: Tape, x: Tensor, shares: tuple[int, ...], name: str) -> tuple[Tensor, ...]:
    """Views of consecutive columns, whose gradients are joined by a kernel.

    Args:
        x: any rows.
        shares: widths of the views, or what they are in proportion to: 3h and 2f of a tensor that
            is (3h + 2f) / t wide.
        name: of the views and of the kernel.
    """
    widths = [x.width * share // sum(shares) for share in shares]
    views = tuple(tape.tensor(f"{name} {i}", x.rows, width) for i, width in enumerate(widths))
    join_views(tape, x, views, name)
    return views


def join_views(tape: Tape, x: Tensor, views: tuple[Tensor, ...], name: str) -> None:
    """Record that tensors are views of one, whose gradient a kernel joins from theirs."""
    size = x.num_bytes
    join = elementwise(f"join {name} gradients", size, size, Phase.INPUT_GRADIENT)
    tape.record(name, (x,), views, lambda order: None, lambda order: order.compute(join))


def concat(tape: Tape, parts: tuple[Tensor, ...], name: str) -> Tensor:
    """A copy of all parts side by side; their gradients are views of its gradient."""
    y = tape.tensor(name, parts[0].rows, sum(part.width for part in parts))
    size = y.num_bytes
    tape.record(
        name,
        parts,
        (y,),
        lambda order: order.compute(elementwise(f"join {name}", size, size)),
        lambda order: None,
    )
    return y
