"""The work of recorded ops: what determines their durations.

Each rule reads the shapes of an op, by its name in torch. Other ops move their tensors through
memory, and are priced by these bytes. Those that no rule knows are named in reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from simtrain.base.mesh import Group
from simtrain.base.program import ProgramOp, ProgramTensor
from simtrain.scenario.software import PAPER_KERNELS, Kernels
from simtrain.workload.torch_loss import (
    label_gradient_work,
    label_loss_work,
    log_softmax_gradient_work,
    log_softmax_work,
)
from simtrain.workload.work import (
    Collective,
    CollectiveKind,
    Elementwise,
    FusedAttention,
    Gemm,
    GroupedGemm,
    KernelFamily,
    ProductType,
    Work,
)


@dataclass(frozen=True, slots=True)
class RecordedKernel:
    """A recorded op that is no collective.

    Args:
        op: the op.
        is_backward: it belongs to the backward pass, and is not recomputed.
        f32_products: data type of products of fp32 numbers.
        kernels: of the software stack.
    """

    op: ProgramOp
    is_backward: bool
    f32_products: ProductType = "fp32"
    kernels: Kernels = PAPER_KERNELS

    @property
    def read(self) -> list[ProgramTensor]:
        """The tensors that it reads."""
        return self.op.read

    @property
    def written(self) -> list[ProgramTensor]:
        """The tensors that it writes."""
        return self.op.written

    def product_type(self, tensor: ProgramTensor) -> ProductType:
        """Return the data type of a product with an operand."""
        return _PRODUCT_TYPES.get(tensor.dtype) or self.f32_products

    def product(self, left: ProgramTensor, right: ProgramTensor, batch: int = 1) -> Gemm:
        """Return a product of two matrices, or of as many pairs of them as `batch` says."""
        m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
        sizes = left.element_bytes, int(self.written[0].element_bytes)
        dtype, layout = self.product_type(left), _layout(left, right)
        return Gemm(m, n, k, batch, *sizes, dtype=dtype, layout=layout)


_ADAM_ARGUMENTS = 4
"""Equal lists that Adam changes by its schema: parameters, gradients and two averages. With amsgrad
it changes one more."""
_ATTENTION_BACKWARD = "simtrain.attention_backward"
_FUSED_BYTES = 2
"""Bytes of the widest elements of fused attention."""
Rule: TypeAlias = Callable[[RecordedKernel], Work]


def _mm(kernel: RecordedKernel) -> Work:
    left, right = kernel.read[:2]
    return kernel.product(left, right)


def _addmm(kernel: RecordedKernel) -> Work:
    left, right = kernel.read[1:3]
    return kernel.product(left, right)


def _bmm(kernel: RecordedKernel) -> Work:
    left, right = kernel.read[:2]
    return kernel.product(left, right, left.shape[0])


def _baddbmm(kernel: RecordedKernel) -> Work:
    left, right = kernel.read[1:3]
    return kernel.product(left, right, left.shape[0])


def _grouped_mm(kernel: RecordedKernel) -> Work:
    """Price the products of experts; the sizes of their groups are taken for equal."""
    left, right = kernel.read[:2]
    output = kernel.written[0]
    if len(output.shape) == 3 and len(left.shape) == 2:  # weight gradients: sums over tokens
        batch, rows = output.shape[0], left.shape[1]
        inputs, outputs, is_weight = right.shape[1], left.shape[0], True
    else:
        batch, rows = right.shape[0], left.shape[-2]
        rows *= batch if len(left.shape) == 3 else 1
        inputs, outputs, is_weight = left.shape[-1], right.shape[-1], False
    return GroupedGemm(
        batch,
        rows,
        inputs,
        outputs,
        mean_rows=rows,
        model_rows=rows,
        is_weight_gradient=is_weight,
        element_bytes=left.element_bytes,
        output_element_bytes=int(output.element_bytes),
        dtype=kernel.product_type(left),
        layout="NT" if is_weight else _layout(left, right),
    )


def _convolution(kernel: RecordedKernel) -> Work:
    """Price a convolution as the product of its unfolded input (im2col) and its weight."""
    x, weight = kernel.read[:2]
    return _convolved(kernel, x, weight, kernel.written[0], 1)


def _convolution_backward(kernel: RecordedKernel) -> Work:
    gradient, x, weight = kernel.read[:3]
    # A gradient of the bias is a sum, and not every input needs one.
    products = [each for each in kernel.written if each.shape in (x.shape, weight.shape)]
    return _convolved(kernel, x, weight, gradient, len(products))


def _convolved(
    kernel: RecordedKernel,
    x: ProgramTensor,
    weight: ProgramTensor,
    output: ProgramTensor,
    times: int,
) -> Work:
    channels, per_group, *window = weight.shape
    groups = max(1, x.shape[1] // per_group)
    m, k = output.num_stored // max(1, output.shape[1]), per_group
    for size in window:
        k *= size
    if not times:
        return _bytes_of(kernel, KernelFamily.FUSED)
    sizes = x.element_bytes, int(output.element_bytes)
    dtype = kernel.product_type(x)
    return Gemm(m, channels // groups, k, times * groups, *sizes, dtype=dtype)


def _attention(kernel: RecordedKernel) -> Work:
    """Price fused attention: [..., heads, tokens, channels]."""
    # Functions that recompute attention run it in the backward pass, too.
    is_backward = kernel.op.op == _ATTENTION_BACKWARD
    query, key, value = kernel.read[is_backward : is_backward + 3]
    if not (query.num_stored and key.num_stored):  # zeros
        return _filled(kernel)
    heads, batch = query.shape[-3], 1
    for size in query.shape[:-3]:
        batch *= size
    if query.element_bytes > _FUSED_BYTES:
        # Without a fused kernel: two products of all scores, and five in the backward pass.
        m, n, k = query.shape[-2], key.shape[-2], query.shape[-1]
        number = (5 if is_backward else 2) * batch * heads
        sizes = query.element_bytes, int(query.element_bytes)
        return Gemm(m, n, k, number, *sizes, dtype=kernel.product_type(query))
    is_causal = bool(kernel.op.options.get("is_causal", False))
    return FusedAttention(
        batch * heads,
        query.shape[-2],
        query.shape[-1],
        is_backward,
        int(query.element_bytes),
        kv_heads=None if key.shape[-3] == heads else batch * key.shape[-3],
        value_size=None if value.shape[-1] == query.shape[-1] else value.shape[-1],
        kv_length=None if key.shape[-2] == query.shape[-2] else key.shape[-2],
        is_causal=is_causal and query.shape[-2] <= key.shape[-2],
        kernel=kernel.kernels.attention_kernel,
        speed=kernel.kernels.attention_speed,
        is_of_causal_model=False,
    )


def _log_softmax(kernel: RecordedKernel) -> Work:
    return log_softmax_work(*_rows(kernel.read[0]))


def _log_softmax_gradient(kernel: RecordedKernel) -> Work:
    return log_softmax_gradient_work(*_rows(kernel.read[0]))


def _label_loss(kernel: RecordedKernel) -> Work:
    probabilities, labels = kernel.read[:2]
    return label_loss_work(_rows(probabilities)[0], int(labels.element_bytes))


def _label_gradient(kernel: RecordedKernel) -> Work:
    probabilities, labels = kernel.read[1:3]
    return label_gradient_work(*_rows(probabilities), int(labels.element_bytes))


def _rows(tensor: ProgramTensor) -> tuple[int, int]:
    """Return the number of rows of a tensor and the bytes of each."""
    width = tensor.shape[-1] if tensor.shape else 1
    return max(1, tensor.num_stored // max(1, width)), int(width * tensor.element_bytes)


def _fused_adam(kernel: RecordedKernel) -> Work:
    """Price Adam in one kernel, which writes all but the gradients among its arguments.

    Source: pytorch, native/cuda/fused_adam_utils.cuh: gradients are stored only if they are scaled.
    """
    written = sum(x.num_bytes for x in kernel.written)
    lists = _ADAM_ARGUMENTS + bool(kernel.op.options.get("amsgrad"))
    read = sum(x.num_bytes for x in kernel.read)
    return Elementwise(read, written - written // lists, KernelFamily.STREAM)


def _embedding_gradient(kernel: RecordedKernel) -> Work:
    """Price the gradient of a table: zeros, partial sums of equal tokens, and their scatter."""
    gradient, table = kernel.read[0].num_bytes, sum(x.num_bytes for x in kernel.written)
    return Elementwise(2 * gradient, table + gradient, KernelFamily.STREAM, is_backward=True)


def _looked_up(kernel: RecordedKernel) -> Work:
    """Price a look-up: it reads the rows that it writes, and their numbers."""
    rows = sum(tensor.num_bytes for tensor in kernel.written)
    numbers = sum(tensor.num_bytes for tensor in kernel.read[1:])
    return Elementwise(rows + numbers, rows, KernelFamily.FUSED, kernel.is_backward)


def _filled(kernel: RecordedKernel) -> Work:
    """Price a kernel that only writes."""
    return Elementwise(0, sum(x.num_bytes for x in kernel.written), KernelFamily.STREAM)


def _moved(family: KernelFamily) -> Rule:
    """Return the rule of a kernel that moves all its tensors."""

    def work(kernel: RecordedKernel) -> Work:
        """Price a kernel by its bytes."""
        return _bytes_of(kernel, family)

    return work


def _bytes_of(kernel: RecordedKernel, family: KernelFamily) -> Elementwise:
    read, written = (sum(x.num_bytes for x in xs) for xs in (kernel.read, kernel.written))
    return Elementwise(read, written, family, kernel.is_backward)


def _layout(left: ProgramTensor, right: ProgramTensor) -> str:
    """Return the layout of a product as BLAS names it, for row-major results."""
    if left.is_transposed:
        return "NT"
    return "TN" if right.is_transposed else "NN"


def _words(text: str) -> list[str]:
    return text.split()


_PRODUCT_TYPES: Mapping[str, ProductType] = MappingProxyType(
    {"bf16": "bf16", "f16": "bf16", "f8e4m3": "fp8", "f8e5m2": "fp8"}
)
_NO_KERNEL = frozenset(
    f"aten.{name}"
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)
"""Ops that allocate memory and run no kernel."""
_POINTWISE = _words("""
    abs add add_ addcdiv addcdiv_ addcmul addcmul_ bitwise_and bitwise_not bitwise_or clamp clamp_
    clamp_min cos cos_ cumsum div div_ elu eq erf exp exp_ ge gelu gelu_backward gt hardtanh
    isinf isnan le leaky_relu lerp lerp_ log log1p logical_and logical_not logical_or lt
    masked_fill masked_fill_ maximum mean minimum mse_loss mse_loss_backward mul mul_ ne neg neg_
    norm pow pow_ reciprocal relu relu_ rsqrt rsqrt_ rsub sigmoid sigmoid_backward sign silu
    silu_backward sin softplus softplus_backward sqrt sqrt_ square sub sub_ sum tanh tanh_backward
    threshold_backward topk tril triu var_mean where all any argmax max min amax amin sort
    linalg_vector_norm scatter_add scatter_add_ scatter scatter_ index_add index_add_ index_put
    index_put_ flip roll cat clone copy_ _to_copy stack repeat bernoulli bernoulli_ rand_like
    randn_like native_group_norm native_group_norm_backward avg_pool2d max_pool2d_with_indices
    constant_pad_nd slice_backward
    select_backward
""")
_FOREACH = _words("""
    add add_ addcdiv_ addcmul_ div div_ lerp_ mul mul_ norm sqrt sqrt_ copy_ neg reciprocal_
    maximum_
""")
"""Kernels over lists of parameters or gradients, which stream like copies, as Adam does."""
_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "aten.mm": _mm,
        "aten.addmm": _addmm,
        "aten.bmm": _bmm,
        "aten.baddbmm": _baddbmm,
        "aten._scaled_mm": _mm,
        "aten._grouped_mm": _grouped_mm,
        "aten.convolution": _convolution,
        "aten.convolution_backward": _convolution_backward,
        "simtrain.attention": _attention,
        _ATTENTION_BACKWARD: _attention,
        "aten.embedding": _looked_up,
        "aten.index_select": _looked_up,
        "aten.index": _looked_up,
        "aten.gather": _looked_up,
        "aten.slice_scatter": _moved(KernelFamily.STREAM),
        "aten.embedding_dense_backward": _embedding_gradient,
        "aten._fused_adam_": _fused_adam,
        "aten._fused_adamw_": _fused_adam,
        "aten._log_softmax": _log_softmax,
        "aten._log_softmax_backward_data": _log_softmax_gradient,
        "aten.nll_loss_forward": _label_loss,
        "aten.nll_loss_backward": _label_gradient,
        "aten.native_layer_norm": _moved(KernelFamily.LAYER_NORM),
        "aten.native_layer_norm_backward": _moved(KernelFamily.LAYER_NORM),
        "simtrain.rms_norm": _moved(KernelFamily.RMS_NORM),
        "simtrain.rms_norm_backward": _moved(KernelFamily.RMS_NORM),
        "aten._fused_rms_norm": _moved(KernelFamily.RMS_NORM),
        "aten._fused_rms_norm_backward": _moved(KernelFamily.RMS_NORM),
        "aten._softmax": _moved(KernelFamily.SOFTMAX),
        "aten._softmax_backward_data": _moved(KernelFamily.SOFTMAX),
        "aten.native_dropout": _moved(KernelFamily.DROPOUT),
        "aten.native_dropout_backward": _moved(KernelFamily.DROPOUT),
    }
    | {
        name: _moved(KernelFamily.STREAM)
        for name in (
            *("aten.split_with_sizes_copy", "fsdp.all_gather_copy_in"),
            *("fsdp.split_with_sizes_copy", "fsdp.chunk_cat", "aten._chunk_cat"),
            *(f"aten._foreach_{name}" for name in _FOREACH),
        )
    }
    | {
        f"aten.{name}": _filled
        for name in (
            *("arange", "full", "full_like", "fill_", "zeros", "zeros_like", "zero_"),
            *("ones", "ones_like", "new_zeros", "new_ones", "new_full", "scalar_tensor"),
        )
    }
    | {f"aten.{name}": _moved(KernelFamily.FUSED) for name in _POINTWISE}
)


def has_rule(op: ProgramOp) -> bool:
    """Return whether a rule prices an op; others are priced by their bytes."""
    return op.op in _RULES or op.op in _NO_KERNEL or op.op in _COLLECTIVES


def kernel_work(kernel: RecordedKernel) -> Work | None:
    """Return the work of an op that is no collective; None if it runs no kernel."""
    writes = kernel.written
    if kernel.op.op in _NO_KERNEL or (writes and not any(x.num_stored for x in writes)):
        return None  # nothing to compute: torch launches nothing for empty results
    rule = _RULES.get(kernel.op.op)
    return rule(kernel) if rule else _bytes_of(kernel, KernelFamily.FUSED)


def _largest(tensors: list[ProgramTensor]) -> int:
    """Return the bytes of the largest list of equal tensors, or of all if they differ."""
    return max((tensor.num_bytes for tensor in tensors), default=0)


_COLLECTIVES: Mapping[str, CollectiveKind] = MappingProxyType(
    {
        f"c10d.{name}": kind
        for name, kind in (
            ("allreduce_", CollectiveKind.ALL_REDUCE),
            ("reduce_", CollectiveKind.ALL_REDUCE),
            ("broadcast_", CollectiveKind.ALL_GATHER),
            ("allgather_", CollectiveKind.ALL_GATHER),
            ("_allgather_base_", CollectiveKind.ALL_GATHER),
            ("reduce_scatter_", CollectiveKind.REDUCE_SCATTER),
            ("_reduce_scatter_base_", CollectiveKind.REDUCE_SCATTER),
            ("alltoall_", CollectiveKind.ALL_TO_ALL),
            ("alltoall_base_", CollectiveKind.ALL_TO_ALL),
            ("gather_", CollectiveKind.ALL_GATHER),
            ("scatter_", CollectiveKind.ALL_GATHER),
            ("send", CollectiveKind.SEND),
            ("recv_", CollectiveKind.SEND),
            ("barrier", CollectiveKind.ALL_REDUCE),
        )
    }
    | {
        f"_c10d_functional.{name}": kind
        for name, kind in (
            ("all_reduce", CollectiveKind.ALL_REDUCE),
            ("all_reduce_", CollectiveKind.ALL_REDUCE),
            ("broadcast", CollectiveKind.ALL_GATHER),
            ("broadcast_", CollectiveKind.ALL_GATHER),
            ("all_gather_into_tensor", CollectiveKind.ALL_GATHER),
            ("all_gather_into_tensor_out", CollectiveKind.ALL_GATHER),
            ("reduce_scatter_tensor", CollectiveKind.REDUCE_SCATTER),
            ("reduce_scatter_tensor_out", CollectiveKind.REDUCE_SCATTER),
            ("all_to_all_single", CollectiveKind.ALL_TO_ALL),
        )
    }
    | {"_dtensor.shard_dim_alltoall": CollectiveKind.ALL_TO_ALL}
)
"""Kinds of collectives. A broadcast, a gather and a scatter take the time of an all-gather of their
array, a reduction that of an all-reduce, at most."""
_TAKE_LISTS = {"c10d.allgather_", "c10d.reduce_scatter_", "c10d.alltoall_"}
"""Collectives whose arrays are lists with a tensor of each rank."""


def collective_work(op: ProgramOp, group: Group) -> Collective:
    """Return the work of a collective: its array is its largest tensor, or a whole list."""
    kind = _COLLECTIVES.get(op.op, CollectiveKind.ALL_REDUCE)
    num_bytes = _largest([*op.read, *op.written])
    if op.op in _TAKE_LISTS:
        # A tensor of each rank, and this rank's own result or contribution; of an exchange, two.
        ranks = group.num_ranks
        others = ranks if kind is CollectiveKind.ALL_TO_ALL else 1
        num_bytes = sum(x.num_bytes for x in op.read) * ranks // (ranks + others)
    return Collective(kind, max(1, num_bytes), group)
