"""The nouns of a workload: what a GPU is asked to do, without saying how long it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

_FP32_BYTES = 4


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
    ALL = "all"


Work: TypeAlias = tuple[int | str, ...]
"""All of an op that decides what it costs: ops of the same class and work cost the same."""


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that stays when its op has ended, until another op of its layer releases it.

    What forward ops save waits for the backward pass. Two ops that keep the same tensor (queries
    and keys share their input with values, say) name it once: the paper counts it once.
    """

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """A (batched) matrix product C[m, n] = A[m, k] B[k, n].

    `accumulate` marks a weight gradient added into an fp32 buffer by the product itself
    (Megatron's `wgrad_gemm_accum_fp32`), which reads and writes C at `output_element_bytes`.
    `weight` says that B is one. `releases` names the saved tensors that are used no more after it.
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
    weight: bool = False
    saved: tuple[SavedTensor, ...] = ()
    releases: tuple[str, ...] = ()

    @property
    def work(self) -> Work:
        """Shape and element sizes."""
        sizes = self.m, self.n, self.k, self.batch, self.element_bytes, self.output_element_bytes
        return *sizes, self.accumulate

    @property
    def flops(self) -> int:
        """Multiply-adds counted as two operations: 2 · batch · m · n · k."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def model_flops(self) -> int:
        """What the paper counts of it: all."""
        return self.flops

    @property
    def moved_bytes(self) -> int:
        """Bytes that must cross HBM once: both operands, and the result (twice if added to)."""
        operands = self.element_bytes * (self.m * self.k + self.k * self.n)
        result = self.output_element_bytes * self.m * self.n * (2 if self.accumulate else 1)
        return self.batch * (operands + result)

    def working_bytes(self, saved_bytes: int) -> int:
        """Activations and gradients that exist while it runs, beside those saved.

        `saved_bytes` is the size of those that it saves or releases. The input of a product with a
        weight is always saved or a gathered copy of what is. A weight gradient (A is the gradient
        of the output) runs when that of the input, of B's size, has just been computed.
        """
        size = self.batch * self.element_bytes
        if self.accumulate:
            return size * self.k * (self.m + self.n)
        if self.weight:
            gradient = self.m * self.k if self.phase is Phase.INPUT_GRADIENT else 0
            return size * (gradient + self.m * self.n)
        operands = self.m * self.k + self.k * self.n + self.m * self.n
        return max(0, size * operands - saved_bytes)


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """The core of causal self-attention in one kernel, forward or backward (FlashAttention).

    `heads` are those of all sequences of a microbatch on this rank, each of `seq_length` tokens
    with `head_size` channels. Forward are two products (QKᵀ, attention over V), backward five: QKᵀ
    again and the gradients of V, of the scores, of Q and of K (Dao et al. 2022, Algorithms 2 and
    4). Scores never leave the multiprocessors, dropout is drawn again from its seed, and of the
    softmax only a row's log-sum-exp is kept (Dao 2023, Section 3.1). Blocks above the diagonal are
    left out, which halves the products.
    """

    name: str
    heads: int
    seq_length: int
    head_size: int
    phase: Phase
    element_bytes: int = 2
    saved: tuple[SavedTensor, ...] = ()
    releases: tuple[str, ...] = ()

    @property
    def work(self) -> Work:
        """Sizes, and which of the two kernels it is."""
        return self.heads, self.seq_length, self.head_size, self.element_bytes, self.is_backward

    @property
    def is_backward(self) -> bool:
        """Whether it is the kernel of the backward pass."""
        return self.phase is Phase.INPUT_GRADIENT

    @property
    def flops(self) -> int:
        """What the kernel computes, as Dao 2023 counts it (Section 4.1).

        2 · s² · d a head and product, halved by the causal mask.
        """
        return (5 if self.is_backward else 2) * self._product_flops // 2

    @property
    def model_flops(self) -> int:
        """The paper's count (Appendix A): whole products, and of the backward pass the four."""
        return (4 if self.is_backward else 2) * self._product_flops

    @property
    def moved_bytes(self) -> int:
        """Q, K, V and output once, backward their gradients too; and log-sum-exp."""
        return (2 if self.is_backward else 1) * 4 * self._tensor_bytes + self.log_sum_exp_bytes

    @property
    def log_sum_exp_bytes(self) -> int:
        """A number in fp32 for each row of the scores."""
        return _FP32_BYTES * self.heads * self.seq_length

    def working_bytes(self, saved_bytes: int) -> int:
        """Activations and gradients that exist while it runs, beside those it saves or releases.

        The backward kernel adds up the gradient of Q in fp32, and has the product of output and its
        gradient of each row (flash-attention's `dq_accum` and `softmax_d`).
        """
        if not self.is_backward:
            return max(0, 4 * self._tensor_bytes + self.log_sum_exp_bytes - saved_bytes)
        sums = _FP32_BYTES * self.heads * self.seq_length * self.head_size
        held = 8 * self._tensor_bytes + sums + 2 * self.log_sum_exp_bytes
        return max(0, held - saved_bytes)

    @property
    def _product_flops(self) -> int:
        return 2 * self.heads * self.seq_length**2 * self.head_size

    @property
    def _tensor_bytes(self) -> int:
        """Of Q, K, V or the output."""
        return self.element_bytes * self.heads * self.seq_length * self.head_size


class Kernel(StrEnum):
    """Families of memory-bound kernels that a profile gives one bandwidth each."""

    FUSED = "fused"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A memory-bound kernel: its time follows from the bytes that it reads and writes.

    `holds` is given where these are not the bytes of the activations and gradients that exist while
    it runs: it passes over parameters, leaves half of a triangle out, or others wait beside it.
    """

    name: str
    read_bytes: int
    write_bytes: int
    phase: Phase
    kernel: Kernel = Kernel.FUSED
    saved: tuple[SavedTensor, ...] = ()
    releases: tuple[str, ...] = ()
    holds: int | None = None

    @property
    def work(self) -> Work:
        """Bytes that cross HBM, and the kernel's family."""
        return self.moved_bytes, self.kernel

    @property
    def moved_bytes(self) -> int:
        """Bytes that cross HBM."""
        return self.read_bytes + self.write_bytes

    def working_bytes(self, saved_bytes: int) -> int:
        """Activations and gradients that exist while it runs, beside those it saves or releases."""
        return max(0, (self.moved_bytes if self.holds is None else self.holds) - saved_bytes)


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
    saved: tuple[SavedTensor, ...] = ()
    releases: tuple[str, ...] = ()

    @property
    def work(self) -> Work:
        """What is exchanged by whom."""
        return self.kind, self.array_bytes, self.group_size, self.group

    def working_bytes(self, saved_bytes: int) -> int:
        """The whole activation, where it is one and not among those that it saves or releases."""
        return max(0, self.array_bytes - saved_bytes) if self.group is Group.TENSOR else 0

    @property
    def wire_bytes(self) -> float:
        """Bytes that each rank sends around a ring: (n-1)/n of the array, twice to all-reduce."""
        passes = 2 if self.kind is CollectiveKind.ALL_REDUCE else 1
        return passes * (self.group_size - 1) * self.array_bytes / self.group_size


ComputeOp: TypeAlias = Gemm | FusedAttention | Elementwise
Op: TypeAlias = ComputeOp | Collective


def as_recompute(op: Op) -> Op:
    """The same op run again in the backward pass, which then has its tensors."""
    return replace(op, phase=Phase.RECOMPUTE)


def total_flops(ops: tuple[Op, ...]) -> int:
    """Sum of the matrix products' FLOPs (the paper's Appendix A counts nothing else)."""
    return sum(op.flops for op in ops if isinstance(op, Gemm | FusedAttention))


def total_model_flops(ops: tuple[Op, ...]) -> int:
    """The same as the paper counts them: nothing twice, whatever computes attention."""
    products = (op for op in ops if isinstance(op, Gemm | FusedAttention))
    return sum(op.model_flops for op in products if op.phase is not Phase.RECOMPUTE)


def total_wire_bytes(ops: tuple[Op, ...], *, include_extra: bool = True) -> float:
    """Sum of the bytes each rank sends; without `extra` it is the column of Table 2."""
    collectives = (op for op in ops if isinstance(op, Collective))
    return math.fsum(op.wire_bytes for op in collectives if include_extra or not op.extra)


def saved_bytes(ops: tuple[Op, ...]) -> int:
    """Bytes that one layer's forward ops keep for its backward pass, each name counted once."""
    forward = (op for op in ops if op.phase is Phase.FORWARD)
    kept = {tensor.name: tensor.num_bytes for op in forward for tensor in op.saved}
    return sum(kept.values())
