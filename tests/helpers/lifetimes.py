"""Bytes of kernels, from a table of the arrays that each one reads, writes and frees."""

from collections import Counter
from collections.abc import Iterable

from simtrain.workload.ops import Op
from simtrain.workload.work import Elementwise

Bytes = tuple[str, int, int, int]
"""Of a kernel: its name, and the bytes that it reads, that it writes, and that exist meanwhile."""


def by_hand(table: str, sizes: dict[str, int], before: str = "") -> list[Bytes]:
    """Count the bytes of each line "name: reads > writes + others - freed".

    Words are arrays, by the names of their sizes. A written array exists until it is freed, those
    of `before` from the start, and others from the kernel on. One in brackets is written into an
    array that exists.
    """
    exist, rows = Counter(before.split()), []

    for line in filter(None, table.splitlines()):
        name, _, moves = line.partition(":")
        moves, _, freed = moves.partition(" - ")
        moves, _, others = moves.partition(" + ")
        read, written = (part.split() for part in moves.split(">"))
        exist.update(word for word in (*written, *others.split()) if word in sizes)
        moved = (sum(sizes[word.strip("()")] for word in words) for words in (read, written))
        rows.append((name.strip(), *moved, sum(sizes[word] * exist[word] for word in exist)))
        exist.subtract(freed.split())

    return rows


def bytes_of(ops: Iterable[Op]) -> list[Bytes]:
    """Return the bytes of each op; those that products and collectives move count as none."""
    rows = []

    for op in ops:
        kernel = op.work if isinstance(op.work, Elementwise) else Elementwise(0, 0)
        rows.append((op.name, kernel.read_bytes, kernel.write_bytes, op.holds_bytes))

    return rows


def moved(ops: Iterable[Op]) -> dict[str, tuple[int, int]]:
    """Return the bytes that each kernel reads and writes, by name."""
    works = ((op.name, op.work) for op in ops)
    return {x: (y.read_bytes, y.write_bytes) for x, y in works if isinstance(y, Elementwise)}
