"""Column- and row-parallel linear layers with the collectives f, f̄, g and ḡ.

The order is that of Megatron-LM's `LinearWithGradAccumulationAndAsyncCommunication`: without
sequence parallelism, the backward all-reduce overlaps the weight gradient. With it, the second
all-gather overlaps the input gradient, and the reduce-scatter overlaps the weight gradient.
Row-parallel collectives and the column-parallel gather of the forward pass are exposed; userbuffers
overlap them with chunks of their products (`blocks.userbuffers`). In fp8 (`workload.fp8`) the
inputs of all products are cast, gathered and saved in fp8.
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.workload.blocks.userbuffers import (
    NUM_SPLITS,
    copy_into_buffer,
    in_buffer,
    multiply_gathered,
    multiply_scattered,
)
from simtrain.workload.fp8 import (
    FP8_BYTES,
    Fp8Recipe,
    cast_copies,
    fp8_tensors,
    issue_casts,
    issue_casts_again,
    issue_weight_casts,
    recipe_of,
    recipe_or_none,
    transpose,
)
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Microbatch, Parameter, Tape
from simtrain.workload.work import Collective, CollectiveKind, Gemm, KernelFamily, ProductType

_STREAM = KernelFamily.STREAM


@dataclass(frozen=True, slots=True)
class LinearProducts:
    """The three products of a linear layer on this rank.

    Args:
        name, microbatch: of the layer.
        inputs, outputs: sizes of the weight on this rank.
        tokens: rows of the input; None for all tokens of the microbatch.
        copies: ranks that compute the same product.
        fp8: the recipe; None without fp8.
    """

    name: str
    inputs: int
    outputs: int
    microbatch: Microbatch
    tokens: int | None = None
    copies: int = 1
    fp8: Fp8Recipe | None = None

    @property
    def _rows(self) -> int:
        return self.microbatch.tokens if self.tokens is None else self.tokens

    def forward(self, saves: tuple[Tensor, ...], row_chunks: int = 1, column_chunks: int = 1) -> Op:
        """Return Y = X A, tokens × inputs times inputs × outputs, or one of its equal chunks.

        X is a saved tensor, or a gathered copy of one in the global buffer. So only Y counts.
        """
        rows, size = self._rows, self.microbatch.element_bytes
        held = size * rows * self.outputs
        work = self._product(rows // row_chunks, self.outputs // column_chunks, self.inputs)
        return Op(self.name, work, Phase.FORWARD, saves, holds_bytes=held, counts_saved=False)

    def input_gradient(self, row_chunks: int = 1) -> Op:
        """Return dX = dY Aᵀ, or one of its equal chunks."""
        rows, size = self._rows, self.microbatch.element_bytes
        held = size * rows * (self.outputs + self.inputs)
        work = self._product(rows // row_chunks, self.inputs, self.outputs)
        name, phase = f"{self.name} input gradient", Phase.INPUT_GRADIENT
        return Op(name, work, phase, holds_bytes=held, counts_saved=False)

    def weight_gradient(self, saved: tuple[Tensor, ...]) -> tuple[Op, ...]:
        """Return dA += Xᵀ dY, which the product itself adds to the gradient buffer.

        dX, as large as X, exists at the same time. If the software stack does not fuse the sum, the
        product writes a gradient in the compute type, and a kernel adds it to the buffer, unless
        each microbatch's gradients are reduced alone (`Microbatch.adds_gradients`).
        """
        batch, rows = self.microbatch, self._rows
        size, adds = batch.element_bytes, batch.adds_gradients
        fused = adds and batch.kernels.fused_gradient_accumulation
        given, dtype = self._operands
        work = Gemm(
            self.outputs,
            self.inputs,
            rows,
            element_bytes=given,
            output_element_bytes=batch.gradient_bytes if fused else size,
            accumulate=fused,
            copies=self.copies,
            dtype=dtype,
        )
        held = rows * (given * self.outputs + size * self.inputs)
        name, phase = f"{self.name} weight gradient", Phase.WEIGHT_GRADIENT
        product = Op(name, work, phase, reads=saved, holds_bytes=held, counts_saved=False)
        if fused or not adds:
            return (product,)
        number = self.inputs * self.outputs
        once, buffer = number * size, number * batch.gradient_bytes
        sizes, other_bytes = (once + buffer, buffer), size * rows * self.inputs
        return (
            product.replace(holds_bytes=held + once),
            elementwise(
                f"{name} sum", *sizes, phase, holds_bytes=other_bytes + once, family=_STREAM
            ),
        )

    def cast_weight(self, order: IssueOrder, phase: Phase = Phase.FORWARD) -> None:
        """Issue the ops that make the fp8 copy of the weight for one product."""
        if self.fp8:
            number = self.inputs * self.outputs
            issue_weight_casts(order, self.microbatch, self.name, number, phase)

    def cast_input_again(self, order: IssueOrder) -> None:
        """Issue the cast of the input for the weight gradient, if the input is saved in bf16."""
        if self.fp8:
            issue_casts_again(order, self.microbatch, self.name, self._rows * self.inputs)

    def _product(self, m: int, n: int, k: int) -> Gemm:
        given, dtype = self._operands
        sizes = given, self.microbatch.element_bytes
        return Gemm(m, n, k, 1, *sizes, dtype=dtype, copies=self.copies)

    @property
    def _operands(self) -> tuple[int, ProductType]:
        """Bytes of an operand's element, and its data type."""
        if self.fp8:
            return FP8_BYTES, self.fp8.dtype
        return self.microbatch.element_bytes, self.microbatch.dtype


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
) -> Tensor:
    """Record a column-parallel linear layer: the weight is split by columns over the ranks.

    Args:
        tape: of the block.
        x: this rank's tokens, of whole width.
        outputs: columns of the whole weight, a multiple of t.
        name: name of its products.
        label: name of the collectives f and g; `name` by default.
        bias: whether it has a bias.
        skip_bias_add: the next kernel adds the bias, as with Megatron-LM's argument.
        output_name: name of the output.
        tied: name of the weight if another block shares it.
        holds_weight: whether to record the weight as a parameter.
        in_fp8: whether its products are in fp8 if linear layers are.
        has_userbuffers: whether it uses userbuffers if linear layers do.

    Returns:
        All tokens, outputs / t wide.
    """
    batch, label = tape.microbatch, label or name
    fp8 = recipe_or_none(batch) if in_fp8 else None
    products = LinearProducts(name, x.width, outputs // batch.tensor.num_ranks, batch, fp8=fp8)
    is_cast = x in tape.fp8_copies
    saved = _saved(tape, x, name) if fp8 else (x,)
    y = tape.tensor(output_name or f"{name} output", batch.tokens, products.outputs)
    # Bytes of the gradient of all rows of x, which is in a userbuffer.
    whole_bytes = batch.tokens * x.width * batch.element_bytes
    may_pipeline = has_userbuffers and batch.sequence_parallel

    def forward(order: IssueOrder) -> None:
        """Gather the input, or pipeline its gather with the product."""
        if fp8 and not is_cast:
            gathered = batch.sequence_parallel
            issue_casts(order, batch, f"{name} input", x.rows * x.width, gathered=gathered)
        products.cast_weight(order)
        if may_pipeline and order.overlap.userbuffers:
            chunk = products.forward(saved, row_chunks=batch.tensor.num_ranks)
            multiply_gathered(order, f"{label} g", _gathered(products), chunk)
        else:
            if batch.sequence_parallel:
                order.block(_gather(products, f"{label} g", Phase.FORWARD))
            order.compute(products.forward(saved))
        if bias and not skip_bias_add:
            order.compute(elementwise(f"{name} bias", y.num_bytes, y.num_bytes))

    def backward(order: IssueOrder) -> None:
        """Gather the input again, and hide collectives behind both gradients."""
        regather, buffered_bytes = None, 0
        if fp8:
            issue_casts(order, batch, f"{name} gradient", y.rows * y.width, Phase.INPUT_GRADIENT)
        products.cast_weight(order, Phase.INPUT_GRADIENT)
        if batch.sequence_parallel:
            phase, redone = Phase.WEIGHT_GRADIENT, f"{label} g redone"
            gather = _gather(products, redone, phase, extra=True)
            if may_pipeline and order.overlap.userbuffers:
                buffered_bytes = whole_bytes
                copy = copy_into_buffer(redone, _gathered(products), phase)
                order.compute(copy.replace(holds_bytes=y.num_bytes))
                gather = gather.replace(holds_bytes=0, buffer_bytes=0)
            regather = order.launch(gather)
        order.compute(in_buffer(products.input_gradient(), buffered_bytes))
        order.wait(regather)
        reduce = order.launch(in_buffer(_input_gradient_sum(batch, label, x.width), buffered_bytes))
        if fp8 and fp8.transposes and batch.sequence_parallel:
            elements, phase = batch.tokens * x.width, Phase.WEIGHT_GRADIENT
            order.compute(transpose(f"{name} input", elements, phase))
        products.cast_input_again(order)
        for op in products.weight_gradient(saved):
            order.compute(in_buffer(op, buffered_bytes))
        if bias and not skip_bias_add:
            order.compute(bias_gradient(name, y.num_bytes, batch.element_bytes * y.width))
        order.wait(reduce)

    tape.record(
        name,
        (x,),
        (y,),
        forward,
        backward,
        parameters=_parameters(products, bias=bias, tied=tied) if holds_weight else (),
        deferred_gradient_bytes=fp8.copy_bytes(y.rows * y.width) if fp8 else y.num_bytes,
    )
    return y


def row_linear(
    tape: Tape, x: Tensor, name: str, label: str = "", *, bias: bool = True, output_name: str = ""
) -> Tensor:
    """Record a row-parallel linear layer to the hidden size: the weight is split by rows.

    The next kernel adds its bias. `label` names the collectives f̄ and ḡ. Returns this rank's
    tokens, of whole width.
    """
    batch, label = tape.microbatch, label or name
    fp8 = recipe_or_none(batch)
    products = LinearProducts(name, x.width, batch.hidden, batch, fp8=fp8)
    saved = _saved(tape, x, name) if fp8 else (x,)
    y = tape.tensor(output_name or f"{name} output", batch.local_tokens, batch.hidden)
    whole_bytes, elements = batch.activation_bytes, batch.tokens * batch.hidden

    def forward(order: IssueOrder) -> None:
        """Issue the product and the reduction of its output, or pipeline both."""
        if fp8:
            issue_casts(order, batch, f"{name} input", x.rows * x.width)
        products.cast_weight(order)
        if batch.sequence_parallel:
            kind, operator = CollectiveKind.REDUCE_SCATTER, "ḡ"
        else:
            kind, operator = CollectiveKind.ALL_REDUCE, "f̄"
        if batch.sequence_parallel and order.overlap.userbuffers:
            chunk = products.forward(saved, column_chunks=NUM_SPLITS)
            work = Collective(kind, whole_bytes // NUM_SPLITS, batch.tensor)
            scatter = collective(f"{label} {operator}", work)
            # The userbuffer contains everything except this rank's rows of the sum.
            held = {"holds_bytes": batch.local_bytes}
            multiply_scattered(order, chunk.replace(**held), scatter.replace(**held))
        else:
            work = Collective(kind, whole_bytes, batch.tensor)
            order.compute(products.forward(saved))
            order.block(collective(f"{label} {operator}", work))

    def backward(order: IssueOrder) -> None:
        """Gather the output's gradient, or pipeline its gather with the input gradient."""
        phase, gathered = Phase.INPUT_GRADIENT, batch.sequence_parallel
        num_bytes = whole_bytes
        if fp8:
            given = y.rows * y.width
            issue_casts(order, batch, f"{name} gradient", given, phase, gathered=gathered)
            num_bytes = cast_copies(fp8, gathered=True) * fp8.copy_bytes(elements)
        products.cast_weight(order, phase)
        pipelines = gathered and order.overlap.userbuffers
        transposes = gathered and fp8 and fp8.transposes
        # Bytes of the gathered gradient without this rank's rows.
        buffered_bytes = num_bytes * (batch.tensor.num_ranks - 1) // batch.tensor.num_ranks
        work = Collective(CollectiveKind.ALL_GATHER, num_bytes, batch.tensor)
        if pipelines:
            chunk = in_buffer(products.input_gradient(batch.tensor.num_ranks), buffered_bytes)
            multiply_gathered(order, f"{label} ḡ", work, chunk)
        elif gathered:
            order.block(collective(f"{label} ḡ", work, phase))
        if transposes:
            order.compute(transpose(f"{name} gradient", elements, phase))
        if not pipelines:
            order.compute(products.input_gradient())
        products.cast_input_again(order)
        for op in products.weight_gradient(saved):
            in_buffers = pipelines and not transposes
            order.compute(in_buffer(op, buffered_bytes) if in_buffers else op)

    tape.record(
        name,
        (x,),
        (y,),
        forward,
        backward,
        parameters=_parameters(products, bias=bias, whole_bias=True),
        deferred_gradient_bytes=fp8.copy_bytes(elements) if fp8 else whole_bytes,
    )
    return y


def replicated_linear(tape: Tape, x: Tensor, outputs: int, name: str) -> Tensor:
    """Record a linear layer without bias that is replicated on the tensor-parallel ranks.

    Under sequence parallelism each rank computes its own tokens, and its weight gradient is a
    partial sum. Otherwise all ranks compute all tokens. There is no communication.
    """
    batch = tape.microbatch
    fp8 = recipe_or_none(batch)
    copies = 1 if batch.sequence_parallel else batch.tensor.num_ranks
    products = LinearProducts(name, x.width, outputs, batch, x.rows, copies, fp8)
    saved = _saved(tape, x, name) if fp8 else (x,)
    y = tape.tensor(f"{name} output", x.rows, outputs)

    def forward(order: IssueOrder) -> None:
        if fp8:
            issue_casts(order, batch, f"{name} input", x.rows * x.width)
        products.cast_weight(order)
        order.compute(products.forward(saved))

    def backward(order: IssueOrder) -> None:
        """Issue the input gradient and the weight gradient."""
        if fp8:
            issue_casts(order, batch, f"{name} gradient", y.rows * y.width, Phase.INPUT_GRADIENT)
        products.cast_weight(order, Phase.INPUT_GRADIENT)
        order.compute(products.input_gradient())
        products.cast_input_again(order)
        order.compute_all(products.weight_gradient(saved))

    tape.record(
        name,
        (x,),
        (y,),
        forward,
        backward,
        parameters=(Parameter(x.width * outputs, is_whole=True, in_fp8=fp8 is not None),),
        deferred_gradient_bytes=fp8.copy_bytes(y.rows * y.width) if fp8 else y.num_bytes,
    )
    return y


def bias_gradient(name: str, read_bytes: int, write_bytes: int) -> Op:
    """Return the kernel that sums the output gradient over tokens (`grad_output.sum(dim=0)`)."""
    return elementwise(f"{name} bias gradient", read_bytes, write_bytes, Phase.WEIGHT_GRADIENT)


def _parameters(
    products: LinearProducts, *, bias: bool, whole_bias: bool = False, tied: str = ""
) -> tuple[Parameter, ...]:
    in_fp8 = products.fp8 is not None
    weight = Parameter(products.inputs * products.outputs, tied=tied, in_fp8=in_fp8)
    return (weight, Parameter(products.outputs, is_whole=whole_bias)) if bias else (weight,)


def _saved(tape: Tape, x: Tensor, name: str) -> tuple[Tensor, ...]:
    """Return the saved fp8 copies of an input, or the input itself if the recipe saves bf16."""
    if recipe_of(tape.microbatch).saves_bf16:
        return (x,)
    return tape.fp8_copies.get(x) or fp8_tensors(tape, f"{name} input in fp8", x.rows, x.width)


def _gather(products: LinearProducts, name: str, phase: Phase, *, extra: bool = False) -> Op:
    """Return the all-gather of an input into the framework's global buffer."""
    work = _gathered(products)
    return collective(name, work, phase, buffer_bytes=work.array_bytes, is_extra=extra)


def _gathered(products: LinearProducts) -> Collective:
    batch, elements = products.microbatch, products.microbatch.tokens * products.inputs
    fp8 = products.fp8
    num_bytes = fp8.copy_bytes(elements) if fp8 else elements * batch.element_bytes
    return Collective(CollectiveKind.ALL_GATHER, num_bytes, batch.tensor)


def _input_gradient_sum(batch: Microbatch, label: str, width: int) -> Op:
    num_bytes = batch.tokens * width * batch.element_bytes
    if batch.sequence_parallel:
        kind, operator = CollectiveKind.REDUCE_SCATTER, "g"
    else:
        kind, operator = CollectiveKind.ALL_REDUCE, "f"
    work = Collective(kind, num_bytes, batch.tensor)
    return collective(f"{label} {operator}", work, Phase.INPUT_GRADIENT)
