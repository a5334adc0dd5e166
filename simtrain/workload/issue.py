"""The order in which a rank issues its ops, and what each waits for.

The code of a framework reads: launch a collective, run a product, wait for the collective.
`IssueOrder` is written the same way and records the dependencies that follow. Kernels run on one
stream, collectives over data parallelism on a second, those between equal shards on another (as
FSDP2's all-reduce), other collectives on one of their own. Each stream is first in, first out, and
a collective also waits for the kernel issued before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum

from simtrain.mesh import Axis
from simtrain.workload.ops import Op, Tensor
from simtrain.workload.work import Collective


class Stream(IntEnum):
    """The streams of a rank's device."""

    COMPUTE = 0
    COMMUNICATION = 1
    DATA = 2
    SHARDS = 3


def stream_of(op: Op) -> Stream:
    """The stream on which an op runs."""
    group = op.work.group if isinstance(op.work, Collective) else op.stream_group
    if group is None:
        return Stream.COMPUTE
    if "dp" not in group.axes:
        return Stream.COMMUNICATION
    return Stream.SHARDS if group.joins_shards else Stream.DATA


@dataclass(frozen=True, slots=True)
class OverlapPolicy:
    """Which collectives are asynchronous: those over groups that lie along these axes.

    With `userbuffers` linear layers pipeline their products with their collectives
    (`blocks.userbuffers`).
    """

    asynchronous: frozenset[Axis] = frozenset({"tp", "cp"})
    userbuffers: bool = False

    def hides(self, op: Op) -> bool:
        """Whether `launch` returns before the collective has ended."""
        return isinstance(op.work, Collective) and self.asynchronous >= set(op.work.group.axes)


@dataclass(frozen=True, slots=True)
class Handle:
    """A collective in flight, by its position in the issue order."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Consecutive ops of a rank.

    Args:
        ops: in issue order.
        waits: for each op, the positions of collectives in the segment that it waits for.
        awaited: positions of collectives that whatever comes next waits for.
        waiting_bytes: of a gradient that exists beside each op, until ops have been run again.
        frees: tensors that each op is the last to read; empty for a forward pass.
    """

    ops: tuple[Op, ...]
    waits: tuple[tuple[int, ...], ...]
    awaited: tuple[int, ...]
    waiting_bytes: tuple[int, ...]
    frees: tuple[tuple[Tensor, ...], ...] = ()


@dataclass
class IssueOrder:
    """Builds a segment."""

    overlap: OverlapPolicy
    wanted: Callable[[Op], bool] = lambda op: True
    """Leaves out ops, such as those of the other half of a split backward pass."""
    transform: Callable[[Op], Op] = lambda op: op
    """Changes each op that is issued now."""
    waiting_bytes: int = 0
    """Of a gradient that exists beside the ops that are issued now."""
    _ops: list[Op] = field(default_factory=list)
    _waits: list[tuple[int, ...]] = field(default_factory=list)
    _waiting: list[int] = field(default_factory=list)
    _awaited: tuple[int, ...] = ()
    _to_wait: list[Handle | None] | None = None
    """Collectives that are waited for later, if `block` does not."""

    def compute(self, op: Op) -> None:
        """Run a kernel on the compute stream once all awaited collectives have ended."""
        if self.wanted(op):
            self._append(op)
            self._awaited = ()

    def compute_all(self, ops: Iterable[Op]) -> None:
        """Run kernels one after another."""
        for op in ops:
            self.compute(op)

    def launch(self, op: Op) -> Handle | None:
        """Start a collective on what has been computed so far; a rank alone has none."""
        assert isinstance(op.work, Collective), "only collectives are launched"
        if op.work.group.num_ranks == 1 or not self.wanted(op):
            return None
        self._append(op)
        handle = Handle(len(self._ops) - 1)
        if not self.overlap.hides(op):
            self.wait(handle)
        return handle

    def wait(self, handle: Handle | None) -> None:
        """Let whatever is issued next start only when the collective has ended."""
        if handle is not None and handle.position not in self._awaited:
            self._awaited += (handle.position,)

    def block(self, op: Op) -> None:
        """A collective that nothing hides, except within `deferring_waits`."""
        handle = self.launch(op)
        if self._to_wait is None:
            self.wait(handle)
        else:
            self._to_wait.append(handle)

    @contextmanager
    def deferring_waits(self) -> Iterator[list[Handle | None]]:
        """Within, `block` adds to a list instead of waiting."""
        outer, self._to_wait = self._to_wait, []
        yield self._to_wait
        self._to_wait = outer

    @contextmanager
    def transforming(self, transform: Callable[[Op], Op], waiting_bytes: int = 0) -> Iterator[None]:
        """Within, each op is changed, while a gradient of `waiting_bytes` exists beside it."""
        outer = self.transform, self.waiting_bytes
        self.transform, self.waiting_bytes = transform, waiting_bytes
        yield
        self.transform, self.waiting_bytes = outer

    @property
    def position(self) -> int:
        """Ops issued so far."""
        return len(self._ops)

    def saved_since(self, position: int) -> set[Tensor]:
        """Tensors that the ops from a position on save."""
        return {tensor for op in self._ops[position:] for tensor in op.saves}

    def change(self, position: int, transform: Callable[[Op], Op]) -> None:
        """Change an op that has been issued."""
        self._ops[position] = transform(self._ops[position])

    def segment(self) -> Segment:
        """All ops so far."""
        ops, waits, waiting = tuple(self._ops), tuple(self._waits), tuple(self._waiting)
        return Segment(ops, waits, self._awaited, waiting)

    def _append(self, op: Op) -> None:
        self._ops.append(self.transform(op))
        self._waits.append(self._awaited)
        self._waiting.append(self.waiting_bytes)
