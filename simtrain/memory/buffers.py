"""Buffers that a rank holds beside model states and activations, by name.

Of every iteration: Megatron-LM's global memory buffer, as large as the largest of what shares it
(`get_global_memory_buffer().get_tensor(..., "mpu")`): a layer's input that sequence parallelism
gathers, and the addend of QKᵀ that `baddbmm` asks for and ignores; and what ZeRO needs whole for a
moment.
Of the optimizer step: the fp32 copy of 16-bit gradients (Megatron-LM's
`Float16OptimizerWithFloat16Params`; the flattened fp32 buffer of ZeRO, Section 3.2). Reducing
gradients needs none: they lie in one contiguous buffer and are reduced in place.
"""

from __future__ import annotations

from simtrain.scenario import Scenario
from simtrain.workload.parameters import StageParameters, held_part, layer_parameters
from simtrain.workload.shape import FP32_BYTES, LayerShape

Buffers = dict[str, int]
RECOMPUTED, WORKING = "recomputed tensors", "working tensors"
GLOBAL, FP32_GRADIENTS = "global memory buffer", "gradients in fp32"
GATHERED_PARAMETERS, GRADIENT_BUCKET = "gathered parameters", "gradient bucket"


def lasting_buffers(scenario: Scenario, shape: LayerShape, parameters: StageParameters) -> Buffers:
    """Bytes of what is there while forward and backward passes run.

    What ZeRO has whole of a layer is there for a moment, of what is no layer for a whole pass
    (`workload.zero`).
    """
    stage = scenario.memory.zero_stage
    layer, others = layer_parameters(shape), parameters.embedding + parameters.other
    # One layer is being used or reduced, and the next beside it where that is hidden.
    at_once = 1 + int(scenario.overlap.data_parallel)
    gathered = (_recomputed_together(scenario) - 1 + at_once) * layer + others
    undivided = at_once * layer + others
    return {
        GLOBAL: _global_bytes(shape),
        GATHERED_PARAMETERS: gathered * scenario.compute_bytes if stage == 3 else 0,
        GRADIENT_BUCKET: undivided * scenario.gradient_bytes if stage >= 2 else 0,
    }


def step_buffers(scenario: Scenario, shape: LayerShape, num_parameters: int) -> Buffers:
    """Bytes of what is there while the optimizer steps."""
    memory = scenario.memory
    copied = scenario.gradient_bytes != FP32_BYTES and not memory.offload_optimizer
    held = held_part(scenario, num_parameters, from_stage=1)
    return {
        GLOBAL: _global_bytes(shape),
        FP32_GRADIENTS: held * FP32_BYTES if copied else 0,
    }


def _global_bytes(shape: LayerShape) -> int:
    gathered = shape.activation_bytes if shape.sequence_parallel else 0
    return max(gathered, shape.scores * shape.element_bytes)


def _recomputed_together(scenario: Scenario) -> int:
    """Layers of the largest unit whose parameters stay from its recompute to its backward pass."""
    policy = scenario.recompute
    if policy.strategy != "full" or policy.method == "block":
        return 1
    return min(policy.num_layers, scenario.layers_of_chunk(0))
