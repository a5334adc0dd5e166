"""The nouns of a workload: what a GPU is asked to do, without saying how long it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias


class Phase(StrEnum):
    """Which part of the iteration an op belongs to."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"


class CollectiveKind(StrEnum):
    """The collectives that training uses."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"


class Group(StrEnum):
    """The ranks that take part in a collective."""

    TENSOR = "tensor"
    DATA = "data"
    EMBEDDING = "embedding"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that an op keeps for the backward pass.

    Two ops that keep the same tensor (queries and keys share their input with values, say)
    name it once: the paper counts it once.
    """

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """A (batched) matrix product C[m, n] = A[m, k] B[k, n].

    `accumulate` marks a weight gradient added into an fp32 buffer by the product itself
    (Megatron's `wgrad_gemm_accum_fp32`), which reads and writes C at `output_element_bytes`.
    """

    name: str
    m: int
    n: int
    k: int
    phase: Phase
    batch: int = 1
    element_bytes: int = 2
    output_element_bytes: int = 2
    accumulate: bool = False
    saved: tuple[SavedTensor, ...] = ()

    @property
    def flops(self) -> int:
        """Multiply-adds counted as two operations: 2 · batch · m · n · k."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> int:
        """Bytes that must cross HBM once: both operands, and the result (twice if added to)."""
        operands = self.element_bytes * (self.m * self.k + self.k * self.n)
        result = self.output_element_bytes * self.m * self.n * (2 if self.accumulate else 1)
        return self.batch * (operands + result)


class Kernel(StrEnum):
    """Families of memory-bound kernels that a profile gives one bandwidth each."""

    FUSED = "fused"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A memory-bound kernel: its time follows from the bytes that it reads and writes."""

    name: str
    read_bytes: int
    write_bytes: int
    phase: Phase
    kernel: Kernel = Kernel.FUSED
    saved: tuple[SavedTensor, ...] = ()

    @property
    def moved_bytes(self) -> int:
        """Bytes that cross HBM."""
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over `group_size` ranks.

    `array_bytes` is the size of the whole array: what an all-reduce reduces, what an all-gather
    leaves on each rank, what a reduce-scatter starts from (the convention of nccl-tests).
    `extra` marks the all-gathers that Table 2 does not count: the one that sequence parallelism
    redoes in the backward pass (paper, Section 4.2.2) and that of distributed inputs (Section 5).
    """

    name: str
    kind: CollectiveKind
    array_bytes: int
    group_size: int
    phase: Phase
    group: Group = Group.TENSOR
    extra: bool = False
    saved: tuple[SavedTensor, ...] = field(default=())

    @property
    def wire_bytes(self) -> float:
        """Bytes that each rank sends around a ring: (n-1)/n of the array, twice to all-reduce."""
        passes = 2 if self.kind is CollectiveKind.ALL_REDUCE else 1
        return passes * (self.group_size - 1) * self.array_bytes / self.group_size


Op: TypeAlias = Gemm | Elementwise | Collective


def as_recompute(op: Op) -> Op:
    """The same op run again in the backward pass; it keeps nothing new."""
    return replace(op, phase=Phase.RECOMPUTE, saved=())


def total_flops(ops: tuple[Op, ...]) -> int:
    """Sum of the matrix products' FLOPs (the paper's Appendix A counts nothing else)."""
    return sum(op.flops for op in ops if isinstance(op, Gemm))


def total_wire_bytes(ops: tuple[Op, ...], *, include_extra: bool = True) -> float:
    """Sum of the bytes each rank sends; without `extra` it is the column of Table 2."""
    collectives = (op for op in ops if isinstance(op, Collective))
    return math.fsum(op.wire_bytes for op in collectives if include_extra or not op.extra)


def saved_bytes(ops: tuple[Op, ...]) -> int:
    """Bytes kept for the backward pass, a tensor named twice counted once."""
    kept = {tensor.name: tensor.num_bytes for op in ops for tensor in op.saved}
    return sum(kept.values())
