"""What experts do with their tokens: grouped products, and the activation between them.

Sources: Megatron-LM's `TEGroupedMLP` (core/transformer/moe/experts.py) and `WeightedSwiGLUFunction`
(core/fusions/fused_bias_swiglu.py), which multiplies by the probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import GroupedGemm


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens of a rank's experts.

    Args:
        experts: how many the rank has, or its part of.
        rows: their tokens on the simulated rank, padding included.
        mean_rows: of the mean rank.
        model_rows: without padding.
    """

    experts: int
    rows: int
    mean_rows: int
    model_rows: int


def grouped_linear(
    tape: Tape, x: Tensor, outputs: int, load: Load, name: str, *, is_expert: bool = True
) -> Tensor:
    """A product for each expert, with a weight of `x.width` × `outputs` of its own.

    Without `is_expert` it is a plain linear layer without collectives, whose weight is replicated
    as those of dense layers are.
    """
    batch = tape.microbatch
    y = tape.tensor(f"{name} output", load.rows, outputs)
    size = batch.element_bytes

    def product(name: str, inputs: int, outputs: int, phase: Phase, **changes: object) -> Op:
        is_weight = phase is Phase.WEIGHT_GRADIENT
        written = batch.gradient_bytes if is_weight else size
        rows = load.rows, inputs, outputs, load.mean_rows, load.model_rows
        work = GroupedGemm(load.experts, *rows, is_weight, size, written, batch.dtype)
        held = y.num_bytes if phase is Phase.FORWARD else x.num_bytes + y.num_bytes
        op = Op(name, work, phase, holds_bytes=held, counts_saved=False)
        return op.replace(**changes)

    def forward(order: IssueOrder) -> None:
        order.compute(product(name, x.width, outputs, Phase.FORWARD, saves=(x,)))

    def backward(order: IssueOrder) -> None:
        phase = Phase.INPUT_GRADIENT
        order.compute(product(f"{name} input gradient", outputs, x.width, phase))
        phase = Phase.WEIGHT_GRADIENT
        order.compute(product(f"{name} weight gradient", x.width, outputs, phase, reads=(x,)))

    weights = Parameter(load.experts * x.width * outputs, is_expert=is_expert)
    tape.record(
        name,
        (x,),
        (y,),
        forward,
        backward,
        parameters=(weights,),
        deferred_gradient_bytes=y.num_bytes,
    )
    return y


def weighted_activation(
    tape: Tape, x: Tensor, probabilities: Tensor, name: str, *, gated: bool
) -> Tensor:
    """The activation of every token times its probability, in one kernel; saves both inputs."""
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
