"""Buffers that a rank holds beside model states and activations, by name.

Of every iteration: Megatron-LM's global memory buffer, as large as the largest request of the ops
that share it (`get_global_memory_buffer().get_tensor(..., "mpu")`); and what ZeRO needs whole for a
moment.
Of the optimizer step: the fp32 copy of 16-bit gradients (Megatron-LM's
`Float16OptimizerWithFloat16Params`; the flattened fp32 buffer of ZeRO, Section 3.2). Reducing
gradients needs none: they lie in one contiguous buffer and are reduced in place.
"""

from __future__ import annotations

from simtrain.plan import Plan
from simtrain.workload.chunk import unit_parameters
from simtrain.workload.sharding import ROOT
from simtrain.workload.work import FP32_BYTES

Buffers = dict[str, int]
RECOMPUTED, WORKING = "recomputed tensors", "working tensors"
GLOBAL, FP32_GRADIENTS = "global memory buffer", "gradients in fp32"
GATHERED_PARAMETERS, GRADIENT_BUCKET = "gathered parameters", "gradient bucket"


def lasting_buffers(plan: Plan, global_bytes: int) -> Buffers:
    """Bytes of what is there while forward and backward passes run.

    What ZeRO has whole of a layer is there for a moment, of the root unit for a whole pass
    (`workload.sharding`). `global_bytes` is what ops need of the global buffer.
    """
    gathered = bucket = 0
    stage = plan.scenario.memory.zero_stage
    if stage >= 2:
        parameters = unit_parameters(plan.chunks[0], plan.microbatch)
        root, layer = (
            parameters[ROOT],
            max(size for number, size in parameters.items() if number != ROOT),
        )
        # One layer is being used or reduced, and the next beside it where that is hidden.
        at_once = 1 + int(plan.scenario.overlap.data_parallel)
        bucket = at_once * layer + root
        gathered = (_recomputed_together(plan) - 1 + at_once) * layer + root if stage == 3 else 0
    return {
        GLOBAL: global_bytes,
        GATHERED_PARAMETERS: gathered * plan.scenario.compute_bytes,
        GRADIENT_BUCKET: bucket * plan.scenario.gradient_bytes,
    }


def step_buffers(plan: Plan, num_parameters: int, global_bytes: int) -> Buffers:
    """Bytes of what is there while the optimizer steps."""
    options = plan.step_options
    copied = options.gradient_bytes != FP32_BYTES and not options.offloads
    held = options.held(num_parameters, from_stage=1)
    return {
        GLOBAL: global_bytes,
        FP32_GRADIENTS: held * FP32_BYTES if copied else 0,
    }


def _recomputed_together(plan: Plan) -> int:
    """Layers of the largest unit whose parameters stay from its recompute to its backward pass."""
    policy = plan.scenario.recompute
    if policy.strategy != "full" or policy.method == "block":
        return 1
    return min(policy.num_layers, plan.scenario.layers_of_chunk(0))
