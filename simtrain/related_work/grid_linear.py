"""Linear layers whose matrices a grid of ranks splits (`grids`).

A rank multiplies blocks. If the split has steps (SUMMA), the ranks along an axis broadcast their
blocks in turn; the next broadcasts run beside the product, and up to two sums of results are in
flight (`Matmul_AB_2D`, `Matmul_ABT_2D` and `Matmul_ATB_2D` of Colossal-AI, which have two buffers
of each). Otherwise the order is that of Megatron-LM's column- and row-parallel layers
(`blocks.linear`): the gather for the weight gradient overlaps the input gradient, whose
reduction overlaps the weight gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simtrain.errors import InputError
from simtrain.related_work.grid_vectors import GridVector
from simtrain.related_work.grids import LinearSplit, Move, Multiplication, VectorSplit
from simtrain.workload.blocks.linear import LinearOps
from simtrain.workload.issue import Handle, IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import CollectiveKind, Gemm, KernelFamily

if TYPE_CHECKING:
    from simtrain.related_work.tensor_grid import TensorGrid

_BUFFERS = 2
"""Blocks of an operand that exist at a time: one that is multiplied, one that arrives."""


def grid_linear(
    tape: Tape,
    grid: TensorGrid,
    x: Tensor,
    outputs: int,
    split: LinearSplit,
    name: str,
    *,
    widths: tuple[int, int],
    vector: VectorSplit | None,
    adds_bias: bool = False,
    output_name: str = "",
    tied: str = "",
    holds_weight: bool = True,
) -> Tensor:
    """Record a linear layer.

    Args:
        grid: the ranks.
        x: this rank's part of the input.
        outputs: columns of the whole weight.
        split: how ranks compute it.
        name: name of its products and collectives.
        widths: number of ranks that divide the channels of the input, and of the output.
        vector: how ranks hold its bias; None without a bias.
        adds_bias: a kernel of its own adds the bias; otherwise the next kernel does.
        output_name: name of the output.
        tied: name of the weight if another block shares it.
        holds_weight: whether to record the weight as a parameter.

    Returns:
        This rank's part of the output.

    Raises:
        InputError: the ranks cannot share a dimension evenly (E507).
    """
    batch = tape.microbatch
    divided_in, divided_out = widths
    inputs = x.width * divided_in
    sizes = {
        f"{name}'s input": (inputs, grid.size(split.inputs)),
        f"{name}'s output": (outputs, max(grid.size(split.outputs), divided_out)),
    }
    for what, (size, ranks) in sizes.items():
        _check_divides(what, size, ranks)
    rows = x.rows * grid.size(grid.layout.tokens) // grid.size(split.tokens)
    block = LinearOps(
        name,
        batch,
        rows,
        inputs // grid.size(split.inputs),
        outputs // grid.size(split.outputs),
        (x,),
        None,
        is_cast=False,
    )
    y = tape.tensor(output_name or f"{name} output", x.rows, outputs // divided_out)
    weights = inputs * outputs // grid.size(grid.layout.weights)
    parameters: tuple[Parameter, ...] = (Parameter(weights, tied=tied),) if holds_weight else ()
    bias = None
    if vector is not None:
        bias = GridVector(grid, vector, y.width, f"{name} bias", batch.element_bytes)
        parameters += (bias.parameter,)
    if split.saves_blocks:
        saved = (
            tape.tensor(f"{name} gathered input", block.rows, block.inputs),
            tape.tensor(f"{name} gathered weight", block.inputs, block.outputs),
        )
        block = replace(block, saved=saved)
    layer = _GridLinear(grid, split, block, weights, y, bias, adds_bias)
    return layer.record(tape, x, parameters)


def _check_divides(what: str, size: int, ranks: int) -> None:
    if size % ranks == 0:
        return
    nearest = -(-size // ranks) * ranks
    message = f"{what} has {size} columns, which {ranks} tensor-parallel ranks cannot share"
    fix = f"write a multiple of {ranks}, such as {nearest}"
    raise InputError.of("E507", message, fix=fix, reason="each rank has as many columns")


@dataclass(frozen=True, slots=True)
class _Moved:
    """A collective on a block, with the copies around it.

    NCCL gathers rank after rank. So gathered channels are copied side by side, and channels to
    scatter are copied rank after rank (Megatron-LM's `_gather_along_last_dim` and
    `_reduce_scatter_along_last_dim`). A block is copied into the buffer that is broadcast, and a
    sum out of the buffer that was reduced (Colossal-AI's `Matmul_AB_2D` and `Matmul_ABT_2D`).

    Args:
        op: the collective.
        before: the copy before it; None without.
        after: the copy after it; None without.
    """

    op: Op
    before: Op | None
    after: Op | None

    def again(self) -> _Moved:
        """Return the same collective, which Table 2 of the paper does not count."""
        op = self.op.replace(name=f"{self.op.name} redone", is_extra=True)
        return replace(self, op=op)

    def launch(self, order: IssueOrder) -> Handle | None:
        if self.before:
            order.compute(self.before)
        return order.launch(self.op)

    def wait(self, order: IssueOrder, handle: Handle | None) -> None:
        order.wait(handle)
        if self.after:
            order.compute(self.after)


@dataclass(frozen=True, slots=True)
class _GridLinear:
    """The passes of a layer on one rank.

    Args:
        grid, split, adds_bias: as in `grid_linear`.
        block: the products of one step.
        weights: elements of the weight that this rank holds.
        y: this rank's output.
        bias: the vector of the bias; None without.
    """

    grid: TensorGrid
    split: LinearSplit
    block: LinearOps
    weights: int
    y: Tensor
    bias: GridVector | None
    adds_bias: bool

    def record(self, tape: Tape, x: Tensor, parameters: tuple[Parameter, ...]) -> Tensor:
        """Record the layer; a split backward pass saves the gradient that the products read."""
        gathers = any(move.array == "output" for move in self.split.input_gradient.before)
        deferred = self.block.output_bytes if gathers and self._steps == 1 else self.y.num_bytes
        tape.record(
            self.block.name,
            (x,),
            (self.y,),
            self.forward,
            self.backward,
            parameters=parameters,
            deferred_gradient_bytes=deferred,
        )
        return self.y

    def forward(self, order: IssueOrder) -> None:
        """Issue the products, and the bias if a kernel of its own adds it."""
        self._multiply(order, self.split.forward, Phase.FORWARD, self._product)
        if self.bias:
            order.issue(self.bias.forward())
        if self.adds_bias:
            size = self.y.num_bytes
            order.compute(elementwise(f"{self.block.name} bias", size, size))

    def backward(self, order: IssueOrder) -> None:
        """Issue both gradients."""
        if self.bias and self.adds_bias:
            order.compute(self.bias.sum_over_tokens(self.y))
        of_bias = [order.launch(op) for op in self.bias.backward()] if self.bias else []
        if self._steps > 1:
            of_input, of_weight = self.split.input_gradient, self.split.weight_gradient
            self._multiply(order, of_input, Phase.INPUT_GRADIENT, self._input_gradient)
            self._multiply(order, of_weight, Phase.WEIGHT_GRADIENT, self._weight_gradient)
        else:
            self._backward_in_one_step(order)
        if self._sums_weights:
            order.compute(self._weight_sum())
        for handle in of_bias:
            order.wait(handle)

    def _backward_in_one_step(self, order: IssueOrder) -> None:
        """Overlap each gradient's collectives with the other gradient."""
        of_input, of_weight = self.split.input_gradient, self.split.weight_gradient
        phase, later = Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT
        for operand in self._moves(of_input.before, phase):
            operand.wait(order, operand.launch(order))
        # Megatron-LM's second gather of sequence parallelism, which Table 2 does not count.
        again = [operand.again() for operand in self._moves(of_weight.before, later)]
        handles = [operand.launch(order) for operand in again]
        order.compute(self._input_gradient(0))
        for operand, handle in zip(again, handles, strict=True):
            operand.wait(order, handle)
        results = [*self._moves(of_input.after, phase, is_result=True)]
        handles = [result.launch(order) for result in results]
        order.compute(self._weight_gradient(0))
        results += self._moves(of_weight.after, later, is_result=True)
        handles += [result.launch(order) for result in results[len(handles) :]]
        for result, handle in zip(results, handles, strict=True):
            result.wait(order, handle)

    def _multiply(
        self,
        order: IssueOrder,
        moves: Multiplication,
        phase: Phase,
        product: Callable[[int], Op],
    ) -> None:
        """Issue the steps of a product; the next operands move beside it."""
        operands = [*self._moves(moves.before, phase)]
        results = [*self._moves(moves.after, phase, is_result=True)]
        arriving = [operand.launch(order) for operand in operands]
        leaving: list[list[Handle | None]] = []
        for step in range(self._steps):
            following: list[Handle | None] = []
            if step + 1 < self._steps:
                following = [operand.launch(order) for operand in operands]
            if step >= _BUFFERS:
                for handle in leaving[step - _BUFFERS]:
                    order.wait(handle)
            for operand, handle in zip(operands, arriving, strict=True):
                operand.wait(order, handle)
            order.compute(product(step))
            leaving.append([result.launch(order) for result in results])
            arriving = following
        for handles in leaving[-_BUFFERS:]:
            for handle in handles:
                order.wait(handle)
        for result, handle in zip(results, leaving[-1], strict=True):
            result.wait(order, handle)

    def _moves(
        self, moves: tuple[Move, ...], phase: Phase, *, is_result: bool = False
    ) -> Iterator[_Moved]:
        """Yield the collectives of some moves, each on one block."""
        for move in moves:
            is_gradient = phase is not Phase.FORWARD and (is_result or move.array == "output")
            array = f"{move.array} gradient" if is_gradient else move.array
            kind, num_bytes = CollectiveKind(move.exchange), self._block_bytes(move)
            name = f"{self.block.name} {array} {move.exchange.replace('_', '-')}"
            op = collective(name, kind, num_bytes, self.grid.group(move.axes), phase)
            copy = elementwise(f"{name} copy", num_bytes, num_bytes, phase)
            copies_first = (move.copies and is_result) or (kind.has_root and not is_result)
            copies_last = (move.copies and not is_result) or (kind.has_root and is_result)
            yield _Moved(op, copy if copies_first else None, copy if copies_last else None)

    def _block_bytes(self, move: Move) -> int:
        block = self.block
        elements = {
            "input": block.rows * block.inputs,
            "weight": block.inputs * block.outputs,
            "output": block.rows * block.outputs,
        }
        return elements[move.array] * block.microbatch.element_bytes

    def _product(self, step: int) -> Op:
        return self._in_step(self.block.product(), step, self.split.forward)

    def _input_gradient(self, step: int) -> Op:
        """Return a step of dX = dY Aᵀ, during which operands of dA arrive if there is one step."""
        op, beside = self.block.input_gradient(), self.split.weight_gradient.before
        if self.split.saves_blocks:
            op = op.replace(reads=self.block.saved)
        if self._steps == 1:
            more_bytes = sum(map(self._block_bytes, beside))
            return op.replace(holds_bytes=op.holds_bytes + more_bytes)
        return self._in_step(op, step, self.split.input_gradient)

    def _weight_gradient(self, step: int) -> Op:
        """Return a step of dA = Xᵀ dY, added to the gradient buffer unless ranks sum it first."""
        block = self.block
        if self._sums_weights:
            block = replace(block, microbatch=replace(block.microbatch, adds_gradients=False))
        first, *_ = block.weight_gradient()
        return self._in_step(first, step, self.split.weight_gradient)

    def _in_step(self, op: Op, step: int, moves: Multiplication) -> Op:
        """Return the product of a step, beside which the buffers of moved blocks exist.

        If its result stays on the rank, a step adds it to those of the steps before.
        """
        if self._steps == 1:
            kept = 0 if self.split.saves_blocks else sum(map(self._block_bytes, moves.before))
            return op.replace(holds_bytes=op.holds_bytes + kept)
        work, moved = op.work, sum(map(self._block_bytes, (*moves.before, *moves.after)))
        assert isinstance(work, Gemm), "steps multiply matrices"
        return op.replace(
            work=replace(work, accumulate=work.accumulate or (not moves.after and step > 0)),
            saves=op.saves if step == 0 else (),
            holds_bytes=op.holds_bytes + _BUFFERS * moved,
        )

    @property
    def _steps(self) -> int:
        return self.grid.size(self.split.steps)

    @property
    def _sums_weights(self) -> bool:
        """Whether a kernel adds the weight gradient to the buffer after ranks have summed it."""
        moves = self.split.weight_gradient
        kernels, batch = self.block.microbatch.kernels, self.block.microbatch
        return batch.adds_gradients and (
            bool(moves.after) or not kernels.fused_gradient_accumulation
        )

    def _weight_sum(self) -> Op:
        """Return the kernel that adds this rank's part of the weight gradient to the buffer."""
        batch = self.block.microbatch
        once, buffer = self.weights * batch.element_bytes, self.weights * batch.gradient_bytes
        return elementwise(
            f"{self.block.name} weight gradient sum",
            once + buffer,
            buffer,
            Phase.WEIGHT_GRADIENT,
            holds_bytes=self.block.input_bytes + once,
            family=KernelFamily.STREAM,
        )
