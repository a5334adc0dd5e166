"""Embedding and cross entropy, with a vocabulary split over the tensor-parallel ranks.

Sources: Megatron-LM's `VocabParallelEmbedding` and `Embedding` (each rank looks up its own part of
the vocabulary, zeroes the rest, and the parts are summed) and `vocab_parallel_cross_entropy`, whose
three all-reduces of s · b fp32 numbers are the maximum, the target's logit and the sum of
exponentials.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simtrain.workload.ops import Op, Ops, Phase, Tensor, collective, elementwise, gradient
from simtrain.workload.tape import Microbatch, Parameter, Tape
from simtrain.workload.work import FP32_BYTES, CollectiveKind, Elementwise, KernelFamily

_LABEL_BYTES = 8


def look_up(tape: Tape, vocab: int, *, tied: str = "") -> Tensor:
    """Record the lookup of word embeddings.

    The gradient of the table is not a matrix product. It is scattered into a zeroed table in the
    compute type, which another kernel adds to the gradient buffer.
    """
    batch = tape.microbatch
    elements = vocab // batch.tensor.num_ranks * batch.hidden
    words = tape.tensor("word embedding", batch.local_tokens, batch.hidden)
    whole, phase, stream = batch.activation_bytes, Phase.WEIGHT_GRADIENT, KernelFamily.STREAM
    table, buffer = elements * batch.element_bytes, elements * batch.gradient_bytes
    divided = batch.sequence_parallel
    kind = CollectiveKind.REDUCE_SCATTER if divided else CollectiveKind.ALL_REDUCE
    forward = (
        elementwise("embedding lookup", whole, whole, holds_bytes=whole),
        elementwise("embedding mask", 0, whole),
        collective("embedding sum", kind, whole, batch.tensor),
    )
    add = "embedding accumulate", table + buffer, buffer
    backward: Ops = (
        elementwise("embedding table zero", 0, table, phase, family=stream),
        elementwise("embedding scatter", 2 * whole, whole, phase, holds_bytes=whole + table),
    )
    if batch.adds_gradients:
        backward += (elementwise(*add, phase, holds_bytes=table, family=stream),)
    if divided:
        gather = CollectiveKind.ALL_GATHER, whole, batch.tensor, Phase.INPUT_GRADIENT
        backward = collective("embedding sum", *gather), *backward
    weights = (Parameter(elements, tied=tied),)
    return tape.record(
        "embedding", (), words, forward, backward, parameters=weights, deferred_gradient_bytes=whole
    )


def positions(tape: Tape, x: Tensor) -> Tensor:
    """Record the sum of `x` and learned position embeddings."""
    y = tape.tensor("embedding output", x.rows, x.width)
    op = elementwise("position embedding", 2 * x.num_bytes, y.num_bytes)
    table = Parameter(tape.microbatch.whole_length * x.width)
    return tape.record(op.name, (x,), y, (op,), parameters=(table,))


def cross_entropy(tape: Tape, logits: Tensor, *, in_place: bool) -> None:
    """Record the loss. Logits exist in the compute type and in fp32 until it is computed.

    With `in_place`, the maximum is subtracted in place, otherwise into a copy of the fp32 logits.
    fp32 logits are not converted.
    """
    batch = tape.microbatch
    if batch.kernels.fused_cross_entropy:
        _FUSIONS[batch.kernels.cross_entropy_fusion](tape, logits)
        return
    if batch.kernels.log_softmax_loss and not in_place:
        _log_softmax_loss(tape, logits)
        return
    kept = tape.tensor("logits", logits.rows, logits.width, FP32_BYTES)
    is_fp32 = logits.element_bytes == FP32_BYTES
    logits_bytes, fp32 = 0 if is_fp32 else logits.num_bytes, kept.num_bytes
    family = KernelFamily.CROSS_ENTROPY

    both = logits_bytes + fp32
    shifted = both if in_place else both + fp32
    steps = (
        ("logits to fp32", logits_bytes, fp32, both, ()),
        ("logits maximum", fp32, 0, both, ("maximum",)),
        ("logits minus maximum", fp32, fp32, shifted, ("target",)),
        ("exponentials", fp32, fp32, shifted, ()),
        ("sum of exponentials", fp32, 0, shifted, ("sum",)),
        ("softmax of logits", fp32, fp32, shifted, ()),
    )
    forward = _kernels_of(steps[is_fp32:], tape, kept)
    # The gradient overwrites the softmax.
    reads = (kept,) if is_fp32 else ()
    backward = [gradient("cross entropy", fp32, fp32, reads=reads, holds_bytes=0, family=family)]
    if not is_fp32:
        last = "logits from fp32", fp32, logits_bytes, Phase.INPUT_GRADIENT
        backward.append(elementwise(*last, reads=(kept,), family=family))
    tape.record("cross entropy", (logits,), (), forward, backward)


def _kernels_of(steps: Iterable[tuple[Any, ...]], tape: Tape, kept: Tensor) -> list[Op]:
    """Return a kernel per step: its name, bytes read, written and held, and what ranks then reduce.

    The softmax saves `kept`. At the end, context-parallel ranks sum the loss.
    """
    ops, family = [], KernelFamily.CROSS_ENTROPY
    for name, *sizes, held_bytes, reduced in steps:
        saves = (kept,) if "softmax" in name else ()
        ops.append(elementwise(name, *sizes, saves=saves, holds_bytes=held_bytes, family=family))
        if reduced:
            num_bytes = len(reduced) * tape.microbatch.tokens * FP32_BYTES
            token_sum = CollectiveKind.ALL_REDUCE, num_bytes, tape.microbatch.tensor
            ops.append(collective(f"cross entropy {' and '.join(reduced)}", *token_sum))
    return ops + _loss_sum(tape.microbatch)


def _log_softmax_loss(tape: Tape, logits: Tensor) -> None:
    """Record torch's `F.cross_entropy`, which saves log-probabilities, of fp32 or narrow logits.

    The caller holds the logits in the compute type until the loss is computed (torchtitan/train.py:
    "need to free pred before bwd"). The gradient of the loss, with one number in each row, is an
    array of its own. The conversion back frees all fp32 arrays.

    If ranks divide the vocabulary, each operator of DTensor's formulas is a kernel with a result of
    its own (torch/distributed/tensor/parallel/loss.py, `_log_softmax`, `_nll_loss_forward` and
    `_nll_loss_and_log_softmax_backward`).
    """
    batch, rows, phase = tape.microbatch, logits.rows, Phase.INPUT_GRADIENT
    size = logits.element_bytes if batch.kernels.narrow_loss else FP32_BYTES
    kept = tape.tensor("log-probabilities", rows, logits.width, size)
    fp32, row_bytes = kept.num_bytes, logits.width * size
    is_fp32, family = logits.element_bytes == size, KernelFamily.CROSS_ENTROPY
    narrow = 0 if is_fp32 else logits.num_bytes
    work = label_gradient_work(rows, row_bytes, _LABEL_BYTES)
    backward = [Op("loss of labels gradient", work, phase, holds_bytes=fp32)]
    if batch.tensor.num_ranks == 1:
        work, most = log_softmax_work(rows, row_bytes), narrow + 2 * fp32
        forward = [Op("log-softmax of logits", work, Phase.FORWARD, (kept,), holds_bytes=most)]
        work = label_loss_work(rows, _LABEL_BYTES)
        forward.append(Op("loss of labels", work, Phase.FORWARD, holds_bytes=narrow + fp32))
        forward += _loss_sum(batch)
        work, most = log_softmax_gradient_work(rows, row_bytes), 3 * fp32
        backward.append(Op("log-softmax gradient", work, phase, reads=(kept,), holds_bytes=most))
    else:
        both, most = narrow + fp32, narrow + 3 * fp32
        steps = (
            ("logits maximum", fp32, 0, both, ("maximum",)),
            ("logits minus maximum", fp32, fp32, both + fp32, ()),
            ("exponentials", fp32, fp32, most, ()),
            ("sum of exponentials", fp32, 0, most, ("sum",)),
            ("log-softmax of logits", fp32, fp32, most, ()),
            ("loss of labels", rows * (_SECTOR_BYTES + _LABEL_BYTES), 0, both, "target"),
        )
        forward = _kernels_of(steps, tape, kept)
        backward += (
            gradient("exponentials", fp32, fp32, holds_bytes=2 * fp32, family=family),
            gradient("log-softmax", 2 * fp32, fp32, holds_bytes=3 * fp32, family=family),
            gradient("loss", fp32, fp32, reads=(kept,), holds_bytes=4 * fp32, family=family),
        )
    if not is_fp32:
        forward.insert(0, elementwise("logits to fp32", narrow, fp32))
        backward.append(elementwise("logits from fp32", fp32, narrow, phase))
    tape.record("cross entropy", (logits,), (), forward, backward)


def _native_fusion(tape: Tape, logits: Tensor) -> None:
    """Record Megatron-LM's compiled kernels, of which each makes a new tensor of its result.

    Source: core/fusions/fused_cross_entropy.py. The maximum, the exponentials and the softmax are
    kernels of their own, because all-reduces separate them: of the maximum, and of target and sum
    together. The fp32 logits stay until the loss is computed, beside the exponentials, which are
    saved. The gradient is computed in the compute type.
    """
    kept = tape.tensor("softmax of logits", logits.rows, logits.width, FP32_BYTES)
    fp32, logits_bytes, family = kept.num_bytes, logits.num_bytes, KernelFamily.CROSS_ENTROPY
    converted = 0 if logits.element_bytes == FP32_BYTES else fp32
    both, most = logits_bytes + converted, logits_bytes + converted + fp32
    steps = (
        ("logits maximum", logits_bytes, converted, both, ("maximum",)),
        ("exponentials", fp32, fp32, most, ("target", "sum")),
        (kept.name, fp32, fp32, most, ()),
    )
    backward = gradient("cross entropy", fp32, logits_bytes, reads=(kept,), family=family)
    tape.record("cross entropy", (logits,), (), _kernels_of(steps, tape, kept), (backward,))


def _loss_sum(batch: Microbatch) -> list[Op]:
    """Return the sum of losses and of the number of tokens (pretrain_gpt.py, loss_func)."""
    if not batch.context:
        return []
    sums = CollectiveKind.ALL_REDUCE, 2 * FP32_BYTES, batch.context.group
    return [collective("loss sum", *sums, holds_bytes=0)]


def _te_fusion(tape: Tape, logits: Tensor) -> None:
    """Record a kernel for maximum, target and sum, and one that overwrites logits by gradients.

    Source: Transformer Engine's Triton kernels (pytorch/triton/cross_entropy.py). Ranks gather
    three fp32 numbers per token. The backward pass multiplies by the gradient of the loss.
    """
    batch, size = tape.microbatch, logits.num_bytes
    kept = tape.tensor("logits gradient", logits.rows, logits.width)
    sums = 3 * batch.tokens * FP32_BYTES
    gather = CollectiveKind.ALL_GATHER, sums * batch.tensor.num_ranks, batch.tensor
    forward = (
        elementwise("online softmax of logits", size, sums, holds_bytes=size),
        collective("cross entropy gather", *gather, holds_bytes=0),
        elementwise("logits to gradient", size, size, saves=(kept,), holds_bytes=size),
    )
    backward = gradient("cross entropy", size, size, reads=(kept,), holds_bytes=size)
    tape.record("cross entropy", (logits,), (), forward, (backward,))


_FUSIONS = {"native": _native_fusion, "te": _te_fusion}
"""The kernels of each `cross_entropy_fusion`."""


# The kernels of torch's `F.cross_entropy`: a log-softmax and a look-up of the labels.
#
# Sources: pytorch, aten/src/ATen/native/cuda/SoftMax.cu (`cunn_SoftMaxForward`,
# `cunn_SoftMaxForwardSmem`, `cunn_SoftMaxBackward`) and Loss.cu
# (`nll_loss_forward_reduce_cuda_kernel_2d`, `nll_loss_backward_out_cuda`). A block of threads
# computes one row. It reads the row for the maximum, for the sum of exponentials and for the
# result. If the row fits into shared memory or if all rows in flight fit into the L2 cache, HBM
# sees the first pass alone.


_CACHED_ROW_BYTES = 190 << 10
"""Longest row of which all in flight fit into the L2 cache: two blocks of 1024 threads run on each
SM, so that 40 MiB of an A100 have 216 rows, and 50 MiB of an H100 264 rows."""
_SECTOR_BYTES = 32
"""The least that a GPU reads from HBM."""


def log_softmax_work(rows: int, row_bytes: int) -> Elementwise:
    """Return the log-softmax of rows: three passes that read, one of which writes."""
    size, passes = rows * row_bytes, 1 if row_bytes <= _CACHED_ROW_BYTES else 3
    return Elementwise(passes * size, size, KernelFamily.CROSS_ENTROPY)


def log_softmax_gradient_work(rows: int, row_bytes: int) -> Elementwise:
    """Return the gradient: two passes over the gradient, one over the log-probabilities."""
    size, passes = rows * row_bytes, 2 if row_bytes <= _CACHED_ROW_BYTES else 3
    return Elementwise(passes * size, size, KernelFamily.CROSS_ENTROPY, is_backward=True)


def label_loss_work(rows: int, label_bytes: int) -> Elementwise:
    """Return the mean of the labels' log-probabilities: it reads one number of each row."""
    return Elementwise(rows * (_SECTOR_BYTES + label_bytes), 0)


def label_gradient_work(rows: int, row_bytes: int, label_bytes: int) -> Elementwise:
    """Return the gradient of that mean: it writes zeros, and a number to each row."""
    written = rows * (row_bytes + _SECTOR_BYTES)
    return Elementwise(rows * label_bytes, written, KernelFamily.STREAM, is_backward=True)
