"""What products that are pipelined with their collectives ask of a scenario.

Sources: Megatron-LM's training/arguments.py and core/extensions/transformer_engine.py; Transformer
Engine's pytorch/module/base.py (`initialize_ub`) and comm_gemm_overlap.cpp.
"""

from __future__ import annotations

from simtrain.scenario.nearest import near_divisors, near_multiples
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Rule, Violation, rule_against

_NUM_SPLITS = 4

USERBUFFER_RULES = [
    rule_against(
        "E377",
        "userbuffers pipeline the gathers and reduce-scatters of sequence parallelism "
        "(--tp-comm-overlap needs --sequence-parallel)",
        {"overlap.userbuffers": [False], "parallelism.sequence_parallel": [True]},
        lambda one: one.overlap.userbuffers and not one.parallelism.sequence_parallel,
    ),
    rule_against(
        "E371",
        "userbuffers hide the collectives of the backward pass too",
        {"overlap.userbuffers": [False], "overlap.tensor_parallel": [True]},
        lambda one: one.overlap.userbuffers and not one.overlaps_tensor_parallel,
        "overlap.userbuffers is true while tensor-parallel collectives do not overlap",
    ),
    rule_against(
        "E372",
        f"a product before a reduce-scatter is cut into {_NUM_SPLITS} chunks of hidden_size / "
        f"{_NUM_SPLITS} columns",
        {
            "overlap.userbuffers": [False],
            "model.hidden_size": lambda one: near_multiples(one.model.hidden_size, _NUM_SPLITS),
        },
        lambda one: one.overlap.userbuffers and one.model.hidden_size % _NUM_SPLITS,
        f"model.hidden_size is {{one.model.hidden_size}}, not a multiple of {_NUM_SPLITS}, while "
        "overlap.userbuffers is true",
        ("model.hidden_size", "overlap.userbuffers"),
    ),
    rule_against(
        "E373",
        "userbuffers gather numbers with one scale a tensor; those of mxfp8 hold rows and columns "
        "in turn, which is not simulated, and there are none for blocks",
        {
            "overlap.userbuffers": [False],
            "precision.fp8_recipe": ["delayed", "tensorwise"],
        },
        lambda one: (
            one.overlap.userbuffers
            and one.precision.compute == "fp8"
            and one.precision.fp8_recipe not in ("delayed", "tensorwise")
        ),
    ),
    rule_against(
        "E374",
        "the projections of latent attention and of multi-token prediction have no userbuffers, "
        "and Megatron-LM then pipelines some of the other products or none; this is not simulated",
        {"overlap.userbuffers": [False], "model.mtp_num_layers": [0]},
        lambda one: (
            one.overlap.userbuffers and (one.model.latent_attention or one.model.mtp_num_layers)
        ),
        "overlap.userbuffers is true together with latent attention or multi-token prediction",
    ),
    rule_against(
        "E376",
        "Megatron-LM registers userbuffers of 16-bit elements, into which no fp32 is copied",
        {"overlap.userbuffers": [False], "precision.compute": ["bf16", "fp16"]},
        lambda one: one.overlap.userbuffers and one.precision.compute == "fp32",
    ),
]


def userbuffer_node_rule(nvlink_gpus: int) -> Rule:
    """The rule that NVLink, which joins so many GPUs, joins the ranks of userbuffers."""

    def check(scenario: Scenario) -> Violation | None:
        is_used = scenario.overlap.userbuffers
        if not is_used or scenario.mesh(nvlink_gpus).group("tp").inside_one_node:
            return None
        tensor = scenario.parallelism.tensor
        return Violation(
            f"overlap.userbuffers is true while parallelism.tensor is {tensor}, but NVLink joins "
            f"{nvlink_gpus} GPUs",
            {
                "overlap.userbuffers": [False],
                "parallelism.tensor": near_divisors(tensor, nvlink_gpus, at_least=2),
            },
        )

    return Rule("E375", "a rank writes into the userbuffers of the others over NVLink", check)
