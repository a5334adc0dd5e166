"""The computation of experts: grouped products, and the activation between them.

Sources: Megatron-LM's `TEGroupedMLP` (core/transformer/moe/experts.py) and `WeightedSwiGLUFunction`
(core/fusions/fused_bias_swiglu.py), which multiplies by the probabilities. In fp8 (`workload.fp8`)
the rows of each expert are padded, and the products cast and save their inputs in fp8.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from simtrain.workload.blocks.activation import saving_fp8
from simtrain.workload.blocks.linear_ops import LinearOps, operands
from simtrain.workload.fp8 import NarrowCopy
from simtrain.workload.ops import Tensor, elementwise, gradient
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
class GroupedOps(LinearOps):
    """The ops of linear layers of experts.

    Their weight gradients are summed as those of other linear layers: Megatron-LM passes
    `gradient_accumulation_fusion` to Transformer Engine's `GroupedLinear` too.
    """

    load: ExpertLoad = field(kw_only=True)

    @property
    def weights(self) -> int:
        """Elements of the weights of all experts."""
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
        dtype = self._dtype
        return GroupedGemm(
            load.experts, *rows, is_weight_gradient, *sizes, fused, dtype, layout=layout
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
) -> Tensor:
    """Record a grouped product: each expert has a weight of `x.width` × `outputs`.

    Without `is_expert` it is a linear layer without collectives, with the replicas of dense layers.
    `has_cast_gradient` is as in `LinearOps`.
    """
    y, shape = tape.tensor(f"{name} output", load.rows, outputs), (load.rows, x.width, outputs)
    ops = GroupedOps(
        name,
        tape.microbatch,
        *(*shape, *operands(tape, x, name)),
        has_cast_gradient=has_cast_gradient,
        load=load,
    )
    weight = Parameter(ops.weights, is_expert=is_expert, in_fp8=ops.fp8 is not None)
    return ops.record_alone(tape, x, y, weight)


def pad_rows(tape: Tape, x: Tensor, rows: int, name: str) -> Tensor:
    """Record a copy that pads the rows of each expert, or removes the padding (`Fp8Padding`)."""
    if rows == x.rows:
        return x
    y = tape.tensor(f"{x.name}, {name}", rows, x.width, x.element_bytes)
    read_bytes, stream = min(x.num_bytes, y.num_bytes), KernelFamily.STREAM
    forward = elementwise(name, read_bytes, y.num_bytes, family=stream)
    backward = gradient(name, read_bytes, x.num_bytes, family=stream)
    tape.record(name, (x,), (y,), (forward,), (backward,))
    return y


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
