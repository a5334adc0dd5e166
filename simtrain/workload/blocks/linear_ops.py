"""The ops of a linear layer on one rank: its three products, and its casts to fp8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.workload.fp8 import (
    Fp8Recipe,
    casts,
    casts_again,
    casts_later,
    columns,
    fp8_tensors,
    recipe_or_none,
    weight_casts,
)
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.tape import Microbatch, Parameter, Steps, Tape
from simtrain.workload.work import Gemm, GroupedGemm, KernelFamily, ProductType


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
        """Elements of the weight."""
        return self.inputs * self.outputs

    @property
    def output_bytes(self) -> int:
        """Bytes of the output of all rows."""
        return self.rows * self.outputs * self.microbatch.element_bytes

    @property
    def input_bytes(self) -> int:
        """Bytes of the input of all rows, before a cast."""
        return self.rows * self.inputs * self.microbatch.element_bytes

    def operand_bytes(self, elements: int) -> int:
        """Bytes of an operand of the products."""
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
        gradient_bytes = int(self.rows * self.outputs * self._operand_bytes)
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
        tape.record(
            self.name, (x,), (y,), *passes, parameters=parameters, deferred_gradient_bytes=deferred
        )
        return y

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
        """Bytes of an element of the weight gradient that the product writes."""
        batch = self.microbatch
        return batch.gradient_bytes if self._fuses_sum else batch.element_bytes

    @property
    def _operand_bytes(self) -> float:
        return 1 / self.fp8.per_byte if self.fp8 else self.microbatch.element_bytes

    @property
    def _dtype(self) -> ProductType:
        return self.fp8.dtype if self.fp8 else self.microbatch.dtype

    def _work(self, m: int, n: int, k: int, layout: str = "TN") -> Gemm | GroupedGemm:
        """Return the product of the forward pass or of the input gradient."""
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
