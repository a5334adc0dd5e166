"""The work of an op: all that decides how long it takes on a machine, and nothing else.

Two ops with equal work take equally long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from simtrain.mesh import Group

FP32_BYTES = 4

ProductType = Literal["bf16", "fp8", "fp8_block", "mxfp8", "tf32", "fp32"]
"""What a product multiplies, which decides its rate.

bf16 stands for both 16-bit types. Numbers in fp8 have one scale a tensor, or one for each block of
1 × 128 or 128 × 128 (fp8_block), or for each 32 (mxfp8). tf32 multiplies fp32 numbers on tensor
cores.
"""


@dataclass(frozen=True, slots=True)
class Gemm:
    """A (batched) matrix product C[m, n] = A[m, k] B[k, n].

    `accumulate` marks a weight gradient added into an fp32 buffer by the product itself
    (Megatron's `wgrad_gemm_accum_fp32`), which reads and writes C at `output_element_bytes`.
    `copies` is the number of ranks that compute the same product, which a model needs once.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    element_bytes: int = 2
    output_element_bytes: int = 2
    accumulate: bool = False
    dtype: ProductType = "bf16"
    copies: int = 1

    @property
    def flops(self) -> int:
        """Multiply-adds counted as two operations: 2 · batch · m · n · k."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def model_flops(self) -> int:
        """The paper's count: all FLOPs, those of copies once."""
        return self.flops // self.copies

    @property
    def moved_bytes(self) -> int:
        """Bytes that must cross HBM once: both operands, and the result (twice if added to)."""
        operands = self.element_bytes * (self.m * self.k + self.k * self.n)
        result = self.output_element_bytes * self.m * self.n * (2 if self.accumulate else 1)
        return self.batch * (operands + result)


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """The products of the weights of several experts with their tokens.

    Args:
        batch: experts on this rank.
        rows: tokens of all of them on this rank, padding included.
        inputs, outputs: of a forward product. That of an input gradient has them swapped.
        mean_rows: tokens of the mean rank.
        model_rows: without padding.
        is_weight_gradient: sums over tokens and adds into a buffer, as `Gemm.accumulate`.
    """

    batch: int
    rows: int
    inputs: int
    outputs: int
    mean_rows: int
    model_rows: int
    is_weight_gradient: bool = False
    element_bytes: int = 2
    output_element_bytes: int = 2
    dtype: ProductType = "bf16"

    @property
    def product(self) -> Gemm:
        """That of an expert with the mean number of the rank's tokens, rounded up."""
        tokens = -(-self.rows // self.batch)
        m, n, k = tokens, self.outputs, self.inputs
        if self.is_weight_gradient:
            m, n, k = self.outputs, self.inputs, tokens
        sizes = self.element_bytes, self.output_element_bytes
        return Gemm(m, n, k, 1, *sizes, self.is_weight_gradient, self.dtype)

    @property
    def flops(self) -> int:
        """Of the mean rank, so that all ranks together have as many times more."""
        return 2 * self.mean_rows * self.inputs * self.outputs

    @property
    def model_flops(self) -> int:
        """Of the mean rank, without padding."""
        return 2 * self.model_rows * self.inputs * self.outputs


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """The core of causal self-attention in one kernel, forward or backward (FlashAttention).

    `heads` are those of all sequences of a microbatch on this rank, each of `seq_length` tokens
    with `head_size` channels; `kv_heads` are those of keys and of values, which groups of queries
    share (None: as many); heads of values have `value_size` channels (None: as many). A query
    attends to itself and the tokens before it, within a `window` of so many tokens (None: to all).

    Forward are two products (QKᵀ, attention over V), backward five: QKᵀ again and the gradients of
    V, of the scores, of Q and of K (Dao et al. 2022, Algorithms 2 and 4). Scores never leave the
    multiprocessors, dropout is drawn again from its seed, and of the softmax only a row's
    log-sum-exp is kept (Dao 2023, Section 3.1). Blocks above the diagonal and before the window are
    left out: what remains is the area of a band, that of the triangle without a window.

    A part of the attention of a longer sequence has other numbers of keys than of queries,
    `kv_length` (None: as many), and no window. The queries are then the last of them, or, if not
    `is_causal`, come after all of them and see each.

    `speed` is that of its FLOPs against the kernel of the hardware profile.
    """

    heads: int
    seq_length: int
    head_size: int
    is_backward: bool = False
    element_bytes: int = 2
    kv_heads: int | None = None
    value_size: int | None = None
    window: int | None = None
    kv_length: int | None = None
    is_causal: bool = True
    speed: float = 1.0

    @property
    def num_keys(self) -> int:
        """Keys of each head."""
        return self.seq_length if self.kv_length is None else self.kv_length

    @property
    def longest_row(self) -> int:
        """Keys that the query with the most of them sees."""
        return self.num_keys if self.window is None else min(self.window, self.num_keys)

    @property
    def flops(self) -> int:
        """What the kernel computes, as Dao 2023 counts it (Section 4.1).

        2 · s² · d a head and product, halved by the causal mask; s² - (s - w)² for s² with a
        window w.
        """
        return self.heads * self.band * self._channels

    @property
    def mean_channels(self) -> float:
        """Channels of a product in the mean: those of the heads if all have as many."""
        return self._channels / (5 if self.is_backward else 2)

    @property
    def _channels(self) -> int:
        """Sum over the products."""
        size, value = self.head_size, self.channels_of_value
        return 3 * size + 2 * value if self.is_backward else size + value

    @property
    def model_flops(self) -> int:
        """The paper's count (Appendix A): whole products, and of the backward pass the four.

        Whole products are twice what a causal mask leaves of them, and so twice what all parts of
        an attention compute together.
        """
        channels = self.head_size + self.channels_of_value
        return (4 if self.is_backward else 2) * self.heads * self.band * channels

    @property
    def band(self) -> int:
        """Twice the scores of a head that are computed: s² of a whole sequence without a window."""
        masked = 0 if self.window is None else max(0, self.seq_length - self.window)
        above = self.seq_length**2 if self.is_causal else 0
        return 2 * self.seq_length * self.num_keys - above - masked**2

    @property
    def channels_of_value(self) -> int:
        """Channels of a head of values and of the output."""
        return self.head_size if self.value_size is None else self.value_size

    @property
    def moved_bytes(self) -> int:
        """Q, K, V and output once, backward their gradients too; and log-sum-exp."""
        return (2 if self.is_backward else 1) * self.tensors_bytes + self.log_sum_exp_bytes

    @property
    def log_sum_exp_bytes(self) -> int:
        """A number in fp32 for each row of the scores."""
        return FP32_BYTES * self.heads * self.seq_length

    @property
    def tensors_bytes(self) -> int:
        """Bytes of Q, K, V and the output together."""
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        channels = self.head_size + self.channels_of_value
        rows = self.heads * self.seq_length + kv_heads * self.num_keys
        return rows * channels * self.element_bytes

    @property
    def workspace_bytes(self) -> int:
        """Bytes that the backward kernel needs beside its tensors.

        The gradient of Q is summed in fp32 (flash-attention's `dq_accum`), and each row has the
        product of output and its gradient (`softmax_d`).
        """
        return FP32_BYTES * self.heads * self.seq_length * self.head_size + self.log_sum_exp_bytes


class KernelFamily(StrEnum):
    """Families of memory-bound kernels.

    A profile gives a bandwidth to fused kernels and one to kernels that stream like a copy. It may
    give the other families, which are single kernels, bandwidths of their own, forward and backward
    apart. Without one a cast streams, and the others are fused kernels.

    softmax, dropout: of attention scores, without fused attention.
    swiglu: a fused activation with a gate, of whatever function.
    cross_entropy: the kernels of a loss that is not fused.
    cast: to fp8.
    """

    FUSED = "fused"
    STREAM = "stream"
    SOFTMAX = "softmax"
    DROPOUT = "dropout"
    LAYER_NORM = "layer_norm"
    RMS_NORM = "rms_norm"
    SWIGLU = "swiglu"
    ROTARY = "rotary"
    CROSS_ENTROPY = "cross_entropy"
    CAST = "cast"

    @property
    def streams(self) -> bool:
        """Whether it is as fast as a copy, unless a profile says otherwise."""
        return self in (KernelFamily.STREAM, KernelFamily.CAST)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A memory-bound kernel: its duration follows from the bytes that it reads and writes.

    `is_backward` says whether a kernel with its own family computes gradients.
    """

    read_bytes: int
    write_bytes: int
    family: KernelFamily = KernelFamily.FUSED
    is_backward: bool = False

    @property
    def moved_bytes(self) -> int:
        """Bytes that cross HBM."""
        return self.read_bytes + self.write_bytes


class CollectiveKind(StrEnum):
    """The collectives that training uses."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"
    COPY = "copy"

    @property
    def is_transfer(self) -> bool:
        """Whether each rank sends to the next one only; a copy takes no multiprocessors for it."""
        return self in (CollectiveKind.SEND, CollectiveKind.COPY)


RING_COLLECTIVES = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
)
"""Those that a profile has measured curves of."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over a group of ranks, or a transfer from each of them to the next.

    `array_bytes` is the size of the whole array: what an all-reduce reduces, what an all-gather
    leaves on each rank, what a reduce-scatter or an all-to-all starts from (the convention of
    nccl-tests), what a rank sends.
    """

    kind: CollectiveKind
    array_bytes: int
    group: Group


class HostResource(StrEnum):
    """What limits an op of the host."""

    LINK = "link"
    ADAM = "adam"


@dataclass(frozen=True, slots=True)
class HostWork:
    """Bytes that cross the link between a GPU and its host, or that the host's Adam moves."""

    num_bytes: int
    resource: HostResource


Kernel: TypeAlias = Gemm | GroupedGemm | FusedAttention | Elementwise
Work: TypeAlias = Kernel | Collective | HostWork
