"""Ops: units of work that a rank issues, with their effect on its memory."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple, Self

from simtrain.base.mesh import Group
from simtrain.base.values import dataclass
from simtrain.workload.work import (
    Collective,
    CollectiveKind,
    Elementwise,
    KernelFamily,
    Product,
    Work,
)


class Phase(StrEnum):
    """The part of the iteration that an op belongs to."""

    __hash__ = str.__hash__  # quick

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor on one rank: `rows` × `width` elements.

    `number` is unique within a block. Views of one `storage` are freed together.
    """

    name: str
    rows: int
    width: int
    element_bytes: int
    number: int
    storage: int

    def __hash__(self) -> int:
        # A search asks for millions, and the number tells the tensors of a block apart.
        return self.number

    @property
    def elements(self) -> int:
        return self.rows * self.width

    @property
    def num_bytes(self) -> int:
        return self.rows * self.width * self.element_bytes


class Op(NamedTuple):
    """Work that a rank issues, and the tensors that it saves and reads.

    It is a tuple, because a search makes millions: a frozen dataclass takes four times as long.

    Args:
        name: name in reports.
        work: determines the duration.
        phase: part of the iteration.
        saves: tensors that stay allocated until the last op that reads them.
        reads: saved tensors that it reads.
        holds_bytes: activations and gradients that exist while it runs. They include the tensors
            that it saves or frees if `counts_saved`, and exclude them otherwise.
        counts_saved: see `holds_bytes`.
        buffer_bytes: bytes that it needs of the framework's global memory buffer.
        is_extra: an all-gather that Table 2 does not count, or the copy into its userbuffer: of
            sequence parallelism in the backward pass (paper, Section 4.2.2).
        stream_group: for a kernel on the stream of a group's collectives, that group.
        informs_host: the host reads its result.
        needs_host: the host launches it only after the last op before it that informs the host has
            ended.
        num_kernels: kernels that the host launches for it.
        num_slices: of a list of tensors, which the host copies one by one in a loop of PyTorch's.
    """

    name: str
    work: Work
    phase: Phase
    saves: tuple[Tensor, ...] = ()
    reads: tuple[Tensor, ...] = ()
    holds_bytes: int = 0
    counts_saved: bool = True
    buffer_bytes: int = 0
    is_extra: bool = False
    stream_group: Group | None = None
    informs_host: bool = False
    needs_host: bool = False
    num_kernels: int = 1
    num_slices: int = 0

    def working_bytes(self, own_bytes: int) -> int:
        """Bytes that exist while it runs, besides saved tensors; it saves or frees `own_bytes`."""
        return max(0, self.holds_bytes - own_bytes) if self.counts_saved else self.holds_bytes

    def replace(self, **changes: Any) -> Self:
        return self._replace(**changes)


Ops = tuple[Op, ...]


def elementwise(
    name: str,
    read_bytes: int,
    write_bytes: int,
    phase: Phase = Phase.FORWARD,
    *,
    saves: tuple[Tensor, ...] = (),
    reads: tuple[Tensor, ...] = (),
    holds_bytes: int | None = None,
    family: KernelFamily = KernelFamily.FUSED,
) -> Op:
    """Return the op of a memory-bound kernel.

    By default all bytes that it moves count as activations or gradients. Pass `holds_bytes` for a
    kernel on parameters, for one that skips half of a triangle, or if other tensors exist too.
    """
    is_backward = phase is not Phase.FORWARD
    work = Elementwise(read_bytes, write_bytes, family, is_backward)
    holds = work.moved_bytes if holds_bytes is None else holds_bytes
    return Op(name, work, phase, saves, reads, holds)


def gradient(
    name: str,
    read_bytes: int,
    write_bytes: int,
    *,
    reads: tuple[Tensor, ...] = (),
    holds_bytes: int | None = None,
    family: KernelFamily = KernelFamily.FUSED,
) -> Op:
    """Return the memory-bound kernel of an input gradient, `name` with "gradient" appended."""
    phase, name = Phase.INPUT_GRADIENT, f"{name} gradient"
    moved = read_bytes, write_bytes
    return elementwise(name, *moved, phase, reads=reads, holds_bytes=holds_bytes, family=family)


def collective(
    name: str,
    kind: CollectiveKind,
    array_bytes: int,
    group: Group,
    phase: Phase = Phase.FORWARD,
    *,
    saves: tuple[Tensor, ...] = (),
    holds_bytes: int | None = None,
    buffer_bytes: int = 0,
) -> Op:
    """Return the op of a collective.

    By default its array counts as activations or gradients. Pass `holds_bytes=0` for an array of
    parameters, or of gradients of parameters.
    """
    work = Collective(kind, array_bytes, group)
    holds = array_bytes if holds_bytes is None else holds_bytes
    return Op(name, work, phase, saves, holds_bytes=holds, buffer_bytes=buffer_bytes)


def total_flops(ops: Iterable[Op]) -> int:
    """FLOPs of all matrix products, recomputed ones included (paper, Appendix A)."""
    return sum(op.work.flops for op in ops if isinstance(op.work, Product))


def total_model_flops(ops: Iterable[Op]) -> int:
    """FLOPs of the model: no recompute, no masks in attention (paper, Appendix A)."""
    return sum(
        op.work.model_flops
        for op in ops
        if isinstance(op.work, Product) and op.phase is not Phase.RECOMPUTE
    )
