"""The core of self-attention (paper, Figure 3), which selective recompute recomputes.

Unfused, it is QKᵀ, softmax, softmax dropout and attention over V, with the bytes of Megatron-LM's
kernels: its causal softmax (`ScaledUpperTriangMaskedSoftmax`) reads only the lower triangle of the
scores and writes all of them. Fused, it is one kernel, which saves no scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simtrain.errors import InputError
from simtrain.scenario.model import Normalization
from simtrain.workload.blocks.context import (
    AttentionShard,
    gathered_attention,
    heads_for_tokens,
    ring_attention,
    tokens_for_heads,
)
from simtrain.workload.blocks.dropout import MASK_BYTES, dropout
from simtrain.workload.blocks.eager import softmax_kernels
from simtrain.workload.blocks.heads import head_norms, rotary
from simtrain.workload.blocks.views import join_views
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.tape import Context, Tape
from simtrain.workload.work import FP32_BYTES, FusedAttention, Gemm, KernelFamily

CORE_ATTENTION = "core_attention"
"""Name of the region of the core."""


def attention(
    tape: Tape,
    qkv: Tensor,
    head_size: int,
    num_groups: int | None = None,
    *,
    fused: bool = False,
    drops_out: bool = True,
    head_norm: Normalization | None = None,
    rope: bool = False,
    window: int | None = None,
) -> Tensor:
    """Record causal self-attention of this rank's heads.

    Args:
        tape: the tape of the block.
        qkv: all tokens; queries, keys and values side by side.
        head_size: channels of a head.
        num_groups: key heads and value heads on this rank; None for as many as query heads.
        fused: one kernel instead of five.
        drops_out: dropout on the softmax.
        head_norm: the norm over the channels of each query head and key head; None without.
        rope: rotary position embedding of queries and keys.
        window: tokens that a query attends to, itself included; None for all. The unfused kernels
            compute all scores in any case.

    Returns:
        The output, as wide as the queries.
    """
    heads = qkv.width // head_size
    groups = heads // 3 if num_groups is None else num_groups
    heads -= 2 * groups
    query_key = tape.tensor("query and key", qkv.rows, (heads + groups) * head_size)
    value = tape.tensor("value", qkv.rows, groups * head_size, storage=query_key.storage)
    join_views(tape, qkv, (query_key, value), "query, key and value")
    if head_norm:
        query_key = head_norms(tape, query_key, heads, groups, head_norm)
    if rope:
        query_key = rotary(tape, query_key, heads, groups)
    core = AttentionCore(tape, heads, groups, head_size, head_size, window)
    return core_attention(core, (query_key,), value, fused=fused, drops_out=drops_out)


@dataclass(frozen=True, slots=True)
class AttentionCore:
    """Attention heads on this rank, and the ops on them.

    Args:
        tape: the tape of the block.
        heads: query heads.
        groups: key heads and value heads.
        head_size: channels of a query head or key head.
        value_size: channels of a value head.
        window: as in `attention`.
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
        """Tokens of each sequence after ranks have exchanged tokens for heads."""
        return self.tape.microbatch.seq_length * self.ranks_of_heads

    def output(self) -> Tensor:
        """Create the output: `value_size` channels for each query head."""
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
        """Return the kernel that repeats the keys or values of the groups into `y`."""
        return elementwise(y.name, self._group_bytes(y), y.num_bytes, saves=saves)

    def repeat_gradient(self, y: Tensor, reads: tuple[Tensor, ...] = ()) -> Op:
        """Return the kernel that sums the gradient of `y` over the heads of each group."""
        sizes, phase = (y.num_bytes, self._group_bytes(y)), Phase.INPUT_GRADIENT
        return elementwise(f"{y.name} gradient", *sizes, phase, reads=reads)

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
        held = size * number * (m * k + k * n + m * n)
        return Op(name, work, phase, saves, reads, held, buffer_bytes=buffer_bytes)


def core_attention(
    core: AttentionCore,
    query_key: tuple[Tensor, ...],
    value: Tensor,
    *,
    fused: bool,
    drops_out: bool,
) -> Tensor:
    """Record the core of attention, from queries and keys in one tensor or in two.

    Raises:
        InputError: context parallelism with unfused attention, or with an exchange of keys and a
            window (E508).
    """
    context = core.tape.microbatch.context
    with core.tape.region(CORE_ATTENTION):
        if context and not fused:
            message = "unfused attention cannot run under context parallelism"
            raise InputError.of("E508", message, fix="call attention(..., fused=True)")
        if context:
            return _over_context(core, context, (*query_key, value))
        if fused:
            return _fused(core, query_key, value)
        return _unfused(core, query_key, value, drops_out=drops_out)


def _over_context(core: AttentionCore, context: Context, given: tuple[Tensor, ...]) -> Tensor:
    """Record fused attention under context parallelism.

    First, ranks of `context.heads` exchange tokens for heads. Then, ranks of `context.keys`
    exchange keys and values of their remaining heads. `given` are queries and keys, and values.
    """
    tape, heads, keys = core.tape, context.heads, context.keys
    part = replace(
        core,
        heads=core.heads // heads.num_ranks,
        groups=core.groups // heads.num_ranks,
        ranks_of_heads=heads.num_ranks,
    )
    if core.window is not None and keys.num_ranks > 1:
        message = "attention with a window cannot exchange keys and values between ranks"
        raise InputError.of("E508", message, fix="set parallelism.context_communication to a2a")
    if heads.num_ranks > 1:
        given = tokens_for_heads(tape, _shard(core), heads, given)
    if keys.num_ranks == 1:
        y = _fused(part, given[:-1], given[-1])
    elif context.gathers:
        y = part.output()
        gathered_attention(tape, _shard(part), keys, given, y)
    else:
        y = part.output()
        saves_output = heads.num_ranks == 1
        ring_attention(tape, _shard(part), keys, given, y, saves_output=saves_output)
    if heads.num_ranks == 1:
        return y
    output = core.output()
    heads_for_tokens(tape, y, heads, output, back_again=keys.num_ranks > 1)
    return output


def _shard(core: AttentionCore) -> AttentionShard:
    batch = core.tape.microbatch
    return AttentionShard(
        batch.sequences * core.heads,
        batch.sequences * core.groups,
        core.head_size,
        core.value_size,
        core.seq_length,
        batch.element_bytes,
        batch.kernels.attention_speed,
    )


def _fused(core: AttentionCore, query_key: tuple[Tensor, ...], value: Tensor) -> Tensor:
    """Record one kernel. Its backward kernel reads its output, which the projection saves too."""
    tape, batch = core.tape, core.tape.microbatch
    heads = batch.sequences * core.heads
    kv_heads = None if core.groups == core.heads else batch.sequences * core.groups
    value_size = None if core.value_size == core.head_size else core.value_size
    output = core.output()
    log_sum_exp = tape.tensor("softmax log-sum-exp", heads * core.seq_length, 1, FP32_BYTES)
    saved = *query_key, value, output, log_sum_exp

    def kernel(*, is_backward: bool) -> FusedAttention:
        """Build the work of one pass of the kernel."""
        return FusedAttention(
            heads,
            core.seq_length,
            core.head_size,
            is_backward,
            batch.element_bytes,
            kv_heads,
            value_size,
            core.window,
            speed=batch.kernels.attention_speed,
        )

    def forward(order: IssueOrder) -> None:
        work = kernel(is_backward=False)
        held = work.tensors_bytes + work.log_sum_exp_bytes
        order.compute(Op("fused attention", work, Phase.FORWARD, saved, holds_bytes=held))

    def backward(order: IssueOrder) -> None:
        work = kernel(is_backward=True)
        held = 2 * work.tensors_bytes + work.workspace_bytes + work.log_sum_exp_bytes
        name, phase = "fused attention gradient", Phase.INPUT_GRADIENT
        order.compute(Op(name, work, phase, reads=saved, holds_bytes=held))

    tape.record("fused attention", (*query_key, value), (output,), forward, backward)
    return output


def _unfused(
    core: AttentionCore, query_key: tuple[Tensor, ...], value: Tensor, *, drops_out: bool
) -> Tensor:
    """Record separate kernels, which save the scores."""
    scores = _query_key_product(core, query_key)
    probabilities = _softmax(core, scores)
    if drops_out:
        family = KernelFamily.DROPOUT
        probabilities = dropout(core.tape, probabilities, "softmax dropout", family)
    return _over_value(core, probabilities, value)


def _scores(core: AttentionCore, name: str, element_bytes: int | None = None) -> Tensor:
    batch = core.tape.microbatch
    rows = batch.sequences * core.heads * batch.seq_length
    return core.tape.tensor(name, rows, batch.seq_length, element_bytes)


def _query_key_product(core: AttentionCore, query_key: tuple[Tensor, ...]) -> Tensor:
    """Record QKᵀ. `baddbmm` requires an addend as large as the scores, and ignores it."""
    scores, keys = _scores(core, "scores"), core.repeated("keys", core.head_size)
    s, d = core.tape.microbatch.seq_length, core.head_size
    saved = (*query_key, keys) if keys else query_key

    def forward(order: IssueOrder) -> None:
        if keys:
            order.compute(core.repeat(keys))
        op = core.product("QKᵀ", (s, s, d), Phase.FORWARD, saves=saved)
        order.compute(op.replace(buffer_bytes=scores.num_bytes))

    def backward(order: IssueOrder) -> None:
        """Issue the gradients of queries and keys."""
        phase = Phase.INPUT_GRADIENT
        order.compute(core.product("QKᵀ query gradient", (s, d, s), phase, reads=saved))
        order.compute(core.product("QKᵀ key gradient", (s, d, s), phase, reads=query_key))
        if keys:
            order.compute(core.repeat_gradient(keys))

    core.tape.record("QKᵀ", query_key, (scores,), forward, backward)
    return scores


def _softmax(core: AttentionCore, scores: Tensor) -> Tensor:
    """Record the causal softmax, which reads only the lower triangle.

    The backward kernel overwrites its input. A software stack without this kernel masks the scores
    first, with a mask of one byte per score of a sequence.
    """
    tape, y, size = core.tape, _scores(core, "softmax output"), scores.num_bytes
    if not tape.microbatch.kernels.fused_softmax:
        mask_bytes = scores.rows // core.heads * scores.width * MASK_BYTES
        return tape.kernels("softmax", scores, y, *softmax_kernels(scores, y, mask_bytes))
    name, gradient, held = "softmax gradient", Phase.INPUT_GRADIENT, 2 * size
    family = KernelFamily.SOFTMAX
    return tape.kernel(
        scores,
        y,
        elementwise("softmax", size // 2, size, saves=(y,), holds_bytes=held, family=family),
        elementwise(name, size, size, gradient, reads=(y,), holds_bytes=held, family=family),
    )


def _over_value(core: AttentionCore, probabilities: Tensor, value: Tensor) -> Tensor:
    """Record attention over V and the merge of heads.

    If values are repeated, the unrepeated ones stay too, because they are views of the storage of
    the queries.
    """
    output, values = core.output(), core.repeated("values", core.value_size)
    s, d = core.tape.microbatch.seq_length, core.value_size
    operand = values or value

    def forward(order: IssueOrder) -> None:
        """Issue the product with V and the merge of heads."""
        if values:
            order.compute(core.repeat(values, saves=(value,)))
        saves = operand, probabilities
        order.compute(core.product("attention over V", (s, d, s), Phase.FORWARD, saves=saves))
        order.compute(elementwise("merge heads", output.num_bytes, output.num_bytes))

    def backward(order: IssueOrder) -> None:
        """Issue the gradients of scores and values."""
        phase = Phase.INPUT_GRADIENT
        name = "attention over V scores gradient"
        order.compute(core.product(name, (s, s, d), phase, reads=(operand,)))
        name = "attention over V value gradient"
        order.compute(core.product(name, (s, d, s), phase, reads=(probabilities,)))
        if values:
            order.compute(core.repeat_gradient(values, reads=(value,)))

    core.tape.record("attention over V", (probabilities, value), (output,), forward, backward)
    return output
