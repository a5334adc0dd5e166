"""Column- and row-parallel linear layers with the collectives f, f̄, g and ḡ.

The order is that of Megatron-LM's `LinearWithGradAccumulationAndAsyncCommunication`: without
sequence parallelism, the backward all-reduce overlaps the weight gradient. With it, the second
all-gather overlaps the input gradient, and the reduce-scatter overlaps the weight gradient.
Row-parallel collectives and the column-parallel gather of the forward pass are exposed; userbuffers
overlap them with chunks of their products (`blocks.userbuffers`). In fp8 (`workload.fp8`) the
inputs of all products are cast, gathered and saved in fp8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simtrain.base.mesh import Group
from simtrain.errors import InputError
from simtrain.workload.blocks.exchange import all_gather
from simtrain.workload.blocks.linear_ops import LinearOps, operands
from simtrain.workload.blocks.userbuffers import (
    NUM_SPLITS,
    copy_into_buffer,
    in_buffer,
    multiply_gathered,
    multiply_scattered,
)
from simtrain.workload.fp8 import cast_copies, casts, fp8_tensors, recipe_or_none, transpose
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Microbatch, Parameter, Tape
from simtrain.workload.work import CollectiveKind


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
    is_output_layer: bool = False,
) -> Tensor:
    """Record a column-parallel linear layer: the weight is split by columns over the ranks.

    On a grid of ranks (`Microbatch.grid`) it is the first layer of attention or MLP, or the output
    layer, split in the way of the grid.

    Args:
        x: this rank's tokens, of whole width.
        outputs: columns of the whole weight, a multiple of t (else E507).
        name: name of its products.
        label: name of the collectives f and g; `name` by default.
        bias: whether it has a bias.
        skip_bias_add: the next kernel adds the bias, as with Megatron-LM's argument.
        output_name: name of the output.
        tied: name of the weight if another block shares it.
        holds_weight: whether to record the weight as a parameter.
        in_fp8: whether its products are in fp8 if linear layers are.
        has_userbuffers: whether it uses userbuffers if linear layers do.
        input_of: how ranks divide its input; as the tape's microbatch by default.
        is_output_layer: whether it computes the logits.

    Returns:
        All tokens, outputs / t wide.
    """
    batch, num_ranks = input_of or tape.microbatch, tape.microbatch.tensor.num_ranks
    _check_outputs(outputs, num_ranks, name)
    if grid := tape.microbatch.grid:
        return grid.first_linear(
            tape,
            x,
            outputs,
            name,
            bias=bias,
            adds_bias=bias and not skip_bias_add,
            output_name=output_name,
            tied=tied,
            holds_weight=holds_weight,
            is_output_layer=is_output_layer,
        )
    read = operands(tape, x, name, in_fp8=in_fp8)
    ops = LinearOps(name, batch, batch.tokens, x.width, outputs // num_ranks, *read)
    y = tape.tensor(output_name or f"{name} output", batch.tokens, ops.outputs)
    adds_bias = bias and not skip_bias_add
    layer = _ColumnParallel(ops, x, y, label or name, adds_bias, has_userbuffers)
    parameters = _parameters(ops, bias=bias, tied=tied) if holds_weight else ()
    return ops.record(tape, x, y, (layer.forward, layer.backward), *parameters)


def column_linears(
    tape: Tape, x: Tensor, outputs: dict[str, int], label: str, *, biases: dict[str, bool]
) -> tuple[Tensor, ...]:
    """Record column-parallel linear layers of one input, each with products of its own.

    Their input is gathered once, by a collective that nothing hides, and all of them save the
    gathered input. Source: torchtitan's `PrepareModuleInput` before wq, wk, wv and before w1, w3.

    Args:
        x: this rank's tokens, of whole width.
        outputs: columns of each whole weight by the name of its products, multiples of t (else
            E507).
        label: name of the collectives f and g.
        biases: by the name of the products, whether the layer adds a bias.

    Returns:
        All tokens for each layer, outputs / t wide.
    """
    batch, num_ranks = tape.microbatch, tape.microbatch.tensor.num_ranks
    whole = _replicated(tape, x, label)
    gathered = replace(batch, sequence_parallel=False)
    results: list[Tensor] = []
    for name, columns in outputs.items():
        _check_outputs(columns, num_ranks, name)
        saved, fp8, is_cast = operands(tape, whole, name)
        sizes = batch.tokens, x.width, columns // num_ranks
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
        results.append(ops.record(tape, whole, y, (layer.forward, layer.backward), *parameters))
    return tuple(results)


def without_ranks(batch: Microbatch) -> Microbatch:
    """Return the microbatch of a layer whose tensor-parallel ranks exchange nothing."""
    alone = replace(batch.tensor, num_ranks=1, ranks_per_node=1)
    return replace(batch, tensor=alone, sequence_parallel=False)


def _replicated(tape: Tape, x: Tensor, label: str) -> Tensor:
    """Record g or f: gather all tokens, or only sum the gradients of the tensor-parallel ranks."""
    batch = tape.microbatch
    if batch.tensor.num_ranks == 1:
        return x
    if batch.sequence_parallel:
        fp8 = recipe_or_none(batch)
        gather = _gather_in_fp8 if fp8 and fp8.saves_rows else all_gather
        return gather(tape, x, batch.tensor, f"{label} g")
    y = tape.tensor(f"{label} input", x.rows, x.width, storage=x.storage)
    work = CollectiveKind.ALL_REDUCE, x.num_bytes, batch.tensor
    backward = (collective(f"{label} f", *work, Phase.INPUT_GRADIENT),)
    tape.record(f"{label} f", (x,), (y,), (), backward)
    return y


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
    tape.record(name, (x,), (y,), (*cast, gather), (collective(f"{name} gradient", *work),))
    return y


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
        """Return the all-gather of the input into the framework's global buffer."""
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

    On a grid of ranks it is the second layer of attention or MLP.

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
    if grid := tape.microbatch.grid:
        return grid.second_linear(tape, x, outputs, name, bias=bias)
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


def replicated_linear(tape: Tape, x: Tensor, outputs: int, name: str) -> Tensor:
    """Record a linear layer without bias that is replicated on the tensor-parallel ranks.

    Under sequence parallelism each rank computes its own tokens, and its weight gradient is a
    partial sum. Otherwise all ranks compute all tokens. There is no communication.
    """
    batch = tape.microbatch
    copies = 1 if batch.sequence_parallel else batch.tensor.num_ranks
    ops = LinearOps(name, batch, x.rows, x.width, outputs, *operands(tape, x, name), copies)
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
