"""Rules of what fp8 trainings save in few bits, and of copies by columns.

Sources: Megatron-LM's transformer_config.py; DeepSeek-AI 2024, "DeepSeek-V3 Technical Report",
Sections 3.3.3 and 3.5.2.
"""

from __future__ import annotations

from simtrain.scenario.allowed_values import any_but
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.software import stacks_with
from simtrain.scenario.violation import Rule, rule_against


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


FP8_SAVING_RULES: list[Rule] = [
    rule_against(
        "E467",
        "DeepSeek-V3 casts the output of one fused attention kernel to 12 bits and to fp8 by rows, "
        "and the 12 bits to fp8 by columns for the projection's weight gradient",
        {
            "precision.attention_output_bits": [16],
            "software.fp8_columns": ["recast"],
            "precision.fp8_recipe": ["blockwise"],
            "attention_backend": ["fused"],
            "parallelism.context": [1],
            "recompute.strategy": ["none"],
        },
        lambda scenario: (
            scenario.precision.attention_output_bits == 12 and _cannot_narrow_attention(scenario)
        ),
        "precision.attention_output_bits is 12 with compute {scenario.precision.compute}, "
        "fp8_recipe {scenario.precision.fp8_recipe}, attention_backend "
        "{scenario.attention_backend}, parallelism.context {scenario.parallelism.context} and "
        "recompute {scenario.recompute.strategy}",
        ("precision.attention_output_bits",),
        what="Attention's output is saved in 12 bits where no kernel does so.",
        fix=(
            "Set precision.attention_output_bits to 16; or compute to fp8, fp8_recipe to "
            "blockwise, software.fp8_columns to recast and attention_backend to fused, without "
            "context parallelism and recompute of core_attention."
        ),
        example="precision: {attention_output_bits: 12}",
    ),
    Requires(
        "E468",
        "software.fp8_columns",
        needs={"parallelism.tensor": 1},
        off=any_but("recast", near=("cast",)),
        why=(
            "DeepSeek-V3 trains without tensor parallelism; a gather of rows that are cast "
            "again by columns is not simulated"
        ),
        example=(
            "parallelism: {tensor: 2}\n"
            "precision: {compute: fp8, fp8_recipe: blockwise}\n"
            "cluster: h100_sxm\n"
            "software: {stack: megatron_core, fp8_columns: recast}"
        ),
    ),
    rule_against(
        "E469",
        "Megatron-LM saves inputs of the activation in fp8 only for its fused SwiGLU",
        {
            "precision.fp8_activation_inputs": [False],
            "model.activation": ["swiglu"],
            "software.fused_activation": [True],
            "software.stack": lambda scenario: stacks_with("fp8_library", "transformer_engine"),
            "precision.compute": ["bf16"],
        },
        lambda scenario: (
            scenario.precision.fp8_activation_inputs and _cannot_narrow_activation(scenario)
        ),
        "precision.fp8_activation_inputs is true with activation {scenario.model.activation}, "
        "software.stack {scenario.software.stack} and compute {scenario.precision.compute}",
        ("precision.fp8_activation_inputs",),
        what="Inputs of the activation are saved in fp8 without a fused SwiGLU of Megatron-Core.",
        fix=(
            "Set precision.fp8_activation_inputs to false, or model.activation to swiglu and "
            "software to megatron_core."
        ),
        example="precision: {fp8_activation_inputs: true}",
    ),
]
