"""Mixture of experts instead of an MLP: router, dispatch, grouped products, combination.

Source: Megatron-LM's `MoELayer` with `TopKRouter`, `TEGroupedMLP`, `SharedExpertMLP` and its token
dispatchers (core/transformer/moe), which are in `scenario.dispatchers`. Tokens are dispatched with
their probabilities, and the activation multiplies by the probability.

Experts have another mesh (`Microbatch.experts`). The simulated rank is the one with the most
tokens: `imbalance` times the average, spread evenly over its experts.
"""

from __future__ import annotations

from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.workload.blocks.activation import activation
from simtrain.workload.blocks.exchange import all_gather, reduce_scatter
from simtrain.workload.blocks.expert_mlp import ExpertMlp
from simtrain.workload.blocks.expert_steps import Beside, ExpertLayer
from simtrain.workload.blocks.grouped import ExpertLoad, grouped_linear
from simtrain.workload.blocks.linear import column_linear, row_linear
from simtrain.workload.blocks.router import route
from simtrain.workload.ops import Phase, Tensor, elementwise, gradient
from simtrain.workload.tape import Parameter, Tape

SHARED_EXPERTS = "shared_experts"
"""Name of a region: the shared expert."""


def experts(tape: Tape, x: Tensor, mlp: ExpertMlp) -> Tensor:
    """Record a mixture of experts, with the shared expert if there is one.

    Raises:
        ValueError: the microbatch has no expert groups.
    """
    groups = tape.microbatch.experts
    if groups is None:
        raise ValueError("experts need a scenario with model.experts")
    with tape.capturing("moe_router"):
        routing = route(tape, x, mlp.num, mlp.top_k, mlp.choice, fp32=mlp.fp32_router)
    dispatcher = DISPATCHERS[mlp.dispatch]
    if not mlp.overlaps_shared:
        y = dispatcher.record(ExpertLayer(tape, mlp, groups, x, routing))
        return _add_shared(tape, mlp, x, y) if mlp.shared_ffn else y
    tensor = tape.microbatch.tensor
    whole = all_gather(tape, x, tensor, "shared expert gather")
    beside = _halves_of_shared(tape, mlp, whole)
    layer = ExpertLayer(tape, mlp, groups, x, routing, beside)
    y = dispatcher.record(layer)
    (shared,) = layer.outputs_beside
    shared = reduce_scatter(tape, shared, tensor, "shared expert reduce-scatter")
    return _sum(tape, _gate(tape, mlp, x, shared), y)


def _halves_of_shared(tape: Tape, mlp: ExpertMlp, whole: Tensor) -> tuple[Beside, ...]:
    """Return the two halves of the shared expert, which overlap the exchanges.

    Its collectives are exposed.
    """
    load = ExpertLoad(1, whole.rows, whole.rows, whole.rows)
    width = (1 + mlp.gated) * mlp.shared_ffn // tape.microbatch.tensor.num_ranks

    def begin() -> tuple[Tensor, ...]:
        y = grouped_linear(tape, whole, width, load, "shared expert up", is_expert=False)
        return (activation(tape, y, f"shared {mlp.kernel}", gated=mlp.gated),)

    def end(hidden: Tensor) -> tuple[Tensor, ...]:
        down = "shared expert down"
        return (grouped_linear(tape, hidden, whole.width, load, down, is_expert=False),)

    return begin, end


def _add_shared(tape: Tape, mlp: ExpertMlp, x: Tensor, routed: Tensor) -> Tensor:
    """Add the shared expert, an MLP over the tensor-parallel group."""
    label, width = "shared expert", (1 + mlp.gated) * mlp.shared_ffn
    with tape.region(SHARED_EXPERTS), tape.capturing("moe_router"):
        y = column_linear(tape, x, width, "shared expert up", label, bias=False)
        y = activation(tape, y, f"shared {mlp.kernel}", gated=mlp.gated)
        y = row_linear(tape, y, "shared expert down", label, bias=False)
        y = _gate(tape, mlp, x, y)
    return _sum(tape, y, routed)


def _gate(tape: Tape, mlp: ExpertMlp, x: Tensor, y: Tensor) -> Tensor:
    """Multiply `y` by a sigmoid of each token, if there is a gate."""
    if not mlp.shared_gate:
        return y
    input_bytes, size = x.num_bytes, y.num_bytes
    z = tape.tensor("gated shared expert", y.rows, y.width)
    gate = tape.tensor("shared gate", x.rows, 1)
    forward = (
        elementwise("shared gate", input_bytes, gate.num_bytes, saves=(x, gate)),
        elementwise("shared gate product", size, z.num_bytes, saves=(y,)),
    )
    name, sizes = "shared gate weight gradient", (input_bytes, x.width * x.element_bytes)
    backward = (
        gradient("shared gate product", input_bytes + size, size, reads=(y, gate)),
        gradient("shared gate", gate.num_bytes, input_bytes, reads=(gate,)),
        elementwise(name, *sizes, Phase.WEIGHT_GRADIENT, reads=(x,)),
    )
    weight = Parameter(x.width, is_whole=True)
    tape.record("shared gate", (x, y), (z,), forward, backward, parameters=(weight,))
    return z


def _sum(tape: Tape, shared: Tensor, routed: Tensor) -> Tensor:
    y = tape.tensor("experts output", routed.rows, routed.width)
    op = elementwise("shared expert sum", 2 * y.num_bytes, y.num_bytes)
    tape.record(op.name, (shared, routed), (y,), (op,))
    return y
