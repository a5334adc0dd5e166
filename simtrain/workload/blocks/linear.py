"""Column- and row-parallel linear layers with the collectives f, f̄, g and ḡ.

The order is that of Megatron-LM's `LinearWithGradAccumulationAndAsyncCommunication`: without
sequence parallelism the backward all-reduce hides behind the weight gradient; with it the
all-gather that is redone hides behind the input gradient, and the reduce-scatter behind the
weight gradient. The row-parallel collectives are exposed, and so is the column-parallel gather of
the forward pass; userbuffers hide these too, behind chunks of their products
(`blocks.userbuffers`). In fp8 (`workload.fp8`) the inputs of all
products are cast, gathered in fp8 and saved in fp8.
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
    """The three products of a weight of `inputs` × `outputs` elements on this rank.

    `tokens` are the rows of its input: all of the microbatch unless given. `copies` is the number
    of ranks that compute the same.
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
        """Y = X A: tokens × inputs times inputs × outputs, or one of equal chunks of it.

        X is saved, or a gathered copy of what is saved, so only Y exists beside saved tensors.
        """
        rows, size = self._rows, self.microbatch.element_bytes
        held = size * rows * self.outputs
        work = self._product(rows // row_chunks, self.outputs // column_chunks, self.inputs)
        return Op(self.name, work, Phase.FORWARD, saves, holds_bytes=held, counts_saved=False)

    def input_gradient(self, row_chunks: int = 1) -> Op:
        """dX = dY Aᵀ, or one of equal chunks of it."""
        rows, size = self._rows, self.microbatch.element_bytes
        held = size * rows * (self.outputs + self.inputs)
        work = self._product(rows // row_chunks, self.inputs, self.outputs)
        name, phase = f"{self.name} input gradient", Phase.INPUT_GRADIENT
        return Op(name, work, phase, holds_bytes=held, counts_saved=False)

    def weight_gradient(self, saved: tuple[Tensor, ...]) -> tuple[Op, ...]:
        """dA += Xᵀ dY, accumulated into the gradient buffer by the product itself.

        It runs when dX, as large as X, has just been computed. Unless the software stack fuses the
        sum, the product writes a gradient in the compute type, which a kernel adds to the buffer if
        gradients are added at all.
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
        sizes, beside = (once + buffer, buffer), size * rows * self.inputs
        return (
            product.replace(holds_bytes=held + once),
            elementwise(f"{name} sum", *sizes, phase, holds_bytes=beside + once, family=_STREAM),
        )

    def cast_weight(self, order: IssueOrder, phase: Phase = Phase.FORWARD) -> None:
        """Make the copy in fp8 of the weight, if each use makes its own."""
        if self.fp8:
            number = self.inputs * self.outputs
            issue_weight_casts(order, self.microbatch, self.name, number, phase)

    def cast_input_again(self, order: IssueOrder) -> None:
        """Make the copy in fp8 of the input that the weight gradient reads, if none is saved."""
        if self.fp8:
            issue_casts_again(order, self.microbatch, self.name, self._rows * self.inputs)

    def _product(self, m: int, n: int, k: int) -> Gemm:
        given, dtype = self._operands
        size = self.microbatch.element_bytes
        return Gemm(
            m,
            n,
            k,
            element_bytes=given,
            output_element_bytes=size,
            copies=self.copies,
            dtype=dtype,
        )

    @property
    def _operands(self) -> tuple[int, ProductType]:
        """Bytes of an element that products read, and its type."""
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
    """A linear layer whose weight is split by columns over the tensor-parallel ranks.

    Args:
        x: this rank's tokens, of whole width.
        outputs: columns of the whole weight, a multiple of t.
        name: of its products.
        label: names the operators f and g before it; by default as the products.
        bias: whether it has a bias.
        skip_bias_add: leaves adding the bias to the kernel after it, as Megatron-LM's argument.
        output_name: of the tensor that it returns: all tokens, outputs / t wide.
        tied: the name under which another block holds the same weight.
        holds_weight: whether no other product of the block has recorded the weight.
        in_fp8: whether its products are in fp8, if those of linear layers are.
        has_userbuffers: whether it is pipelined with its collectives, if linear layers are.
    """
    batch, label = tape.microbatch, label or name
    fp8 = recipe_or_none(batch) if in_fp8 else None
    products = LinearProducts(name, x.width, outputs // batch.tensor.num_ranks, batch, fp8=fp8)
    is_cast = x in tape.fp8_copies
    saved = _saved(tape, x, name) if fp8 else (x,)
    y = tape.tensor(output_name or f"{name} output", batch.tokens, products.outputs)
    # The gradient of all rows of x, which userbuffers hold.
    whole_bytes = batch.tokens * x.width * batch.element_bytes
    may_pipeline = has_userbuffers and batch.sequence_parallel

    def forward(order: IssueOrder) -> None:
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
    """A linear layer back to the hidden size, whose weight is split by rows.

    Its bias is added by the kernel after it. `label` names the operators f̄ and ḡ after it.
    Returns this rank's tokens, of whole width.
    """
    batch, label = tape.microbatch, label or name
    fp8 = recipe_or_none(batch)
    products = LinearProducts(name, x.width, batch.hidden, batch, fp8=fp8)
    saved = _saved(tape, x, name) if fp8 else (x,)
    y = tape.tensor(output_name or f"{name} output", batch.local_tokens, batch.hidden)
    whole_bytes, elements = batch.activation_bytes, batch.tokens * batch.hidden

    def forward(order: IssueOrder) -> None:
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
            # Only this rank's rows of the sum are not in the buffer.
            held = {"holds_bytes": batch.local_bytes}
            multiply_scattered(order, chunk.replace(**held), scatter.replace(**held))
        else:
            work = Collective(kind, whole_bytes, batch.tensor)
            order.compute(products.forward(saved))
            order.block(collective(f"{label} {operator}", work))

    def backward(order: IssueOrder) -> None:
        phase, gathered = Phase.INPUT_GRADIENT, batch.sequence_parallel
        num_bytes = whole_bytes
        if fp8:
            given = y.rows * y.width
            issue_casts(order, batch, f"{name} gradient", given, phase, gathered=gathered)
            num_bytes = cast_copies(fp8, gathered=True) * fp8.copy_bytes(elements)
        products.cast_weight(order, phase)
        pipelines = gathered and order.overlap.userbuffers
        transposes = gathered and fp8 and fp8.transposes
        # Of the gathered gradient all but this rank's rows.
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
    """A linear layer whose weight is whole on every tensor-parallel rank; it has no bias.

    Each rank computes the rows of its input: under sequence parallelism its own tokens, whose
    weight gradient is a partial sum, else all tokens as every other rank. Nothing is communicated.
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
    """Sum of the output gradient over its tokens (`grad_output.sum(dim=0)`)."""
    return elementwise(f"{name} bias gradient", read_bytes, write_bytes, Phase.WEIGHT_GRADIENT)


def _parameters(
    products: LinearProducts, *, bias: bool, whole_bias: bool = False, tied: str = ""
) -> tuple[Parameter, ...]:
    in_fp8 = products.fp8 is not None
    weight = Parameter(products.inputs * products.outputs, tied=tied, in_fp8=in_fp8)
    return (weight, Parameter(products.outputs, is_whole=whole_bias)) if bias else (weight,)


def _saved(tape: Tape, x: Tensor, name: str) -> tuple[Tensor, ...]:
    """What products in fp8 read and save of an input: the copies that it was cast to before, or
    those that the products' own cast writes; it itself if it is saved in bf16."""
    if recipe_of(tape.microbatch).saves_bf16:
        return (x,)
    return tape.fp8_copies.get(x) or fp8_tensors(tape, f"{name} input in fp8", x.rows, x.width)


def _gather(products: LinearProducts, name: str, phase: Phase, *, extra: bool = False) -> Op:
    """All tokens of an input that is split over the ranks, into the framework's buffer."""
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
