"""The computation of experts: grouped products, and the activation between them.

Sources: Megatron-LM's `TEGroupedMLP` (core/transformer/moe/experts.py) and `WeightedSwiGLUFunction`
(core/fusions/fused_bias_swiglu.py), which multiplies by the probabilities. In fp8 (`workload.fp8`)
the rows of each expert are padded, and the products cast and save their inputs in fp8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from simtrain.workload.fp8 import (
    FP8_BYTES,
    Fp8Recipe,
    fp8_tensors,
    issue_casts,
    issue_weight_casts,
    recipe_or_none,
)
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
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


def grouped_linear(
    tape: Tape, x: Tensor, outputs: int, load: ExpertLoad, name: str, *, is_expert: bool = True
) -> Tensor:
    """Record a grouped product: each expert has a weight of `x.width` × `outputs`.

    Without `is_expert` it is a linear layer without collectives, with the replicas of dense layers.
    """
    batch = tape.microbatch
    fp8 = recipe_or_none(batch)
    y = tape.tensor(f"{name} output", load.rows, outputs)
    saved = fp8_tensors(tape, f"{name} input in fp8", x.rows, x.width) if fp8 else (x,)
    product = _products(tape, load, fp8)
    elements = load.experts * x.width * outputs
    given_bytes = load.rows * outputs * (FP8_BYTES if fp8 else batch.element_bytes)

    def forward(order: IssueOrder) -> None:
        """Issue casts to fp8, if any, and the product."""
        if fp8:
            issue_casts(order, batch, f"{name} input", x.rows * x.width)
            issue_weight_casts(order, batch, name, elements)
        op = product(name, x.width, outputs, Phase.FORWARD)
        order.compute(op.replace(saves=saved, holds_bytes=y.num_bytes))

    def backward(order: IssueOrder) -> None:
        """Issue casts to fp8, if any, the input gradient and the weight gradient."""
        phase = Phase.INPUT_GRADIENT
        if fp8:
            issue_casts(order, batch, f"{name} gradient", y.rows * y.width, phase)
            issue_weight_casts(order, batch, name, elements, phase)
        op = product(f"{name} input gradient", outputs, x.width, phase)
        order.compute(op.replace(holds_bytes=x.num_bytes + y.num_bytes))
        op = product(f"{name} weight gradient", x.width, outputs, Phase.WEIGHT_GRADIENT)
        order.compute(op.replace(reads=saved, holds_bytes=x.num_bytes + given_bytes))

    tape.record(
        name,
        (x,),
        (y,),
        forward,
        backward,
        parameters=(Parameter(elements, is_expert=is_expert, in_fp8=fp8 is not None),),
        deferred_gradient_bytes=fp8.copy_bytes(y.rows * y.width) if fp8 else y.num_bytes,
    )
    return y


def _products(
    tape: Tape, load: ExpertLoad, fp8: Fp8Recipe | None
) -> Callable[[str, int, int, Phase], Op]:
    """Return a function that makes a grouped product from its name, inputs, outputs and phase."""
    batch = tape.microbatch
    size, dtype = (FP8_BYTES, fp8.dtype) if fp8 else (batch.element_bytes, batch.dtype)

    def product(name: str, inputs: int, outputs: int, phase: Phase) -> Op:
        """Build a product of all experts."""
        is_weight = phase is Phase.WEIGHT_GRADIENT
        written = batch.gradient_bytes if is_weight else batch.element_bytes
        rows = load.rows, inputs, outputs, load.mean_rows, load.model_rows
        work = GroupedGemm(load.experts, *rows, is_weight, size, written, dtype)
        return Op(name, work, phase, counts_saved=False)

    return product


def pad_rows(tape: Tape, x: Tensor, rows: int, name: str) -> Tensor:
    """Record a copy that pads the rows of each expert, or removes the padding (`Fp8Padding`)."""
    if rows == x.rows:
        return x
    y = tape.tensor(f"{x.name}, {name}", rows, x.width, x.element_bytes)
    read_bytes, stream = min(x.num_bytes, y.num_bytes), KernelFamily.STREAM
    forward = elementwise(name, read_bytes, y.num_bytes, family=stream)
    phase = Phase.INPUT_GRADIENT
    gradient = elementwise(f"{name} gradient", read_bytes, x.num_bytes, phase, family=stream)
    return tape.kernel(x, y, forward, gradient)


def weighted_activation(
    tape: Tape, x: Tensor, probabilities: Tensor, name: str, *, gated: bool
) -> Tensor:
    """Record the activation times the token's probability, in one kernel; saves both inputs."""
    y = tape.tensor(f"{name} output", x.rows, x.width // 2 if gated else x.width)
    saved, weights = (x, probabilities), probabilities.num_bytes

    def forward(order: IssueOrder) -> None:
        order.compute(elementwise(name, x.num_bytes + weights, y.num_bytes, saves=saved))

    def backward(order: IssueOrder) -> None:
        read_bytes, phase = x.num_bytes + weights + y.num_bytes, Phase.INPUT_GRADIENT
        written = x.num_bytes + weights
        order.compute(elementwise(f"{name} gradient", read_bytes, written, phase, reads=saved))

    tape.record(name, saved, (y,), forward, backward)
    return y
