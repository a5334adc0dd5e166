"""The order in which a rank issues its ops, and what each waits for.

The code of a framework reads: launch a collective, run a product, wait for the collective.
`IssueOrder` is written the same way and records the dependencies that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simtrain.workload.ops import (
    Collective,
    ComputeOp,
    Group,
    Op,
    as_recompute,
    saved_bytes,
)


class Node(NamedTuple):
    """An op in issue order; `after` are the positions of the ops that it waits for.

    `layer` is the chunk's layer whose tensors it saves and releases, -1 outside of all layers.
    `waiting_bytes` are those of a gradient that waits until the op has been run again.
    Compute ops also wait for the compute op before them, and collectives for the collective
    before them, over data parallelism and over others: each of the three kinds runs on a stream of
    its own, first in, first out.
    """

    op: Op
    after: tuple[int, ...] = ()
    layer: int = -1
    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Handle:
    """A collective in flight."""

    position: int


@dataclass
class IssueOrder:
    """Builds the nodes of a chunk's forward or backward pass."""

    hide: bool = True
    """Whether `launch` is asynchronous (overlap.tensor_parallel); if not, it blocks."""
    hide_data: bool = False
    """The same for collectives over data parallelism (overlap.data_parallel)."""
    nodes: list[Node] = field(default_factory=list)
    layer_ends: list[int] = field(default_factory=list)
    layer: int = -1
    """The layer that is issued now."""
    waiting_bytes: int = 0
    """Of the gradient that waits for what is run again now."""
    _last_compute: int | None = None
    _awaited: tuple[int, ...] = ()
    _mark: Callable[[Op], Op] = field(default=lambda op: op)

    def compute(self, op: ComputeOp) -> None:
        """Run a kernel on the compute stream once all awaited collectives have ended."""
        self._append(op, self._awaited)
        self._awaited = ()
        self._last_compute = len(self.nodes) - 1

    def launch(self, op: Collective) -> Handle | None:
        """Start a collective on what has been computed so far; alone, a rank has none."""
        if op.group_size == 1:
            return None
        produced_by = () if self._last_compute is None else (self._last_compute,)
        self.nodes.append(
            Node(self._mark(op), produced_by + self._awaited, self.layer, self.waiting_bytes)
        )
        handle = Handle(len(self.nodes) - 1)
        if not (self.hide_data if op.group is Group.DATA else self.hide):
            self.wait(handle)
        return handle

    def wait(self, handle: Handle | None) -> None:
        """Let whatever is issued next start only when the collective has ended."""
        if handle is not None and handle.position not in self._awaited:
            self._awaited += (handle.position,)

    def block(self, op: Collective) -> None:
        """A collective that nothing hides."""
        self.wait(self.launch(op))

    @contextmanager
    def recomputing(self, waiting_bytes: int) -> Iterator[None]:
        """Within, ops are run again for the backward pass, while a gradient waits for them."""
        self.waiting_bytes = waiting_bytes
        yield from self._with_mark(as_recompute)
        self.waiting_bytes = 0

    @contextmanager
    def checkpointing(self, *, keep_input: bool) -> Iterator[None]:
        """Within, nothing is kept but, by its first op, the input of the checkpointed unit."""
        first = len(self.nodes) if keep_input else None
        yield from self._with_mark(
            lambda op: op if len(self.nodes) == first else replace(op, saved=())
        )

    @contextmanager
    def in_layer(self, number: int, *, ends: bool = True) -> Iterator[None]:
        """Within, a layer's work is issued; `ends` says that it is its last."""
        self.layer = number
        yield
        self.layer = -1
        if ends:
            self.layer_ends.append(len(self.nodes))

    def ops(self) -> tuple[Op, ...]:
        """All ops, in issue order."""
        return tuple(node.op for node in self.nodes)

    def saved_bytes(self) -> int:
        """Bytes kept until the backward pass; each layer has tensors of its own."""
        layers: dict[int, list[Op]] = {}
        for node in self.nodes:
            layers.setdefault(node.layer, []).append(node.op)
        return sum(saved_bytes(tuple(ops)) for ops in layers.values())

    def _append(self, op: Op, after: tuple[int, ...]) -> None:
        self.nodes.append(Node(self._mark(op), after, self.layer, self.waiting_bytes))

    def _with_mark(self, mark: Callable[[Op], Op]) -> Iterator[None]:
        outer, self._mark = self._mark, mark
        yield
        self._mark = outer
