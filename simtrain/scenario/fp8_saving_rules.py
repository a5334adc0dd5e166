"""Rules of what fp8 trainings save in few bits, and of copies by columns.

Sources: Megatron-LM's transformer_config.py; DeepSeek-AI 2024, "DeepSeek-V3 Technical Report",
Sections 3.3.3 and 3.5.2.
"""

from __future__ import annotations

from simtrain.scenario.rule import Rules, any_but, excludes, requires
from simtrain.scenario.schema import Scenario


def _cannot_narrow_attention(scenario: Scenario) -> bool:
    """Whether no kernel casts attention's output for both of its readers."""
    policy = scenario.recompute
    recomputes = policy.strategy == "selective" and "core_attention" in policy.modules
    return (
        scenario.fp8_recipe != "blockwise"
        or scenario.facts.kernels.fp8_columns != "recast"
        or scenario.attention_backend != "fused"
        or scenario.parallelism.context > 1
        or recomputes
    )


def _cannot_narrow_activation(scenario: Scenario) -> bool:
    """Whether Megatron-LM cannot save the activation's input in fp8."""
    facts = scenario.facts
    return (
        scenario.model.activation != "swiglu"
        or not facts.kernels.fused_activation
        or facts.fp8_library != "transformer_engine"
        or scenario.precision.compute == "fp32"
    )


FP8_SAVING_RULES = Rules()
FP8_SAVING_RULES += [
    excludes(
        "E467",
        "precision.attention_output_bits",
        "no kernel casts attention's output for both of its readers",
        _cannot_narrow_attention,
        reads=(
            "precision.compute",
            "precision.fp8_recipe",
            "software.fp8_columns",
            "attention_backend",
            "parallelism.context",
            "recompute.strategy",
        ),
        why="DeepSeek-V3 casts the output of one fused attention kernel to 12 bits and to fp8 by "
        "rows, and the 12 bits to fp8 by columns for the projection's weight gradient",
        example="precision: {attention_output_bits: 12}",
    ),
    requires(
        "E468",
        "software.fp8_columns",
        needs={"parallelism.tensor": 1},
        off=any_but("recast"),
        why="DeepSeek-V3 trains without tensor parallelism; a gather of rows that are cast "
        "again by columns is not simulated",
        example="parallelism: {tensor: 2}\n"
        "precision: {compute: fp8, fp8_recipe: blockwise}\n"
        "cluster: h100_sxm\n"
        "software: {stack: megatron_core, fp8_columns: recast}",
    ),
    excludes(
        "E469",
        "precision.fp8_activation_inputs",
        "the activation is no fused SwiGLU of Megatron-Core",
        _cannot_narrow_activation,
        reads=("model.activation", "software.stack", "precision.compute"),
        why="Megatron-LM saves inputs of the activation in fp8 only for its fused SwiGLU",
        example="precision: {fp8_activation_inputs: true}",
    ),
]
