"""Column- and row-parallel linear layers with the collectives f, f̄, g and ḡ.

The order is that of Megatron-LM's `LinearWithGradAccumulationAndAsyncCommunication`: without
sequence parallelism, the backward all-reduce overlaps the weight gradient. With it, the second
all-gather overlaps the input gradient, and the reduce-scatter overlaps the weight gradient.
Row-parallel collectives and the column-parallel gather of the forward pass are exposed; userbuffers
overlap them with chunks of their products ("Userbuffers" below). In fp8 (`workload.fp8`) the
inputs of all products are cast, gathered and saved in fp8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from simtrain.base.mesh import Group
from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError
from simtrain.workload.fp8 import (
    FP8_BYTES,
    Fp8Recipe,
    cast_copies,
    casts,
    casts_again,
    casts_later,
    columns,
    fp8_tensors,
    recipe_or_none,
    transpose,
    weight_casts,
)
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Ops, Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Microbatch, Parameter, Steps, Tape
from simtrain.workload.work import (
    Collective,
    CollectiveKind,
    Gemm,
    GroupedGemm,
    KernelFamily,
    ProductType,
)

# Collectives and transfers as nodes. They block, unless an overlap defers the wait.
#
# The backward pass of an all-gather is a reduce-scatter, and vice versa. That of an all-reduce has
# no op. That of an all-to-all or a transfer is the reverse exchange.


def all_gather(tape: Tape, x: Tensor, group: Group, name: str) -> Tensor:
    """Record an all-gather of rows over a group."""
    kinds = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    return _exchange(tape, x, x.rows * group.num_ranks, group, name, *kinds)


def gather_columns(tape: Tape, x: Tensor, name: str, *, all_tokens: bool = False) -> Tensor:
    """Record a gather of columns: this rank's tokens with the columns of all tensor-parallel ranks.

    All columns are gathered and copied side by side. Under sequence parallelism, only this rank's
    tokens remain, and their gradients are gathered, unless `all_tokens` remain. Source:
    Megatron-LM's `gather_from_tensor_model_parallel_region` and
    `scatter_to_sequence_parallel_region`.
    """
    batch = tape.microbatch
    if batch.tensor.num_ranks == 1:
        return x
    rows = x.rows if all_tokens else batch.local_tokens
    y = tape.tensor(f"{name} output", rows, x.width * batch.tensor.num_ranks)
    whole_bytes, phase = x.num_bytes * batch.tensor.num_ranks, Phase.INPUT_GRADIENT
    gather = CollectiveKind.ALL_GATHER, whole_bytes, batch.tensor
    forward = collective(name, *gather), elementwise(f"{name} copy", whole_bytes, whole_bytes)
    backward: Ops = (elementwise(f"{name} gradient copy", x.num_bytes, x.num_bytes, phase),)
    if batch.sequence_parallel and not all_tokens:
        backward = collective(f"{name} gradient", *gather, phase), *backward
    return tape.record(name, (x,), y, forward, backward)


def reduce_scatter(tape: Tape, x: Tensor, group: Group, name: str) -> Tensor:
    """Record a reduce-scatter of rows over a group."""
    kinds = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER
    return _exchange(tape, x, x.rows // group.num_ranks, group, name, *kinds)


def all_reduce(tape: Tape, x: Tensor, group: Group, name: str) -> Tensor:
    """Record an all-reduce over a group, which has no backward op (f̄)."""
    return _exchange(tape, x, x.rows, group, name, CollectiveKind.ALL_REDUCE, None)


def all_to_all(
    tape: Tape,
    x: Tensor,
    group: Group,
    name: str,
    rows: int | None = None,
    *,
    needs_host: bool = False,
) -> Tensor:
    """Record an all-to-all over a group.

    `rows` is the number of rows that this rank receives; by default as many as it sends. The larger
    number determines the duration. `needs_host` is as in `Op`, for the forward pass.
    """
    kind, received = CollectiveKind.ALL_TO_ALL, x.rows if rows is None else rows
    return _exchange(tape, x, received, group, name, kind, kind, needs_host=needs_host)


def send(tape: Tape, x: Tensor, group: Group, name: str) -> Tensor:
    """Record a transfer: each rank of a group sends to the next; return the received tensor."""
    kind = CollectiveKind.SEND
    return _exchange(tape, x, x.rows, group, name, kind, kind)


def _exchange(
    tape: Tape,
    x: Tensor,
    rows: int,
    group: Group,
    name: str,
    there: CollectiveKind,
    back: CollectiveKind | None,
    *,
    needs_host: bool = False,
) -> Tensor:
    y = tape.tensor(f"{name} output", rows, x.width, x.element_bytes)
    whole_bytes = max(x.num_bytes, y.num_bytes)
    backward: Ops = ()
    if back is not None:
        phase = Phase.INPUT_GRADIENT
        backward = (collective(f"{name} gradient", back, whole_bytes, group, phase),)
    forward = collective(name, there, whole_bytes, group).replace(needs_host=needs_host)
    return tape.record(name, (x,), y, (forward,), backward)


# The ops of a linear layer on one rank: its three products, and its casts to fp8.


@dataclass(frozen=True, slots=True)
class LinearOps:
    """The ops of a linear layer on this rank. In fp8 (`workload.fp8`) it casts operands first.

    Args:
        name, microbatch: of the layer.
        rows: tokens that its products read.
        inputs, outputs: sizes of the weight on this rank.
        saved: the input, or its fp8 copies, for the weight gradient.
        fp8: the recipe; None without fp8.
        is_cast: the kernel before the layer has cast the input.
        copies: ranks that compute the same product.
        casts_again: the weight gradient casts the input again, if it needs to.
        has_cast_gradient: the gradient of the output arrives in fp8, by rows.
    """

    name: str
    microbatch: Microbatch
    rows: int
    inputs: int
    outputs: int
    saved: tuple[Tensor, ...]
    fp8: Fp8Recipe | None
    is_cast: bool
    copies: int = 1
    casts_again: bool = True
    has_cast_gradient: bool = False

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs

    @property
    def output_bytes(self) -> int:
        return self.rows * self.outputs * self.microbatch.element_bytes

    @property
    def input_bytes(self) -> int:
        return self.rows * self.inputs * self.microbatch.element_bytes

    def operand_bytes(self, elements: int) -> int:
        if self.fp8:
            return self.fp8.copy_bytes(elements)
        return elements * self.microbatch.element_bytes

    def casts(
        self, operand: Tensor, phase: Phase = Phase.FORWARD, *, gathered: bool = False
    ) -> Iterator[Op]:
        """Yield the casts of the weight, and of the input (forward) or the output's gradient.

        `operand` is the part of it on this rank before ranks gather it, if they do.
        """
        if self.fp8 is None:
            return
        batch, is_forward = self.microbatch, phase is Phase.FORWARD
        if self.has_cast_gradient and not is_forward:
            if not batch.is_frozen:
                yield columns(batch, f"{self.name} gradient", operand.elements, phase)
        elif not (self.is_cast and is_forward):
            name = f"{self.name} {'input' if is_forward else 'gradient'}"
            rows_only = is_forward and casts_later(batch, self.saved)
            how = {"gathered": gathered, "rows_only": rows_only}
            yield from casts(batch, name, operand.elements, phase, **how)
        yield from weight_casts(batch, self.name, self.weights, phase)

    def product(self, row_chunks: int = 1, column_chunks: int = 1) -> Op:
        """Return Y = X A, rows × inputs times inputs × outputs, or one of its equal chunks.

        X is a saved tensor, or a gathered copy of one in the global buffer. So only Y counts.
        """
        rows, columns = self.rows // row_chunks, self.outputs // column_chunks
        work, held_bytes = self._work(rows, columns, self.inputs), self.output_bytes
        return Op(
            self.name, work, Phase.FORWARD, self.saved, holds_bytes=held_bytes, counts_saved=False
        )

    def input_gradient(self, row_chunks: int = 1) -> Op:
        """Return dX = dY Aᵀ, or one of its equal chunks."""
        work = self._work(self.rows // row_chunks, self.inputs, self.outputs, "NN")
        held_bytes = self.output_bytes + self.input_bytes
        name, phase = f"{self.name} input gradient", Phase.INPUT_GRADIENT
        return Op(name, work, phase, holds_bytes=held_bytes, counts_saved=False)

    def weight_gradient(self) -> Iterator[Op]:
        """Yield dA += Xᵀ dY, which the product itself adds to the gradient buffer.

        dX, as large as X, exists at the same time. If the software stack does not fuse the sum, the
        product writes a gradient in the compute type, and a kernel adds it to the buffer, unless
        each microbatch's gradients are reduced alone (`Microbatch.adds_gradients`).
        """
        batch, phase, name = self.microbatch, Phase.WEIGHT_GRADIENT, f"{self.name} weight gradient"
        if self.fp8 and self.casts_again:
            elements = self.rows * self.inputs
            yield from casts_again(batch, self.name, self.saved, elements)
        adds = batch.adds_gradients and not self._fuses_sum
        once, buffer = self.weights * batch.element_bytes, self.weights * batch.gradient_bytes
        waiting = once if adds else 0
        gradient_bytes = math.trunc(self.rows * self.outputs * self._operand_bytes)
        held_bytes = gradient_bytes + self.input_bytes + waiting
        work = self._weight_work()
        yield Op(name, work, phase, reads=self.saved, holds_bytes=held_bytes, counts_saved=False)
        if adds:
            held_bytes, family = self.input_bytes + once, KernelFamily.STREAM
            sizes = once + buffer, buffer
            yield elementwise(f"{name} sum", *sizes, phase, holds_bytes=held_bytes, family=family)

    def record(
        self, tape: Tape, x: Tensor, y: Tensor, passes: tuple[Steps, Steps], *parameters: Parameter
    ) -> Tensor:
        """Record the layer's forward and backward pass and its parameters; return its output."""
        deferred = self.operand_bytes(self.rows * self.outputs)
        return tape.record(
            self.name, (x,), y, *passes, parameters=parameters, deferred_gradient_bytes=deferred
        )

    def record_alone(self, tape: Tape, x: Tensor, y: Tensor, weight: Parameter) -> Tensor:
        """Record a layer without bias and without communication; return its output."""
        forward = *self.casts(x), self.product()
        backward = *self.casts(y, Phase.INPUT_GRADIENT), self.input_gradient()
        return self.record(tape, x, y, (forward, (*backward, *self.weight_gradient())), weight)

    @property
    def _fuses_sum(self) -> bool:
        batch = self.microbatch
        return batch.adds_gradients and batch.kernels.fused_gradient_accumulation

    @property
    def _weight_gradient_bytes(self) -> int:
        batch = self.microbatch
        return batch.gradient_bytes if self._fuses_sum else batch.element_bytes

    @property
    def _operand_bytes(self) -> float:
        return 1 / self.fp8.per_byte if self.fp8 else self.microbatch.element_bytes

    @property
    def _dtype(self) -> ProductType:
        return self.fp8.dtype if self.fp8 else self.microbatch.dtype

    def _work(self, m: int, n: int, k: int, layout: str = "TN") -> Gemm | GroupedGemm:
        sizes = self._operand_bytes, self.microbatch.element_bytes
        return Gemm(m, n, k, 1, *sizes, dtype=self._dtype, copies=self.copies, layout=layout)

    def _weight_work(self) -> Gemm | GroupedGemm:
        shape = self.outputs, self.inputs, self.rows
        sizes = self._operand_bytes, self._weight_gradient_bytes
        return Gemm(*shape, 1, *sizes, self._fuses_sum, self._dtype, self.copies, "NT")


def operands(
    tape: Tape, x: Tensor, name: str, *, in_fp8: bool = True
) -> tuple[tuple[Tensor, ...], Fp8Recipe | None, bool]:
    """Return the fields `saved`, `fp8` and `is_cast` of a layer with input `x`."""
    fp8 = recipe_or_none(tape.microbatch) if in_fp8 else None
    saved: tuple[Tensor, ...] = (x,)
    if fp8 and not fp8.saves_bf16 and x not in tape.originals:
        label = f"{name} input in {fp8.format}"
        saved = tape.fp8_copies.get(x) or fp8_tensors(tape, label, x.rows, x.width)
    return saved, fp8, x in tape.fp8_copies


# Userbuffers: products of linear layers pipelined with their collectives, chunk by chunk.
#
# Order and ops are the defaults of Transformer Engine's userbuffers (`initialize_ub` of
# pytorch/module/base.py and comm_gemm_overlap.cpp, version 2.10), which Megatron-LM uses for QKV,
# projection and MLP with --tp-comm-overlap. A ring exchange sends chunks of rows with copy engines.
# A pipelined reduce-scatter, and the collectives of a column-parallel layer's backward pass
# ("bulk"), run on 16 multiprocessors, and slow the concurrent product like a collective of NCCL.
# Chunks of a product run one after another, not on three streams.

NUM_SPLITS = 4
"""Chunks of a product with a pipelined reduce-scatter (`num_splits`)."""
NUM_STREAMS = 3
"""Streams of concurrent products, each with a workspace (`_NUM_MAX_UB_STREAMS`)."""
_NUM_GATHERING, _NUM_SCATTERING = 8, 4
"""Buffers for all rows that `initialize_ub` registers, for gathers and for reduce-scatters.

Gathers: ring exchanges (QKV and FC1 forward, gradients of projection and FC2), bulk gathers of QKV
and FC1, and two that only mxfp8 uses. Reduce-scatters: projection and FC2 forward, gradients of QKV
and FC1.
"""


def registered_bytes(batch: Microbatch) -> int:
    """Bytes of all 12 buffers of a rank, of s · b · h elements each; gathers of fp8 are in fp8."""
    gathered = FP8_BYTES if batch.fp8_recipe else batch.element_bytes
    element_bytes = _NUM_GATHERING * gathered + _NUM_SCATTERING * batch.element_bytes
    return batch.tokens * batch.hidden * element_bytes


def multiply_gathered(
    order: IssueOrder, name: str, part_bytes: int, group: Group, chunk: Op
) -> None:
    """Issue a product of rows that a ring gathers: each `chunk` runs while the next is received.

    A rank first copies its own rows, of `part_bytes`, into the buffer. It forwards received rows
    without waiting for their product.
    """
    order.compute(copy_into_buffer(name, part_bytes, chunk.phase, chunk.saves))
    send = Op(f"{name} to next", Collective(CollectiveKind.COPY, part_bytes, group), chunk.phase)
    sends = [order.launch(send) for _ in range(group.num_ranks - 1)]
    for sent in (None, *sends):
        order.wait(sent)
        order.compute(chunk)


def multiply_scattered(order: IssueOrder, chunk: Op, scatter: Op) -> None:
    """Issue a product, each `chunk` of which is reduce-scattered while the next one runs."""
    scattered = None
    for _ in range(NUM_SPLITS):
        order.compute(chunk)
        scattered = order.launch(scatter)
    order.wait(scattered)


def copy_into_buffer(
    name: str, part_bytes: int, phase: Phase, saves: tuple[Tensor, ...] = ()
) -> Op:
    """Return the copy of a rank's own rows into the gathered buffer; `saves` may be these rows."""
    return elementwise(
        f"{name} copy",
        part_bytes,
        part_bytes,
        phase,
        saves=saves,
        holds_bytes=part_bytes,
        family=KernelFamily.STREAM,
    )


def in_buffer(op: Op, num_bytes: int) -> Op:
    """Return the op with `num_bytes` of its tensors in a userbuffer."""
    return op.replace(holds_bytes=max(0, op.holds_bytes - num_bytes))


# Layers differ in these options, and own layers of users write them as keywords.
def column_linear(
    tape: Tape,
    x: Tensor,
    outputs: int,
    name: str,
    label: str = "",
    *,
    bias: bool = True,
    skip_bias_add: bool = False,
    output_name: str = "",
    tied: str = "",
    holds_weight: bool = True,
    in_fp8: bool = True,
    has_userbuffers: bool = True,
    input_of: Microbatch | None = None,
) -> Tensor:
    """Record a column-parallel linear layer; return all tokens, outputs / t wide.

    Args:
        x: this rank's tokens, of whole width.
        outputs: columns of the whole weight, a multiple of t (else E507).
        name: name of its products.
        label: name of the collectives f and g; `name` by default.
        skip_bias_add: the next kernel adds the bias, as with Megatron-LM's argument.
        tied: name of the weight if another block shares it.
        holds_weight: whether to record the weight as a parameter.
        in_fp8: whether its products are in fp8 if linear layers are.
        has_userbuffers: whether it uses userbuffers if linear layers do.
        input_of: how ranks divide its input; as the tape's microbatch by default.
    """
    batch, num_ranks = input_of or tape.microbatch, tape.microbatch.tensor.num_ranks
    _check_outputs(outputs, num_ranks, name)
    read = operands(tape, x, name, in_fp8=in_fp8)
    ops = LinearOps(name, batch, batch.tokens, x.width, outputs // num_ranks, *read)
    y = tape.tensor(output_name or f"{name} output", batch.tokens, ops.outputs)
    adds_bias = bias and not skip_bias_add
    layer = _ColumnParallel(ops, x, y, label or name, adds_bias, has_userbuffers)
    parameters = _parameters(ops, bias=bias, tied=tied) if holds_weight else ()
    return ops.record(tape, x, y, (layer.forward, layer.backward), *parameters)


def column_linears(
    tape: Tape,
    x: Tensor,
    outputs: dict[str, int],
    label: str,
    *,
    biases: dict[str, bool],
    adapt: AddAdapter | None = None,
) -> tuple[Tensor, ...]:
    """Record column-parallel linear layers of one input; each returns all tokens, outputs / t wide.

    Their input is gathered once, by a collective that nothing hides, and all of them save the
    gathered input. Source: torchtitan's `PrepareModuleInput` before wq, wk, wv and before w1, w3.

    Args:
        x: this rank's tokens, of whole width.
        outputs: columns of each whole weight by the name of its products, multiples of t (E507).
        label: name of the collectives f and g.
        biases: by the name of the products, whether the layer adds a bias.
        adapt: records the layers' adapters, which read the input before it is cast to fp8.
    """
    batch, num_ranks = tape.microbatch, tape.microbatch.tensor.num_ranks
    whole = _replicated(tape, x, label, in_fp8=adapt is None)
    gathered = replace(batch, sequence_parallel=False)
    results: list[Tensor] = []
    for name, width in outputs.items():
        _check_outputs(width, num_ranks, name)
        saved, fp8, is_cast = operands(tape, whole, name)
        sizes = batch.tokens, x.width, width // num_ranks
        # The compiler merges the casts of one input.
        ops = LinearOps(name, gathered, *sizes, saved, fp8, is_cast, casts_again=not results)
        if fp8:
            tape.fp8_copies.setdefault(whole, saved)
        y = tape.tensor(f"{name} output", batch.tokens, ops.outputs)
        adds_bias = biases[name]
        layer = _ColumnParallel(
            ops, whole, y, name, adds_bias, has_userbuffers=False, is_replicated=True
        )
        parameters = _parameters(ops, bias=adds_bias)
        y = ops.record(tape, whole, y, (layer.forward, layer.backward), *parameters)
        results.append(adapt(whole, y, name) if adapt else y)
    return tuple(results)


def without_ranks(batch: Microbatch) -> Microbatch:
    """Return the microbatch of a layer whose tensor-parallel ranks exchange nothing."""
    alone = replace(batch.tensor, num_ranks=1, ranks_per_node=1)
    return replace(batch, tensor=alone, sequence_parallel=False)


AddAdapter = Callable[[Tensor, Tensor, str], Tensor]
"""From the input and the output of a layer and its name: the output with its adapter's added."""


def _replicated(tape: Tape, x: Tensor, label: str, *, in_fp8: bool) -> Tensor:
    """Record g or f: gather all tokens, or only sum the gradients of the tensor-parallel ranks."""
    batch = tape.microbatch
    if batch.tensor.num_ranks == 1:
        return x
    if batch.sequence_parallel:
        fp8 = recipe_or_none(batch) if in_fp8 else None
        gather = _gather_in_fp8 if fp8 and fp8.saves_rows else all_gather
        return gather(tape, x, batch.tensor, f"{label} g")
    y = tape.tensor(f"{label} input", x.rows, x.width, storage=x.storage)
    work = CollectiveKind.ALL_REDUCE, x.num_bytes, batch.tensor
    backward = (collective(f"{label} f", *work, Phase.INPUT_GRADIENT),)
    return tape.record(f"{label} f", (x,), y, (), backward)


def _gather_in_fp8(tape: Tape, x: Tensor, group: Group, name: str) -> Tensor:
    """Record a gather in fp8, with the cast before it unless the norm has cast; save the result.

    The gradient is summed in bf16. Source: torchao's `PrepareFloat8ModuleInput`.
    """
    batch, phase = tape.microbatch, Phase.INPUT_GRADIENT
    y = tape.tensor(f"{name} output", x.rows * group.num_ranks, x.width)
    copies = tape.fp8_copies[y] = fp8_tensors(tape, f"{name} output in fp8", y.rows, y.width)
    has_cast = x in tape.fp8_copies
    cast = () if has_cast else tuple(casts(batch, f"{name} input", x.elements, gathered=True))
    num_bytes = sum(tensor.num_bytes for tensor in copies)
    gather = collective(name, CollectiveKind.ALL_GATHER, num_bytes, group)
    work = CollectiveKind.REDUCE_SCATTER, y.num_bytes, group, phase
    return tape.record(name, (x,), y, (*cast, gather), (collective(f"{name} gradient", *work),))


def _check_outputs(outputs: int, num_ranks: int, name: str) -> None:
    if outputs % num_ranks:
        message = (
            f"{name} has {outputs} outputs, which {num_ranks} tensor-parallel ranks cannot share"
        )
        fix = f"write a multiple of {num_ranks}, such as {-(-outputs // num_ranks) * num_ranks}"
        raise InputError.of("E507", message, fix=fix, reason="each rank has as many columns")


@dataclass(frozen=True, slots=True)
class _ColumnParallel:
    """The passes of a column-parallel layer; fields as arguments of `column_linear`."""

    ops: LinearOps
    x: Tensor
    y: Tensor
    label: str
    adds_bias: bool
    has_userbuffers: bool
    is_replicated: bool = False
    """Whether another node gathers the input and sums its gradient (`_replicated`)."""

    def forward(self, order: IssueOrder) -> None:
        """Gather the input, or pipeline its gather with the product."""
        ops, batch, y = self.ops, self.ops.microbatch, self.y
        order.issue(ops.casts(self.x, gathered=batch.sequence_parallel))
        if self._has_pipelines(order):
            chunk, part_bytes = ops.product(row_chunks=batch.tensor.num_ranks), self._part_bytes
            multiply_gathered(order, f"{self.label} g", part_bytes, batch.tensor, chunk)
        else:
            if batch.sequence_parallel:
                order.block(self._gather(f"{self.label} g", Phase.FORWARD))
            order.compute(ops.product())
        if self.adds_bias and not ops.microbatch.kernels.biases_in_products:
            order.compute(elementwise(f"{ops.name} bias", y.num_bytes, y.num_bytes))

    def backward(self, order: IssueOrder) -> None:
        """Gather the input again, and hide collectives behind both gradients."""
        ops, batch, y = self.ops, self.ops.microbatch, self.y
        regather, buffered_bytes = None, 0
        order.issue(ops.casts(y, Phase.INPUT_GRADIENT))
        if batch.sequence_parallel:
            name, phase = f"{self.label} g redone", Phase.WEIGHT_GRADIENT
            gather = self._gather(name, phase).replace(is_extra=True)
            if self._has_pipelines(order):
                # The gradient of all rows of the input is in a userbuffer.
                buffered_bytes = ops.input_bytes
                copy = copy_into_buffer(name, self._part_bytes, phase)
                order.compute(copy.replace(holds_bytes=y.num_bytes, is_extra=True))
                gather = gather.replace(holds_bytes=0, buffer_bytes=0)
            regather = order.launch(gather)
        order.compute(in_buffer(ops.input_gradient(), buffered_bytes))
        order.wait(regather)
        reduce = None
        if not self.is_replicated:
            reduce = order.launch(in_buffer(self._input_gradient_sum(), buffered_bytes))
        transposes = ops.fp8 and ops.fp8.transposes and not ops.fp8.saves_rows
        if ops.fp8 and transposes and batch.sequence_parallel:
            elements, phase = ops.rows * ops.inputs, Phase.WEIGHT_GRADIENT
            order.compute(transpose(ops.fp8, f"{ops.name} input", elements, phase))
        for op in ops.weight_gradient():
            order.compute(in_buffer(op, buffered_bytes))
        if self.adds_bias:
            order.compute(bias_gradient(ops.name, y))
        order.wait(reduce)

    def _has_pipelines(self, order: IssueOrder) -> bool:
        sequence_parallel = self.ops.microbatch.sequence_parallel
        return self.has_userbuffers and sequence_parallel and order.overlap.userbuffers

    @property
    def _gathered_bytes(self) -> int:
        return self.ops.operand_bytes(self.ops.rows * self.ops.inputs)

    @property
    def _part_bytes(self) -> int:
        return self._gathered_bytes // self.ops.microbatch.tensor.num_ranks

    def _gather(self, name: str, phase: Phase) -> Op:
        gather = CollectiveKind.ALL_GATHER, self._gathered_bytes, self.ops.microbatch.tensor
        return collective(name, *gather, phase, buffer_bytes=self._gathered_bytes)

    def _input_gradient_sum(self) -> Op:
        ops, batch, phase = self.ops, self.ops.microbatch, Phase.INPUT_GRADIENT
        kind, operator = CollectiveKind.ALL_REDUCE, "f"
        if batch.sequence_parallel:
            kind, operator = CollectiveKind.REDUCE_SCATTER, "g"
        return collective(f"{self.label} {operator}", kind, ops.input_bytes, batch.tensor, phase)


def row_linear(
    tape: Tape,
    x: Tensor,
    name: str,
    label: str = "",
    *,
    bias: bool = True,
    outputs: int | None = None,
    in_fp8: bool = True,
    output_of: Microbatch | None = None,
) -> Tensor:
    """Record a row-parallel linear layer: the weight is split by rows over the ranks.

    Args:
        x: all tokens, with this rank's part of their width.
        name: name of its products.
        label: name of the collectives f̄ and ḡ; `name` by default.
        bias: whether it has a bias, which the next kernel adds.
        outputs: columns of the weight; the hidden size by default.
        in_fp8: whether its products are in fp8 if linear layers are.
        output_of: how ranks divide its output; as the tape's microbatch by default.

    Returns:
        This rank's tokens, of whole width.
    """
    batch, read = output_of or tape.microbatch, operands(tape, x, name, in_fp8=in_fp8)
    ops = LinearOps(name, batch, batch.tokens, x.width, outputs or batch.hidden, *read)
    y = tape.tensor(f"{name} output", batch.local_tokens, ops.outputs)
    layer = _RowParallel(ops, x, y, label or name)
    parameters = _parameters(ops, bias=bias, whole_bias=True)
    return ops.record(tape, x, y, (layer.forward, layer.backward), *parameters)


@dataclass(frozen=True, slots=True)
class _RowParallel:
    """The passes of a row-parallel layer; fields as arguments of `row_linear`."""

    ops: LinearOps
    x: Tensor
    y: Tensor
    label: str

    def forward(self, order: IssueOrder) -> None:
        """Issue the product and the reduction of its output, or pipeline both."""
        ops, batch, num_bytes = self.ops, self.ops.microbatch, self.ops.output_bytes
        order.issue(ops.casts(self.x))
        kind, name = CollectiveKind.ALL_REDUCE, f"{self.label} f̄"
        if batch.sequence_parallel:
            kind, name = CollectiveKind.REDUCE_SCATTER, f"{self.label} ḡ"
        if batch.sequence_parallel and order.overlap.userbuffers:
            # The userbuffer contains everything except this rank's rows of the sum.
            held_bytes = batch.local_bytes
            chunk = ops.product(column_chunks=NUM_SPLITS).replace(holds_bytes=held_bytes)
            scattered = kind, num_bytes // NUM_SPLITS, batch.tensor
            multiply_scattered(order, chunk, collective(name, *scattered, holds_bytes=held_bytes))
        else:
            order.compute(ops.product())
            order.block(collective(name, kind, num_bytes, batch.tensor))

    def backward(self, order: IssueOrder) -> None:
        """Gather the output's gradient, or pipeline its gather with the input gradient."""
        ops, batch, phase = self.ops, self.ops.microbatch, Phase.INPUT_GRADIENT
        gathered, num_ranks, fp8 = batch.sequence_parallel, batch.tensor.num_ranks, ops.fp8
        elements = ops.rows * ops.outputs
        order.issue(ops.casts(self.y, phase, gathered=gathered))
        copies = cast_copies(batch, gathered=True) if fp8 else 1
        name, num_bytes = f"{self.label} ḡ", copies * ops.operand_bytes(elements)
        pipelines = gathered and order.overlap.userbuffers
        transposes = gathered and fp8 and fp8.transposes and not batch.is_frozen
        transposed = fp8 if transposes else None
        # Bytes of the gathered gradient without this rank's rows.
        buffered_bytes = num_bytes * (num_ranks - 1) // num_ranks
        if pipelines:
            chunk = in_buffer(ops.input_gradient(num_ranks), buffered_bytes)
            multiply_gathered(order, name, num_bytes // num_ranks, batch.tensor, chunk)
        elif gathered:
            order.block(collective(name, CollectiveKind.ALL_GATHER, num_bytes, batch.tensor, phase))
        if transposed:
            order.compute(transpose(transposed, f"{ops.name} gradient", elements, phase))
        if not pipelines:
            order.compute(ops.input_gradient())
        in_buffers = pipelines and not transposed
        for op in ops.weight_gradient():
            order.compute(in_buffer(op, buffered_bytes) if in_buffers else op)


def replicated_linear(
    tape: Tape, x: Tensor, outputs: int, name: str, *, in_fp8: bool = True
) -> Tensor:
    """Record a linear layer without bias that is replicated on the tensor-parallel ranks.

    Each rank computes its own tokens, and its weight gradient is a partial sum; or, if `x` has all
    tokens, all ranks compute all of them. There is no communication.
    """
    batch, read = tape.microbatch, operands(tape, x, name, in_fp8=in_fp8)
    copies = batch.tensor.num_ranks * x.rows // batch.tokens
    ops = LinearOps(name, batch, x.rows, x.width, outputs, *read, copies)
    weight = Parameter(ops.weights, is_whole=True, in_fp8=ops.fp8 is not None)
    return ops.record_alone(tape, x, tape.tensor(f"{name} output", x.rows, outputs), weight)


def bias_gradient(name: str, y: Tensor) -> Op:
    """Return the kernel that sums the gradient of `y` over tokens (`grad_output.sum(dim=0)`)."""
    written = y.width * y.element_bytes
    return elementwise(f"{name} bias gradient", y.num_bytes, written, Phase.WEIGHT_GRADIENT)


def _parameters(
    ops: LinearOps, *, bias: bool, whole_bias: bool = False, tied: str = ""
) -> tuple[Parameter, ...]:
    weight = Parameter(ops.weights, tied=tied, in_fp8=ops.fp8 is not None)
    return (weight, Parameter(ops.outputs, is_whole=whole_bias)) if bias else (weight,)
