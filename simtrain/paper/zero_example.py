"""ZeRO's example: memory of GPT-2 1.5B, and model states sharded over replicas by ZeRO stage.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
(2020), Sections 3 and 5.
"""

from __future__ import annotations

import itertools

from simtrain.iteration.memory.buffers import FP32_GRADIENTS, buffers_of
from simtrain.iteration.memory.states import model_states
from simtrain.paper.entries import Progress, Reproduction
from simtrain.paper.formulas import Formulas
from simtrain.paper.layer_work import saved_bytes
from simtrain.paper.models import paper_plan
from simtrain.paper.published import Ours, reproduction
from simtrain.scenario import Scenario, load_scenario
from simtrain.workload.record import record_pass

GPT2 = "gpt2_1_5b"
STAGES = (0, 1, 2, 3)
REPLICAS = (1, 2, 4, 8, 16, 32, 64)
ALL_STATES = "weights, gradients and optimizer states"
SMALL_GPU_GB = 32
"""Capacity of a GPU that is too small for the model, according to the paper."""
LINEAR_OUTPUTS = ("query and key", "value", "attention output", "GeLU input", "GeLU output")
"""Tensors in the paper's 12 · hidden · batch · sequence · layers elements: 3 + 1 + 4 + 4."""
UNIT_LAYERS = 6
"""Layers per recompute unit: 8 units of 6 layers, near √48 = 6.9."""


def zero(progress: Progress | None = None) -> Reproduction:
    """Reproduce the numbers of Section 3, and the model states of every ZeRO stage."""
    scenario = load_scenario(GPT2)
    plan = paper_plan(scenario)
    num_parameters = plan.stage_parameters[0].total
    states = model_states(plan.step_options, num_parameters)
    _, buffers = buffers_of(plan, plan.stage_parameters[0], global_bytes=0)
    return reproduction(
        "zero",
        parts={
            "weights in fp16": states.parameters_bytes,
            ALL_STATES: states.total_bytes,
            "gradients flattened into an fp32 buffer": buffers[FP32_GRADIENTS],
        },
        activations=_activations(),
        checkpointing=_checkpointing(),
        divided=_divided(num_parameters),
    )


def _activations() -> Ours:
    everything = load_scenario(GPT2, ("recompute=none",))
    selective = load_scenario(GPT2, ("recompute=selective",))
    num_layers = everything.model.num_layers

    def saved(scenario: Scenario) -> tuple[float, int]:
        paper = Formulas.of(scenario).layer_bytes * num_layers
        return float(paper), saved_bytes(scenario, num_layers)

    return {
        "as the paper counts: outputs of the linear layers": _linear_output_bytes(
            everything, num_layers
        ),
        "all saved tensors of the layers": saved(everything),
        "all saved tensors with selective recompute": saved(selective),
    }


def _checkpointing() -> Ours:
    long = f"recompute={{strategy: full, num_layers: {UNIT_LAYERS}}}"
    units, layers = load_scenario(GPT2, (long,)), load_scenario(GPT2)
    everything = load_scenario(GPT2, ("recompute=none",))
    # The forward pass of checkpointed layers saves the inputs of each unit.
    counted = saved_bytes(units, units.model.num_layers)
    counted += _linear_output_bytes(everything, UNIT_LAYERS)
    inputs = saved_bytes(layers, layers.model.num_layers)
    again = saved_bytes(everything) - saved_bytes(layers)
    return {
        f"as the paper counts: units of {UNIT_LAYERS} layers": counted,
        "units of one layer: their inputs": inputs,
        "units of one layer: inputs and one recomputed layer": inputs + again,
    }


def _divided(num_parameters: int) -> Ours:
    """Return weights, gradients and optimizer states, each sharded from its ZeRO stage on."""
    divided: dict[tuple[str, str], tuple[float, float]] = {}
    for stage, replicas in itertools.product(STAGES, REPLICAS):
        if stage and replicas == 1:
            continue  # a single replica cannot shard
        fields = {"memory.zero_stage": stage, "parallelism.data": replicas}
        fields |= {"batch.global": 32 * replicas}
        scenario = load_scenario(GPT2, [f"{name}={value}" for name, value in fields.items()])
        per_parameter = sum(
            size / replicas if stage >= first else size
            for size, first in zip((12, 2, 2), (1, 2, 3), strict=True)
        )
        ours = model_states(paper_plan(scenario).step_options, num_parameters).total_bytes
        divided[str(stage), str(replicas)] = per_parameter * num_parameters, ours
    return divided


def _linear_output_bytes(scenario: Scenario, num_layers: int) -> int:
    ops = record_pass(paper_plan(scenario).layers_pass(num_layers, "F")).ops
    tensors = (tensor for op in ops for tensor in op.saves)
    return sum(tensor.num_bytes for tensor in tensors if tensor.name in LINEAR_OUTPUTS)
