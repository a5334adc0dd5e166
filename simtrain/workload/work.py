"""The work of an op: everything that determines its duration on a machine.

Ops with equal work take equal time.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

from simtrain.base.mesh import Group
from simtrain.base.values import dataclass
from simtrain.scenario.software import AttentionKernel

FP32_BYTES = 4

ProductType = Literal["bf16", "fp8", "fp8_block", "mxfp8", "nvfp4", "tf32", "fp32"]
"""The data type of a matrix product's operands, which determines its rate.

bf16 stands for both 16-bit types. fp8 has one scale per tensor, fp8_block one per block of 1 × 128
or 128 × 128 elements, mxfp8 one per 32 elements, and nvfp4 (4 bits) one per 16 elements. tf32
multiplies fp32 numbers on tensor cores.
"""


@dataclass(frozen=True, slots=True)
class Gemm:
    """A (batched) matrix product C[m, n] = A[m, k] B[k, n].

    Args:
        m, n, k: sizes of each product.
        batch: number of products.
        element_bytes: of the operands; 0.5 in fp4.
        output_element_bytes: of C.
        accumulate: C is a weight gradient that the product adds to the gradient buffer itself
            (Megatron-LM's `wgrad_gemm_accum_fp32`), so it reads and writes C.
        dtype: data type of the operands.
        copies: ranks that compute the same product. The model's FLOPs count it once.
        layout: of A and B as BLAS writes it: TN forward, NN input gradient, NT weight gradient.
        epilogue_bytes: bytes that kernels fused into its epilogue move in addition.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    element_bytes: float = 2
    output_element_bytes: int = 2
    accumulate: bool = False
    dtype: ProductType = "bf16"
    copies: int = 1
    layout: str = "TN"
    epilogue_bytes: int = 0

    @property
    def flops(self) -> int:
        """2 · batch · m · n · k: a multiply-add is two operations."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def model_flops(self) -> int:
        return self.flops // self.copies

    @property
    def moved_bytes(self) -> int:
        """Bytes that cross HBM: operands, the result (twice with `accumulate`), the epilogue's."""
        operands = int(self.element_bytes * (self.m * self.k + self.k * self.n))
        result = self.output_element_bytes * self.m * self.n * (2 if self.accumulate else 1)
        return self.batch * (operands + result) + self.epilogue_bytes


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """A grouped product: the weight of each expert times the tokens of this expert.

    Args:
        batch: experts on this rank.
        rows: tokens of all experts of this rank, padding included.
        inputs, outputs: input and output size of the forward product; an input gradient has them
            swapped.
        mean_rows: rows of a rank, averaged over the ranks.
        model_rows: `mean_rows` without padding.
        is_weight_gradient: sums over tokens.
        element_bytes, output_element_bytes, accumulate, dtype, layout, epilogue_bytes: as in
            `Gemm`.
    """

    batch: int
    rows: int
    inputs: int
    outputs: int
    mean_rows: int
    model_rows: int
    is_weight_gradient: bool = False
    element_bytes: float = 2
    output_element_bytes: int = 2
    accumulate: bool = False
    dtype: ProductType = "bf16"
    layout: str = "TN"
    epilogue_bytes: int = 0

    @property
    def product(self) -> Gemm:
        """The product of one expert with the average number of this rank's tokens, rounded up."""
        tokens = -(-self.rows // self.batch)
        m, n, k = tokens, self.outputs, self.inputs
        if self.is_weight_gradient:
            m, n, k = self.outputs, self.inputs, tokens
        sizes = self.element_bytes, self.output_element_bytes
        epilogue = self.epilogue_bytes // self.batch
        return Gemm(m, n, k, 1, *sizes, self.accumulate, self.dtype, 1, self.layout, epilogue)

    @property
    def flops(self) -> int:
        return 2 * self.mean_rows * self.inputs * self.outputs

    @property
    def model_flops(self) -> int:
        return 2 * self.model_rows * self.inputs * self.outputs


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """The core of causal self-attention in one kernel, forward or backward (FlashAttention).

    The forward kernel has two products (QKᵀ, attention over V). The backward kernel has five: QKᵀ
    and the gradients of V, of the scores, of Q and of K (Dao et al. 2022, Algorithms 2 and 4).
    Scores stay on chip, dropout is drawn again from its seed, and only the log-sum-exp of each row
    of the softmax is saved (Dao 2023, Section 3.1). The kernel skips blocks above the diagonal and
    before the window.

    Args:
        heads: query heads of all sequences of a microbatch on this rank.
        seq_length: queries of each head.
        head_size: channels of a query or key head.
        is_backward: the backward kernel.
        element_bytes: of Q, K, V and the output.
        kv_heads: key heads and value heads, if grouped queries share them; None for `heads`.
        value_size: channels of a value head; None for `head_size`.
        window: tokens that a query attends to, itself included; None for all before it.
        kv_length: keys of each head if a kernel computes a part of a longer sequence, without a
            window; None for `seq_length`. The queries are the last tokens of the keys.
        is_causal: a query attends to no later key. Otherwise all queries come after all keys.
        kernel: the kernel of the hardware profile, or an older one.
        speed: FLOP/s relative to that kernel.
        documents: lengths of documents with their numbers, if sequences pack several and attention
            stays within each (kernels for variable lengths). The lengths are in queries, whose sum
            is `seq_length`; keys are divided in the same proportions.
        is_of_causal_model: the model masks half of the scores of its sequences, here or in the
            kernels of other ranks. Otherwise the model has all scores of the queries and keys.
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
    kernel: AttentionKernel = "newest"
    speed: float = 1.0
    documents: tuple[tuple[int, int], ...] = ()
    is_of_causal_model: bool = True

    @property
    def num_keys(self) -> int:
        return self.seq_length if self.kv_length is None else self.kv_length

    @property
    def longest_row(self) -> int:
        keys = max(keys for _, keys, _ in self.lengths)
        return keys if self.window is None else min(self.window, keys)

    @property
    def lengths(self) -> list[tuple[int, int, int]]:
        queries, keys = self.seq_length, self.num_keys
        documents = self.documents or ((queries, 1),)
        return [(length, length * keys // queries, number) for length, number in documents]

    @property
    def flops(self) -> int:
        """FLOPs of the kernel, counted as in Dao 2023, Section 4.1.

        2 · s² · d per head and product, halved by the causal mask. With a window w, s² becomes
        s² - (s - w)².
        """
        return self.heads * self.band * self._channels

    @property
    def mean_channels(self) -> float:
        return self._channels / (5 if self.is_backward else 2)

    @property
    def _channels(self) -> int:
        size, value = self.head_size, self.channels_of_value
        return 3 * size + 2 * value if self.is_backward else size + value

    @property
    def model_flops(self) -> int:
        """FLOPs of the model (paper, Appendix A): products without mask, four of them backward.

        A product without mask has twice the FLOPs of a causal one.
        """
        channels = self.head_size + self.channels_of_value
        scores = self.band if self.is_of_causal_model else self.seq_length * self.num_keys
        return (4 if self.is_backward else 2) * self.heads * scores * channels

    @property
    def band(self) -> int:
        return sum(number * self._band(queries, keys) for queries, keys, number in self.lengths)

    def _band(self, queries: int, keys: int) -> int:
        masked = 0 if self.window is None else max(0, queries - self.window)
        above = queries**2 if self.is_causal else 0
        return 2 * queries * keys - above - masked**2

    @property
    def channels_of_value(self) -> int:
        return self.head_size if self.value_size is None else self.value_size

    @property
    def moved_bytes(self) -> int:
        return (2 if self.is_backward else 1) * self.tensors_bytes + self.log_sum_exp_bytes

    @property
    def log_sum_exp_bytes(self) -> int:
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
        """Workspace of the backward kernel.

        It sums the gradient of Q in fp32 (flash-attention's `dq_accum`) and stores, for each row,
        the product of the output and its gradient (`softmax_d`).
        """
        return FP32_BYTES * self.heads * self.seq_length * self.head_size + self.log_sum_exp_bytes


class KernelFamily(StrEnum):
    """Families of memory-bound kernels.

    A profile has one bandwidth for fused kernels and one for kernels that stream like a copy. Each
    other family is a single kernel, for which a profile may have a forward and a backward
    bandwidth. Without these, a cast streams and the other families count as fused kernels.

    softmax, dropout: on attention scores, without fused attention.
    swiglu: a fused gated activation, with any function.
    cross_entropy: the kernels of an unfused loss.
    cast: from bf16 to fp8.
    chunk_scan: the kernels of Mamba-2's scan (`ScanKernel`).
    """

    __hash__ = str.__hash__  # quick

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
    CHUNK_SCAN = "chunk_scan"

    @property
    def is_alike_backward(self) -> bool:
        return self is KernelFamily.CHUNK_SCAN

    @property
    def streams(self) -> bool:
        return self in (KernelFamily.STREAM, KernelFamily.CAST)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A memory-bound kernel: its duration follows from the bytes that it reads and writes.

    `is_backward` selects the backward bandwidth of a family that has two.
    """

    read_bytes: int
    write_bytes: int
    family: KernelFamily = KernelFamily.FUSED
    is_backward: bool = False

    @property
    def moved_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True, slots=True)
class SliceCopies(Elementwise):
    """Copies of slices of lists, which the host launches one by one and waits for."""

    num_slices: int = 0


@dataclass(frozen=True, slots=True)
class ScanKernel(Elementwise):
    """A kernel of Mamba-2's chunked scan: its products are small, so memory limits it.

    Args:
        flops: of its products.
        model_flops: FLOPs of the model that it stands for (`blocks.mamba`).
    """

    flops: int = 0
    model_flops: int = 0


class CollectiveKind(StrEnum):
    """Collectives and transfers of training."""

    __hash__ = str.__hash__  # quick

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND = "send"
    COPY = "copy"

    @property
    def has_root(self) -> bool:
        return self in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)

    @property
    def is_transfer(self) -> bool:
        return self in (CollectiveKind.SEND, CollectiveKind.COPY)


RING_COLLECTIVES = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
)
"""Collectives for which a profile has measured curves."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over a group of ranks, or a transfer from each of them to the next.

    `array_bytes` is the size of the whole array, as in nccl-tests: the input of an all-reduce,
    reduce-scatter or all-to-all, the output of an all-gather, the array of a broadcast or a reduce,
    or the message of a transfer.
    """

    kind: CollectiveKind
    array_bytes: int
    group: Group


@dataclass(frozen=True, slots=True)
class TokenExchange(Collective):
    """An exchange of tokens by a dispatcher's own kernels; its kind is an all-to-all.

    Args:
        dispatcher: name of the dispatcher (`simtrain.scenario.dispatchers`).
        node_bytes: bytes that each rank receives over NVLink, its own tokens included.
        network_bytes: bytes that each rank sends to nodes, its own node included.
        node_rows: tokens that each rank receives over NVLink, its own included.
    """

    dispatcher: str
    node_bytes: int
    network_bytes: int
    node_rows: int


class HostResource(StrEnum):
    """The resource that limits work on the host.

    LINK: the link between a GPU and its host. ADAM: the host's memory, while Adam runs.
    """

    LINK = "link"
    ADAM = "adam"


@dataclass(frozen=True, slots=True)
class HostWork:
    """Bytes that cross the link between a GPU and its host, or that Adam moves on the host.

    Args:
        num_bytes: bytes of one rank.
        resource: what they use.
        users: ranks that use it at the same time, on all nodes; None for all GPUs of a node.
        threads: threads of a rank that run Adam; 0 for its share of all cores.
    """

    num_bytes: int
    resource: HostResource
    users: int | None = None
    threads: int = 0


Product: TypeAlias = Gemm | GroupedGemm | FusedAttention | ScanKernel
Kernel: TypeAlias = Product | Elementwise
Work: TypeAlias = Kernel | Collective | HostWork
