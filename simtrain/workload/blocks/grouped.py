"""The computation of experts: grouped products, and the activation between them.

Sources: Megatron-LM's `TEGroupedMLP` (core/transformer/moe/experts.py) and `WeightedSwiGLUFunction`
(core/fusions/fused_bias_swiglu.py), which multiplies by the probabilities. In fp8 (`workload.fp8`)
the rows of each expert are padded, and the products cast and save their inputs in fp8. With
Transformer Engine's fused MLP of experts (`fused_mlp`), products also do what is between them.
"""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.base.values import dataclass, field, replace
from simtrain.workload.blocks.elementwise import saving_fp8
from simtrain.workload.blocks.linear import LinearOps, operands
from simtrain.workload.fp8 import NarrowCopy, fp8_tensors, recipe_of
from simtrain.workload.ops import Op, Phase, Tensor, elementwise, gradient
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import GroupedGemm, KernelFamily


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """The number of tokens that a rank's experts receive.

    Args:
        experts: experts on the rank, or tensor-parallel shards of experts.
        rows: tokens of these experts on the simulated rank, padding included.
        mean_rows: `rows`, averaged over the ranks.
        model_rows: `mean_rows` without padding.
    """

    experts: int
    rows: int
    mean_rows: int
    model_rows: int

    def padded(self, multiple: int, *, has_capacity: bool) -> ExpertLoad:
        """Return the load with the rows of each expert padded to a multiple.

        A capacity fixes the rows of each expert. Without one, the number of rows is assumed to be
        uniform modulo `multiple`, so the average padding is (multiple - 1) / 2 rows per expert.
        """
        padding = self.experts * (multiple - 1) // 2
        if has_capacity:
            padding = self.experts * (-(self.rows // self.experts) % multiple)
        return replace(self, rows=self.rows + padding, mean_rows=self.mean_rows + padding)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What the epilogues of a product of experts and of its input gradient do besides.

    Args:
        forward_bytes, backward_bytes: that they move in addition.
        saves: tensors that the product saves.
        reads: saved tensors that the input gradient reads.
        has_both_copies: the gradient of the output arrives cast, by rows and by columns.
    """

    forward_bytes: int = 0
    backward_bytes: int = 0
    saves: tuple[Tensor, ...] = ()
    reads: tuple[Tensor, ...] = ()
    has_both_copies: bool = False


@dataclass(frozen=True, slots=True)
class GroupedOps(LinearOps):
    """The ops of linear layers of experts.

    Their weight gradients are summed as those of other linear layers: Megatron-LM passes
    `gradient_accumulation_fusion` to Transformer Engine's `GroupedLinear` too.
    """

    load: ExpertLoad = field(kw_only=True)
    epilogue: Epilogue | None = field(default=None, kw_only=True)
    """What a fused MLP of experts adds; None for a layer of its own."""

    def record_alone(self, tape: Tape, x: Tensor, y: Tensor, weight: Parameter) -> Tensor:
        """Record the layer; the host launches kernels for each expert, unless they are grouped.

        Source: Transformer Engine, common/gemm/cublaslt_gemm.cu (`nvte_multi_tensor_gemm`: one
        product of cuBLAS for each) and pytorch/csrc/extensions/cast.cpp (`multi_tensor_quantize`:
        "Quantize kernels individually", but one kernel with delayed scaling).
        """
        product, back = self.product(), self.input_gradient()
        if self.epilogue:
            product = product.replace(saves=product.saves + self.epilogue.saves)
            back = back.replace(reads=self.epilogue.reads)
        backward = *self.casts(y, Phase.INPUT_GRADIENT), back
        passes = (*self.casts(x), product), (*backward, *self.weight_gradient())
        launched = [tuple(map(self._launched, ops)) for ops in passes]
        return self.record(tape, x, y, (launched[0], launched[1]), weight)

    def _launched(self, op: Op) -> Op:
        is_grouped = self.epilogue is not None or self.microbatch.kernels.grouped_products
        casts_at_once = self.fp8 is not None and self.fp8.norm_casts
        if is_grouped or (casts_at_once and not isinstance(op.work, GroupedGemm)):
            return op
        return op.replace(num_kernels=self.load.experts)

    def casts(
        self, operand: Tensor, phase: Phase = Phase.FORWARD, *, gathered: bool = False
    ) -> Iterator[Op]:
        if phase is Phase.FORWARD or not (self.epilogue and self.epilogue.has_both_copies):
            yield from LinearOps.casts(self, operand, phase, gathered=gathered)

    @property
    def weights(self) -> int:
        return self.load.experts * self.inputs * self.outputs

    def _work(self, m: int, n: int, k: int, layout: str = "TN") -> GroupedGemm:
        return self._grouped(k, n, self.microbatch.element_bytes, layout)

    def _weight_work(self) -> GroupedGemm:
        sizes = self.inputs, self.outputs
        return self._grouped(*sizes, self._weight_gradient_bytes, "NT")

    def _grouped(self, inputs: int, outputs: int, written: int, layout: str) -> GroupedGemm:
        is_weight_gradient = layout == "NT"
        load, sizes = self.load, (self._operand_bytes, written)
        rows = load.rows, inputs, outputs, load.mean_rows, load.model_rows
        fused = is_weight_gradient and self._fuses_sum
        epilogue = self.epilogue or Epilogue()
        moved = {"TN": epilogue.forward_bytes, "NN": epilogue.backward_bytes}
        return GroupedGemm(
            *(load.experts, *rows, is_weight_gradient, *sizes, fused, self._dtype),
            layout=layout,
            epilogue_bytes=moved.get(layout, 0),
        )


def grouped_linear(
    tape: Tape,
    x: Tensor,
    outputs: int,
    load: ExpertLoad,
    name: str,
    *,
    is_expert: bool = True,
    has_cast_gradient: bool = False,
    in_fp8: bool = True,
) -> Tensor:
    """Record a grouped product: each expert has a weight of `x.width` × `outputs`.

    Without `is_expert` it is a linear layer without collectives, with the replicas of dense layers.
    `has_cast_gradient` is as in `LinearOps`, `in_fp8` as in `column_linear`.
    """
    y, shape = tape.tensor(f"{name} output", load.rows, outputs), (load.rows, x.width, outputs)
    ops = GroupedOps(
        name,
        tape.microbatch,
        *(*shape, *operands(tape, x, name, in_fp8=in_fp8)),
        has_cast_gradient=has_cast_gradient,
        load=load,
    )
    weight = Parameter(ops.weights, is_expert=is_expert, in_fp8=ops.fp8 is not None)
    return ops.record_alone(tape, x, y, weight)


def fused_mlp(
    tape: Tape,
    x: Tensor,
    probabilities: Tensor,
    width: int,
    load: ExpertLoad,
    names: tuple[str, str, str],
    *,
    gated: bool,
) -> Tensor:
    """Record both products of experts, whose epilogues run the activation and its casts.

    The first product writes its output in bf16, which it saves, and the activation of it in fp8, by
    rows and by columns. The input gradient of the second product reads that output, and writes the
    gradient of it in fp8, both ways; the gradient of the activation is written nowhere.

    Source: Transformer Engine's `ForwardGroupedMLP_CuTeGEMMSwiGLU_MXFP8` and its backward operation
    (pull request 2769), by kernels of cuDNN's frontend in CuTe DSL.

    Args:
        tape, x, load: of the experts.
        probabilities: of the tokens' experts, by which the activation is multiplied.
        width: outputs of the first product.
        names: of the first product, the activation and the second product.
        gated: the activation has half the width.
    """
    up, activation, down = names
    recipe = recipe_of(tape.microbatch)
    y = tape.tensor(f"{up} output", load.rows, width)
    hidden = tape.tensor(f"{activation} output", load.rows, width // (1 + gated))
    copies = [2 * recipe.copy_bytes(each.elements) for each in (hidden, y)]
    inputs = y, probabilities
    first = Epilogue(forward_bytes=copies[0], saves=inputs, has_both_copies=True)
    _record_product(tape, x, y, load, up, first)
    tape.record(activation, inputs, (hidden,), (), ())
    label = f"{down} input in fp8"
    tape.fp8_copies[hidden] = fp8_tensors(tape, label, hidden.rows, hidden.width)
    result = tape.tensor(f"{down} output", load.rows, x.width)
    moved = y.num_bytes + copies[1] - hidden.num_bytes
    second = Epilogue(backward_bytes=moved, reads=inputs)
    _record_product(tape, hidden, result, load, down, second)
    if not tape.microbatch.kernels.paged_stash:
        return result
    saved = sum(tensor.num_bytes for tensor in inputs)
    saved += sum(recipe.copy_bytes(tensor.elements) for tensor in (x, hidden))
    return _stash(tape, result, saved)


def _record_product(
    tape: Tape, x: Tensor, y: Tensor, load: ExpertLoad, name: str, epilogue: Epilogue
) -> Tensor:
    shape = load.rows, x.width, y.width
    fields = *shape, *operands(tape, x, name)
    ops = GroupedOps(name, tape.microbatch, *fields, load=load, epilogue=epilogue)
    return ops.record_alone(tape, x, y, Parameter(ops.weights, is_expert=True, in_fp8=True))


def _stash(tape: Tape, x: Tensor, num_bytes: int) -> Tensor:
    """Record the copy of what experts save to a paged buffer, and back before their backward pass.

    Source: Megatron-LM's `PagedStashManager` (core/transformer/moe/paged_stash.py). It copies on a
    stream of its own, beside products, from which it takes bandwidth: here copies run in turn.
    """
    name, family = "experts stash", KernelFamily.STREAM
    y = tape.tensor(x.name, x.rows, x.width, x.element_bytes, x.storage)
    forward = elementwise(name, num_bytes, num_bytes, holds_bytes=0, family=family)
    backward = gradient(name, num_bytes, num_bytes, holds_bytes=0, family=family)
    return tape.record(name, (x,), y, (forward,), (backward,))


def pad_rows(tape: Tape, x: Tensor, rows: int, name: str) -> Tensor:
    """Record a copy that pads the rows of each expert, or removes the padding (`Fp8Padding`)."""
    if rows == x.rows:
        return x
    y = tape.tensor(f"{x.name}, {name}", rows, x.width, x.element_bytes)
    read_bytes, stream = min(x.num_bytes, y.num_bytes), KernelFamily.STREAM
    forward = elementwise(name, read_bytes, y.num_bytes, family=stream)
    backward = gradient(name, read_bytes, x.num_bytes, family=stream)
    return tape.record(name, (x,), y, (forward,), (backward,))


def weighted_activation(
    tape: Tape,
    x: Tensor,
    probabilities: Tensor,
    name: str,
    *,
    gated: bool,
    narrow: NarrowCopy | None = None,
) -> Tensor:
    """Record the activation times the token's probability, in one kernel; saves both inputs.

    With `narrow`, which is recorded before, recompute casts this copy back to `x`.
    """
    y = tape.tensor(f"{name} output", x.rows, x.width // (1 + gated))
    inputs, input_bytes = (x, probabilities), x.num_bytes + probabilities.num_bytes
    forward = elementwise(name, input_bytes, y.num_bytes, saves=inputs)
    backward = gradient(name, input_bytes + y.num_bytes, input_bytes, reads=inputs)
    if narrow:
        again = narrow.cast_back.replace(reads=(), saves=(x,)), forward
        tape.record(
            name, (*narrow.tensors, probabilities), (y,), (forward,), (backward,), again=again
        )
    elif tape.microbatch.fp8_activation_inputs:
        tape.record(name, inputs, (y,), *saving_fp8(tape, (x,), forward, backward))
    else:
        tape.record(name, inputs, (y,), (forward,), (backward,))
    return y
