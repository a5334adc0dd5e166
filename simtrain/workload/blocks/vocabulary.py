"""Embedding and cross entropy, with a vocabulary split over the tensor-parallel ranks.

Sources: Megatron-LM's `VocabParallelEmbedding` and `Embedding` (each rank looks up its own part of
the vocabulary, zeroes the rest, and the parts are summed) and `vocab_parallel_cross_entropy`, whose
three all-reduces of s · b fp32 numbers are the maximum, the target's logit and the sum of
exponentials.
"""

from __future__ import annotations

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Microbatch, Parameter, Tape
from simtrain.workload.work import FP32_BYTES, Collective, CollectiveKind, KernelFamily


def look_up(tape: Tape, vocab: int, *, tied: str = "") -> Tensor:
    """Record the lookup of word embeddings.

    The gradient of the table is not a matrix product. It is scattered into a zeroed table in the
    compute type, which another kernel adds to the gradient buffer.
    """
    batch = tape.microbatch
    elements = vocab // batch.tensor.num_ranks * batch.hidden
    words = tape.tensor("word embedding", batch.local_tokens, batch.hidden)
    whole = batch.activation_bytes

    def forward(order: IssueOrder) -> None:
        """Issue the look-up and the sum over the tensor-parallel ranks."""
        order.compute(elementwise("embedding lookup", whole, whole, holds_bytes=whole))
        order.compute(elementwise("embedding mask", 0, whole))
        kind = CollectiveKind.ALL_REDUCE
        if batch.sequence_parallel:
            kind = CollectiveKind.REDUCE_SCATTER
        order.block(collective("embedding sum", Collective(kind, whole, batch.tensor)))

    def backward(order: IssueOrder) -> None:
        """Gather the gradient and add it to that of the table."""
        if batch.sequence_parallel:
            work = Collective(CollectiveKind.ALL_GATHER, whole, batch.tensor)
            order.block(collective("embedding sum", work, Phase.INPUT_GRADIENT))
        for op in _table_gradient(batch, elements):
            order.compute(op)

    tape.record(
        "embedding",
        (),
        (words,),
        forward,
        backward,
        parameters=(Parameter(elements, tied=tied),),
        deferred_gradient_bytes=whole,
    )
    return words


def _table_gradient(batch: Microbatch, elements: int) -> tuple[Op, ...]:
    phase, stream = Phase.WEIGHT_GRADIENT, KernelFamily.STREAM
    whole = batch.activation_bytes
    table, buffer = elements * batch.element_bytes, elements * batch.gradient_bytes
    add = "embedding accumulate", table + buffer, buffer
    return (
        elementwise("embedding table zero", 0, table, phase, family=stream),
        elementwise("embedding scatter", 2 * whole, whole, phase, holds_bytes=whole + table),
        elementwise(*add, phase, holds_bytes=table, family=stream),
    )


def positions(tape: Tape, x: Tensor) -> Tensor:
    """Record the sum of `x` and learned position embeddings."""
    y = tape.tensor("embedding output", x.rows, x.width)
    op = elementwise("position embedding", 2 * x.num_bytes, y.num_bytes)
    table = Parameter(tape.microbatch.whole_length * x.width)
    tape.record(op.name, (x,), (y,), lambda order: order.compute(op), None, parameters=(table,))
    return y


def cross_entropy(tape: Tape, logits: Tensor, *, in_place: bool = True) -> None:
    """Record the loss. Logits exist in the compute type and in fp32 until it is computed.

    With `in_place`, the maximum is subtracted in place, otherwise into a copy of the fp32 logits.
    fp32 logits are not converted. A software stack with a fused kernel has no fp32 logits.
    """
    batch = tape.microbatch
    if batch.kernels.fused_cross_entropy:
        _fused_cross_entropy(tape, logits)
        return
    kept = tape.tensor("logits", logits.rows, logits.width, FP32_BYTES)
    is_fp32 = logits.element_bytes == FP32_BYTES
    given, fp32 = 0 if is_fp32 else logits.num_bytes, kept.num_bytes
    family = KernelFamily.CROSS_ENTROPY

    def forward(order: IssueOrder) -> None:
        """Issue the steps of the loss, and the all-reduces of maximum, target and sum."""
        both = given + fp32
        shifted = both if in_place else both + fp32
        steps = (
            ("logits to fp32", given, fp32, both, None),
            ("logits maximum", fp32, 0, both, "maximum"),
            ("logits minus maximum", fp32, fp32, shifted, "target"),
            ("exponentials", fp32, fp32, shifted, None),
            ("sum of exponentials", fp32, 0, shifted, "sum"),
            ("softmax of logits", fp32, fp32, shifted, None),
        )
        for name, read_bytes, write_bytes, held, reduced in steps[is_fp32:]:
            saves = (kept,) if name == "softmax of logits" else ()
            sizes = read_bytes, write_bytes
            order.compute(elementwise(name, *sizes, saves=saves, holds_bytes=held, family=family))
            if reduced:
                order.block(_token_sum(batch, f"cross entropy {reduced}"))
        if batch.context:
            # The sum of losses and the number of tokens (pretrain_gpt.py, loss_func).
            work = Collective(CollectiveKind.ALL_REDUCE, 2 * FP32_BYTES, batch.context.group)
            order.block(collective("loss sum", work, holds_activation=False))

    def backward(order: IssueOrder) -> None:
        """Issue the gradient, which overwrites the softmax, and its cast."""
        phase = Phase.INPUT_GRADIENT
        # The gradient overwrites the softmax.
        reads = (kept,) if is_fp32 else ()
        name = "cross entropy gradient"
        sizes = fp32, fp32
        order.compute(elementwise(name, *sizes, phase, reads=reads, holds_bytes=0, family=family))
        if not is_fp32:
            name, sizes = "logits from fp32", (fp32, given)
            order.compute(elementwise(name, *sizes, phase, reads=(kept,), family=family))

    tape.record("cross entropy", (logits,), (), forward, backward)


def _fused_cross_entropy(tape: Tape, logits: Tensor) -> None:
    """Record a kernel for maximum, target and sum, and one that overwrites logits by gradients.

    Source: Transformer Engine's Triton kernels (pytorch/triton/cross_entropy.py). Ranks gather
    three fp32 numbers per token. The backward pass multiplies by the gradient of the loss.
    """
    batch, size = tape.microbatch, logits.num_bytes
    kept = tape.tensor("logits gradient", logits.rows, logits.width)
    sums = 3 * batch.tokens * FP32_BYTES

    def forward(order: IssueOrder) -> None:
        """Issue the softmax, the gather of its sums and the gradient of the logits."""
        order.compute(elementwise("online softmax of logits", size, sums, holds_bytes=size))
        whole_bytes = sums * batch.tensor.num_ranks
        work = Collective(CollectiveKind.ALL_GATHER, whole_bytes, batch.tensor)
        order.block(collective("cross entropy gather", work, holds_activation=False))
        name, saves = "logits to gradient", (kept,)
        order.compute(elementwise(name, size, size, saves=saves, holds_bytes=size))

    def backward(order: IssueOrder) -> None:
        sizes, phase = (size, size), Phase.INPUT_GRADIENT
        name = "cross entropy gradient"
        order.compute(elementwise(name, *sizes, phase, reads=(kept,), holds_bytes=size))

    tape.record("cross entropy", (logits,), (), forward, backward)


def _token_sum(batch: Microbatch, name: str) -> Op:
    """Return an all-reduce of one fp32 number per token."""
    work = Collective(CollectiveKind.ALL_REDUCE, batch.tokens * FP32_BYTES, batch.tensor)
    return collective(name, work)
