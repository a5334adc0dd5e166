"""Split tensors by columns, and concatenate them."""

from __future__ import annotations

from simtrain.workload.ops import Phase, Tensor, elementwise
from simtrain.workload.tape import Tape


def split(tape: Tape, x: Tensor, shares: tuple[int, ...], name: str) -> tuple[Tensor, ...]:
    """Record views of consecutive columns. A backward kernel concatenates their gradients.

    Args:
        tape: the tape of the block.
        x: any tensor.
        shares: widths of the views, or numbers proportional to them: 3h and 2f for a tensor of
            width (3h + 2f) / t.
        name: name of the views and of the kernel.
    """
    widths = [x.width * share // sum(shares) for share in shares]
    views = tuple(tape.tensor(f"{name} {i}", x.rows, width) for i, width in enumerate(widths))
    join_views(tape, x, views, name)
    return views


def join_views(tape: Tape, x: Tensor, views: tuple[Tensor, ...], name: str) -> None:
    """Record that `views` are views of `x`. A backward kernel concatenates their gradients."""
    size = x.num_bytes
    join = elementwise(f"join {name} gradients", size, size, Phase.INPUT_GRADIENT)
    tape.record(name, (x,), views, lambda order: None, lambda order: order.compute(join))


def concat(tape: Tape, parts: tuple[Tensor, ...], name: str) -> Tensor:
    """Record the concatenation of tensors. Their gradients are views of its gradient."""
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
