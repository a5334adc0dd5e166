"""The order in which a rank issues its ops, and their dependencies.

Framework code launches a collective, runs a product, and waits for the collective. Blocks call
`IssueOrder` in the same way, and it records the resulting dependencies. There are four streams:
kernels, data-parallel collectives, collectives between equal shards (HSDP's all-reduce), and other
collectives. Each stream is a FIFO, and a collective also waits for the kernel issued before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TypeAlias

from simtrain.base.mesh import Axis
from simtrain.base.values import dataclass, field
from simtrain.workload.ops import Op, Tensor, elementwise
from simtrain.workload.work import Collective, CollectiveKind, KernelFamily


class Stream(IntEnum):
    """The streams of a GPU."""

    COMPUTE = 0
    COMMUNICATION = 1
    DATA = 2
    SHARDS = 3


def stream_of(op: Op) -> Stream:
    """Return the stream on which an op runs."""
    group = op.work.group if isinstance(op.work, Collective) else op.stream_group
    if group is None:
        return Stream.COMPUTE
    if "dp" not in group.axes:
        return Stream.COMMUNICATION
    return Stream.SHARDS if group.joins_shards else Stream.DATA


class LaunchKind(IntEnum):
    """How the host launches an op.

    CALL: it is the first op of a call of the framework, such as a module's forward pass, a node of
    autograd, or the replay of a CUDA graph. KERNEL: a call launches it after another op. REPLAYED:
    a CUDA graph launches it.
    """

    CALL = 0
    KERNEL = 1
    REPLAYED = 2


@dataclass(frozen=True, slots=True)
class OverlapPolicy:
    """Which collectives overlap compute.

    Args:
        asynchronous: mesh axes; a collective is asynchronous if its group lies along these axes.
        userbuffers: linear layers pipeline their products with their collectives
            (`blocks/linear.py`).
        copies_sequences: a kernel cuts what tensor-parallel ranks reduce-scatter into their parts,
            and one joins what they gather, unless the collective is asynchronous.
    """

    asynchronous: frozenset[Axis] = frozenset({"tp", "cp"})
    userbuffers: bool = False
    copies_sequences: bool = False

    def hides(self, op: Op) -> bool:
        return isinstance(op.work, Collective) and self.asynchronous >= set(op.work.group.axes)

    def copy(self, op: Op, work: Collective, kind: CollectiveKind) -> list[Op]:
        """Return the kernel that copies the array of a collective of this kind, if one does."""
        if not self.copies_sequences or work.kind is not kind or work.group.axes != ("tp",):
            return []
        size, family = work.array_bytes, KernelFamily.STREAM
        return [elementwise(f"{op.name} copy", size, size, op.phase, family=family)]


Handle: TypeAlias = int
"""A collective in flight: its position in the issue order."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Consecutive ops of a rank.

    Args:
        ops: in issue order.
        waits: for each op, positions of the collectives in the segment that it waits for.
        awaited: positions of collectives that the next segment waits for.
        waiting_bytes: for each op, bytes of gradients that exist while a recompute runs.
        launches: how the host launches each op.
        frees: for each op, tensors that are freed after it; empty if the segment frees none.
        pattern: one object in segments that differ in sizes only; made of the others by default.
    """

    ops: tuple[Op, ...]
    waits: tuple[tuple[int, ...], ...]
    awaited: tuple[int, ...]
    waiting_bytes: tuple[int, ...]
    launches: tuple[LaunchKind, ...]
    frees: tuple[tuple[Tensor, ...], ...] = ()
    pattern: object = None

    def __post_init__(self) -> None:
        if self.pattern is None:
            ops = [(op.name, stream_of(op), op.phase, type(op.work)) for op in self.ops]
            launched = self.launches, *(op[_LAUNCHED:] for op in self.ops)
            pattern = _distinct((*ops,), self.waits, self.awaited, launched)
            object.__setattr__(self, "pattern", pattern)


@functools.lru_cache(maxsize=4096)
def _distinct(*pattern: object) -> object:
    return object()  # its hash takes no time


_LAUNCHED = Op._fields.index("informs_host")
"""The first of the fields of an op that tell when and how often the host launches it."""


@dataclass
class IssueOrder:
    """Builds a segment: a block issues its ops here.

    Args:
        overlap: which collectives are asynchronous.
        wanted: ops for which it is false are left out, such as the other half of a split backward
            pass.
        transform: applied to each op that is issued.
        waiting_bytes: bytes of gradients that exist while the ops that are issued now run.
    """

    overlap: OverlapPolicy
    wanted: Callable[[Op], bool] = lambda op: True
    transform: Callable[[Op], Op] = lambda op: op
    waiting_bytes: int = 0
    _ops: list[Op] = field(default_factory=list)
    _waits: list[tuple[int, ...]] = field(default_factory=list)
    _waiting: list[int] = field(default_factory=list)
    _launches: list[LaunchKind] = field(default_factory=list)
    _next_launch: LaunchKind = LaunchKind.CALL
    _graph: object = None
    """The CUDA graph of the call that issues ops; None without one."""
    _awaited: tuple[int, ...] = ()
    _to_wait: list[Handle | None] | None = None
    """Collectives whose waits are deferred (`deferring_waits`)."""

    def begin_call(self, graph: object = None) -> None:
        """Begin a call of the framework, which issues the next ops, or one of a CUDA graph's."""
        if graph is None or graph is not self._graph:
            self._next_launch, self._graph = LaunchKind.CALL, graph

    def compute(self, op: Op) -> None:
        if self.wanted(op):
            self._append(op)
            self._awaited = ()

    def issue(self, ops: Iterable[Op]) -> None:
        """Issue kernels and collectives; wait for each collective (`block`)."""
        for op in ops:
            if isinstance(op.work, Collective):
                self.block(op)
            else:
                self.compute(op)

    def launch(self, op: Op) -> Handle | None:
        assert isinstance(op.work, Collective), "only collectives are launched"
        if op.work.group.num_ranks == 1 or not self.wanted(op):
            return None
        if is_exposed := not self.overlap.hides(op):
            self.issue(self.overlap.copy(op, op.work, CollectiveKind.REDUCE_SCATTER))
        handle = self.position
        self._append(op)
        if is_exposed:
            self.wait(handle)
            self.issue(self.overlap.copy(op, op.work, CollectiveKind.ALL_GATHER))
        return handle

    def wait(self, handle: Handle | None) -> None:
        """Make the next op wait for the collective."""
        if handle is not None and handle not in self._awaited:
            self._awaited += (handle,)

    def block(self, op: Op) -> None:
        """Issue a collective and wait for it, or defer the wait (`deferring_waits`)."""
        handle = self.launch(op)
        if self._to_wait is None:
            self.wait(handle)
        else:
            self._to_wait.append(handle)

    @contextmanager
    def deferring_waits(self) -> Iterator[list[Handle | None]]:
        """Defer the waits of `block` inside the `with` block, and yield the list of handles."""
        outer, self._to_wait = self._to_wait, []
        yield self._to_wait
        self._to_wait = outer

    @contextmanager
    def transforming(self, transform: Callable[[Op], Op], waiting_bytes: int = 0) -> Iterator[None]:
        outer = self.transform, self.waiting_bytes
        self.transform, self.waiting_bytes = transform, waiting_bytes
        yield
        self.transform, self.waiting_bytes = outer

    @contextmanager
    def changing(self, change: Callable[[Op], Op]) -> Iterator[None]:
        """Apply `change` to each op of the `with` block, before `transform`."""
        outer = self.transform
        self.transform = lambda op: outer(change(op))
        yield
        self.transform = outer

    @contextmanager
    def selecting(self, wanted: Callable[[Op], bool]) -> Iterator[None]:
        """Issue only those wanted ops of the `with` block for which `wanted` is true."""
        outer = self.wanted
        self.wanted = lambda op: wanted(op) and outer(op)
        yield
        self.wanted = outer

    @property
    def position(self) -> int:
        return len(self._ops)

    def saved_since(self, position: int) -> set[Tensor]:
        return {tensor for op in self._ops[position:] for tensor in op.saves}

    def change(self, position: int, transform: Callable[[Op], Op]) -> None:
        self._ops[position] = transform(self._ops[position])

    def segment(self) -> Segment:
        ops, waits, waiting = tuple(self._ops), tuple(self._waits), tuple(self._waiting)
        return Segment(ops, waits, self._awaited, waiting, tuple(self._launches))

    def _append(self, op: Op) -> None:
        self._ops.append(self.transform(op))
        self._waits.append(self._awaited)
        self._waiting.append(self.waiting_bytes)
        self._launches.append(self._next_launch)
        self._next_launch = LaunchKind.KERNEL if self._graph is None else LaunchKind.REPLAYED


Emit = Callable[[IssueOrder], None]
"""Issues the ops of a pass."""
