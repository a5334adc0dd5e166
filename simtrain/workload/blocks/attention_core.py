"""The heads of attention on one rank, and the ops on them."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.workload.blocks.elementwise import MASK_BYTES, dropout, softmax_kernels
from simtrain.workload.ops import Op, Ops, Phase, Tensor, elementwise, gradient
from simtrain.workload.tape import Tape
from simtrain.workload.work import FP32_BYTES, FusedAttention, Gemm, KernelFamily


@dataclass(frozen=True, slots=True)
class AttentionCore:
    """Attention heads on this rank, and the ops on them.

    Args:
        tape: the tape of the block.
        heads: query heads.
        groups: key heads and value heads.
        head_size: channels of a query head or key head.
        value_size: channels of a value head.
        window: tokens that a query attends to, itself included; None for all.
        ranks_of_heads: ranks that exchange tokens for heads before the core.
    """

    tape: Tape
    heads: int
    groups: int
    head_size: int
    value_size: int
    window: int | None = None
    ranks_of_heads: int = 1

    @property
    def seq_length(self) -> int:
        return self.tape.microbatch.seq_length * self.ranks_of_heads

    @property
    def query_bytes(self) -> int:
        return self._bytes(self.heads * self.head_size)

    @property
    def output_bytes(self) -> int:
        return self._bytes(self.heads * self.value_size)

    @property
    def key_bytes(self) -> int:
        return self._bytes(self.groups * self.head_size)

    @property
    def value_bytes(self) -> int:
        return self._bytes(self.groups * self.value_size)

    @property
    def row_bytes(self) -> int:
        return FP32_BYTES * self.tape.microbatch.sequences * self.heads * self.seq_length

    def _bytes(self, channels: int) -> int:
        batch = self.tape.microbatch
        return batch.sequences * self.seq_length * channels * batch.element_bytes

    def log_sum_exp(self) -> Tensor:
        rows = self.row_bytes // FP32_BYTES
        return self.tape.tensor("softmax log-sum-exp", rows, 1, FP32_BYTES)

    def kernel(
        self, queries: int, keys: int, *, is_backward: bool, is_causal: bool = True
    ) -> FusedAttention:
        batch = self.tape.microbatch
        return FusedAttention(
            batch.sequences * self.heads,
            queries,
            self.head_size,
            is_backward,
            batch.element_bytes,
            None if self.groups == self.heads else batch.sequences * self.groups,
            None if self.value_size == self.head_size else self.value_size,
            self.window,
            None if keys == queries else keys,
            is_causal,
            batch.kernels.attention_kernel,
            batch.kernels.attention_speed,
            tuple(
                (length * queries // batch.whole_length, number)
                for length, number in batch.documents
            ),
        )

    def output(self) -> Tensor:
        rows = self.tape.microbatch.sequences * self.seq_length
        return self.tape.tensor("attention output", rows, self.heads * self.value_size)

    def repeated(self, name: str, size: int) -> Tensor | None:
        """Create a tensor of keys or values repeated for each query head; None without groups.

        A head has `size` channels. Megatron-LM's DotProductAttention repeats with
        repeat_interleave.
        """
        if self.groups == self.heads:
            return None
        batch = self.tape.microbatch
        return self.tape.tensor(f"repeated {name}", batch.tokens, self.heads * size)

    def repeat(self, y: Tensor, saves: tuple[Tensor, ...] = ()) -> Op:
        return elementwise(y.name, self._group_bytes(y), y.num_bytes, saves=saves)

    def repeat_gradient(self, y: Tensor, reads: tuple[Tensor, ...] = ()) -> Op:
        """Return the kernel that sums the gradient of `y` over the heads of each group."""
        return gradient(y.name, y.num_bytes, self._group_bytes(y), reads=reads)

    def _group_bytes(self, y: Tensor) -> int:
        return y.num_bytes * self.groups // self.heads

    def product(
        self,
        name: str,
        sizes: tuple[int, int, int],
        phase: Phase,
        *,
        saves: tuple[Tensor, ...] = (),
        reads: tuple[Tensor, ...] = (),
        buffer_bytes: int = 0,
    ) -> Op:
        """Return a product of sizes (m, n, k) for each head; its operands and result exist."""
        batch, (m, n, k) = self.tape.microbatch, sizes
        size, number = batch.element_bytes, batch.sequences * self.heads
        work = Gemm(m, n, k, number, size, size, dtype=batch.dtype)
        held_bytes = size * number * (m * k + k * n + m * n)
        return Op(name, work, phase, saves, reads, held_bytes, buffer_bytes=buffer_bytes)


def softmax_of_scores(
    core: AttentionCore, scores: Tensor, read_bytes: int, backward_bytes: int, *, drops_out: bool
) -> Tensor:
    """Record the softmax of all scores, and its dropout.

    A software stack without a fused kernel masks the scores first, with a mask of one byte per
    score of a sequence.

    Args:
        core: the rank's heads.
        scores: queries times keys.
        read_bytes, backward_bytes: what the fused kernel reads, forward and backward.
        drops_out: dropout on the probabilities.
    """
    tape, size = core.tape, scores.num_bytes
    y = tape.tensor("softmax output", scores.rows, scores.width)
    if tape.microbatch.kernels.fused_softmax:
        family, held_bytes = KernelFamily.SOFTMAX, 2 * size
        sizes, back = (read_bytes, size), (backward_bytes, size)
        forward: Ops = (
            elementwise("softmax", *sizes, saves=(y,), holds_bytes=held_bytes, family=family),
        )
        backward: Ops = (
            gradient("softmax", *back, reads=(y,), holds_bytes=held_bytes, family=family),
        )
    else:
        mask_bytes = scores.rows // core.heads * scores.width * MASK_BYTES
        separate = tape.microbatch.kernels.separate_masking
        forward, backward = softmax_kernels(scores, y, mask_bytes, separate_masking=separate)
    tape.record("softmax", (scores,), (y,), forward, backward)
    return dropout(tape, y, "softmax dropout", KernelFamily.DROPOUT) if drops_out else y
