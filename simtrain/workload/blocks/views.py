"""Split tensors, concatenate them, and copy them."""

from __future__ import annotations

from simtrain.workload.ops import Phase, Tensor, elementwise
from simtrain.workload.tape import Tape


def split(tape: Tape, x: Tensor, shares: tuple[int, ...], name: str) -> tuple[Tensor, ...]:
    """Record views of consecutive columns. A backward kernel concatenates their gradients.

    Args:
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
    tape.record(name, (x,), views, (), (join,))


def concat(tape: Tape, parts: tuple[Tensor, ...], name: str) -> Tensor:
    """Record the concatenation of tensors. Their gradients are views of its gradient."""
    return _joined(tape, parts, tape.tensor(name, parts[0].rows, sum(part.width for part in parts)))


def split_rows(tape: Tape, x: Tensor, number: int, name: str) -> tuple[Tensor, ...]:
    """Record views of `number` equal parts of the rows; a kernel concatenates their gradients."""
    rows, place = x.rows // number, x.storage
    views = tuple(tape.tensor(f"{name} {i}", rows, x.width, None, place) for i in range(number))
    join_views(tape, x, views, name)
    return views


def concat_rows(tape: Tape, parts: tuple[Tensor, ...], name: str) -> Tensor:
    """Record the concatenation of tensors of equal width, row after row."""
    return _joined(tape, parts, tape.tensor(name, sum(part.rows for part in parts), parts[0].width))


def copy(tape: Tape, x: Tensor, name: str) -> Tensor:
    """Record a copy of a tensor, which stays allocated. Both share one gradient."""
    y = tape.tensor(name, x.rows, x.width)
    op = elementwise(name, x.num_bytes, y.num_bytes, saves=(x,))
    tape.record(name, (x,), (y,), (op,))
    return y


def _joined(tape: Tape, parts: tuple[Tensor, ...], y: Tensor) -> Tensor:
    tape.record(y.name, parts, (y,), (elementwise(f"join {y.name}", y.num_bytes, y.num_bytes),))
    return y
