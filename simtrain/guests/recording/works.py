"""The work of recorded ops: what determines their durations.

Each rule reads the shapes of an op, by its name in torch. Other ops move their tensors through
memory, and are priced by these bytes. Those that no rule knows are named in reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TypeAlias

from simtrain.base.mesh import Group
from simtrain.base.values import dataclass
from simtrain.guests.recording.program import OPS_DATA, ProgramOp, ProgramTensor
from simtrain.scenario.software import PAPER_KERNELS, Kernels
from simtrain.workload.blocks.vocabulary import (
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
        return self.op.read

    @property
    def written(self) -> list[ProgramTensor]:
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
_PRODUCT_TYPES: Mapping[str, ProductType] = {
    "bf16": "bf16",
    "f16": "bf16",
    "f8e4m3": "fp8",
    "f8e5m2": "fp8",
}


def _product(kernel: RecordedKernel, first: int, *, is_batched: bool = False) -> Work:
    left, right = kernel.read[first : first + 2]
    return kernel.product(left, right, left.shape[0] if is_batched else 1)


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


def _convolution(kernel: RecordedKernel, *, is_backward: bool) -> Work:
    """Price a convolution as products of its unfolded input (im2col) and its weight."""
    x, weight = kernel.read[is_backward : is_backward + 2]
    output = kernel.read[0] if is_backward else kernel.written[0]
    # A gradient of the bias is a sum, and not every input needs one.
    needed = [each for each in kernel.written if each.shape in (x.shape, weight.shape)]
    times = len(needed) if is_backward else 1
    if not times:
        return _bytes_of(kernel)
    channels, per_group, *window = weight.shape
    groups = max(1, x.shape[1] // max(1, per_group))
    m, k = output.num_stored // max(1, output.shape[1]), prod(window, start=per_group)
    sizes = x.element_bytes, int(output.element_bytes)
    return Gemm(m, channels // groups, k, times * groups, *sizes, dtype=kernel.product_type(x))


def _attention(kernel: RecordedKernel) -> Work:
    """Price fused attention: [..., heads, tokens, channels]."""
    # Functions that recompute attention run it in the backward pass, too.
    is_backward = kernel.op.op == _ATTENTION_BACKWARD
    query, key, value = kernel.read[is_backward : is_backward + 3]
    if not (query.num_stored and key.num_stored and value.num_stored):  # zeros
        return _filled(kernel)
    heads, batch = query.shape[-3], prod(query.shape[:-3])
    queries, keys, width = query.shape[-2], key.shape[-2], query.shape[-1]
    if query.element_bytes > _FUSED_BYTES:
        # Without a fused kernel: two products of all scores, and five in the backward pass.
        number = (5 if is_backward else 2) * batch * heads
        sizes = query.element_bytes, int(query.element_bytes)
        return Gemm(queries, keys, width, number, *sizes, dtype=kernel.product_type(query))
    is_causal = bool(kernel.op.options.get("is_causal", False)) and queries <= keys
    return FusedAttention(
        batch * heads,
        queries,
        width,
        is_backward,
        int(query.element_bytes),
        kv_heads=None if key.shape[-3] == heads else batch * key.shape[-3],
        value_size=None if value.shape[-1] == width else value.shape[-1],
        kv_length=None if keys == queries else keys,
        is_causal=is_causal,
        kernel=kernel.kernels.attention_kernel,
        speed=kernel.kernels.attention_speed,
        is_of_causal_model=is_causal and queries == keys,
    )


def _rows(tensor: ProgramTensor) -> tuple[int, int]:
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
    return Elementwise(0, sum(x.num_bytes for x in kernel.written), KernelFamily.STREAM)


def _bytes_of(kernel: RecordedKernel, family: KernelFamily = KernelFamily.FUSED) -> Elementwise:
    read, written = (sum(x.num_bytes for x in xs) for xs in (kernel.read, kernel.written))
    return Elementwise(read, written, family, kernel.is_backward)


def _layout(left: ProgramTensor, right: ProgramTensor) -> str:
    """Return the layout of a product as BLAS names it, for row-major results."""
    if left.is_transposed:
        return "NT"
    return "TN" if right.is_transposed else "NN"


def _full_names(text: str) -> list[str]:
    return [name if "." in name else f"aten.{name}" for name in text.split()]


_NO_KERNEL = frozenset(_full_names(OPS_DATA["no_kernel"]["ops"]))
_BYTES = {
    name: KernelFamily(family)
    for family, text in OPS_DATA["bytes"].items()
    for name in _full_names(text)
}
_RULES: Mapping[str, Rule] = {
    **{name: partial(_bytes_of, family=family) for name, family in _BYTES.items()},
    **dict.fromkeys(_full_names(OPS_DATA["written"]["ops"]), _filled),
    "aten.mm": partial(_product, first=0),
    "aten._scaled_mm": partial(_product, first=0),
    "aten.addmm": partial(_product, first=1),
    "aten.bmm": partial(_product, first=0, is_batched=True),
    "aten.baddbmm": partial(_product, first=1, is_batched=True),
    "aten._grouped_mm": _grouped_mm,
    "aten.convolution": partial(_convolution, is_backward=False),
    "aten.convolution_backward": partial(_convolution, is_backward=True),
    "simtrain.attention": _attention,
    _ATTENTION_BACKWARD: _attention,
    **dict.fromkeys(_full_names("embedding index_select index gather"), _looked_up),
    "aten.embedding_dense_backward": _embedding_gradient,
    **dict.fromkeys(_full_names("_fused_adam_ _fused_adamw_"), _fused_adam),
    "aten._log_softmax": lambda kernel: log_softmax_work(*_rows(kernel.read[0])),
    "aten._log_softmax_backward_data": lambda kernel: log_softmax_gradient_work(
        *_rows(kernel.read[0])
    ),
    "aten.nll_loss_forward": lambda kernel: label_loss_work(
        _rows(kernel.read[0])[0], int(kernel.read[1].element_bytes)
    ),
    "aten.nll_loss_backward": lambda kernel: label_gradient_work(
        *_rows(kernel.read[1]), int(kernel.read[2].element_bytes)
    ),
}
_COLLECTIVES = {
    name: CollectiveKind(kind)
    for kind, text in OPS_DATA["collectives"].items()
    for name in text.split()
}
_TAKE_LISTS = {"c10d.allgather_", "c10d.reduce_scatter_", "c10d.alltoall_"}
"""Collectives whose arrays are lists with a tensor of each rank."""


def has_rule(op: ProgramOp) -> bool:
    """Return whether a rule prices an op; others are priced by their bytes."""
    return op.op in _RULES or op.op in _NO_KERNEL or op.op in _COLLECTIVES


def kernel_work(kernel: RecordedKernel) -> Work | None:
    """Return the work of an op that is no collective; None if it runs no kernel."""
    writes = kernel.written
    if kernel.op.op in _NO_KERNEL or (writes and not any(x.num_stored for x in writes)):
        return None  # nothing to compute: torch launches nothing for empty results
    rule = _RULES.get(kernel.op.op)
    return rule(kernel) if rule else _bytes_of(kernel)


def collective_work(op: ProgramOp, group: Group) -> Collective:
    """Return the work of a collective: its array is its largest tensor, or a whole list."""
    kind = _COLLECTIVES.get(op.op, CollectiveKind.ALL_REDUCE)
    num_bytes = max((each.num_bytes for each in [*op.read, *op.written]), default=0)
    if op.op in _TAKE_LISTS:
        # A tensor of each rank, and this rank's own result or contribution; of an exchange, two.
        ranks = group.num_ranks
        others = ranks if kind is CollectiveKind.ALL_TO_ALL else 1
        num_bytes = sum(x.num_bytes for x in op.read) * ranks // (ranks + others)
    return Collective(kind, max(1, num_bytes), group)
