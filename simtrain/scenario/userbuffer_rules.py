"""Rules of userbuffers: linear layers that pipeline their products with collectives.

Sources: Megatron-LM's training/arguments.py and core/extensions/transformer_engine.py; Transformer
Engine's pytorch/module/base.py (`initialize_ub`) and comm_gemm_overlap.cpp.
"""

from __future__ import annotations

from simtrain.scenario.rule import Rule, Rules, against, any_but, excludes, requires
from simtrain.scenario.schema import Scenario

_NUM_SPLITS = 4

USERBUFFER_RULES = Rules()
USERBUFFER_RULES += [
    requires(
        "E377",
        "overlap.userbuffers",
        needs={"parallelism.sequence_parallel": True},
        why="userbuffers pipeline the all-gathers and reduce-scatters of sequence parallelism "
        "(--tp-comm-overlap needs --sequence-parallel)",
        example="parallelism: {tensor: 8}\noverlap: {userbuffers: true, tensor_parallel: true}",
    ),
    requires(
        "E371",
        "overlap.userbuffers",
        needs={"overlap.tensor_parallel": True},
        why="userbuffers overlap the collectives of the backward pass too",
        example="parallelism: {tensor: 8, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: false}",
    ),
    against(
        "E372",
        lambda scenario: scenario.overlap.userbuffers and scenario.model.hidden_size % _NUM_SPLITS,
        f"model.hidden_size is {{scenario.model.hidden_size}}, not a multiple of "
        f"{_NUM_SPLITS}, while overlap.userbuffers is true",
        why=f"userbuffers split the product before a reduce-scatter into {_NUM_SPLITS} chunks of "
        f"hidden_size / {_NUM_SPLITS} columns",
        example="model: {hidden_size: 6146, num_attention_heads: 7, kv_channels: 128, "
        "ffn_hidden_size: 24584, vocab_size: 51205, seq_length: 2051}\n"
        "parallelism: {tensor: 7, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}",
    ),
    excludes(
        "E373",
        "overlap.userbuffers",
        "products have several scales per tensor",
        lambda scenario: scenario.precision.linear_product_type in ("fp8_block", "mxfp8", "nvfp4"),
        reads=("precision.compute", "precision.fp8_recipe"),
        why="userbuffers are simulated for recipes with one scale per tensor; Transformer Engine "
        "has none for the blockwise recipe and for fp4",
        example="parallelism: {tensor: 8, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}\n"
        "precision: {compute: fp8, fp8_recipe: blockwise}\n"
        "software: megatron_core",
    ),
    requires(
        "E374",
        "overlap.userbuffers",
        needs={"model.mtp_num_layers": 0, "model.latent_attention": None},
        why="latent attention and multi-token prediction have projections without userbuffers, "
        "which is not simulated",
        example="model: {mtp_num_layers: 1, position_embedding: rope}\n"
        "parallelism: {tensor: 8, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}",
    ),
    requires(
        "E376",
        "overlap.userbuffers",
        needs={"precision.compute": any_but("fp32")},
        why="Megatron-LM allocates userbuffers with 16-bit elements, which cannot hold fp32",
        example="parallelism: {tensor: 8, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}\n"
        "precision: {compute: fp32}",
    ),
]


def userbuffer_node_rule(nvlink_gpus: int) -> Rule:
    """Return the rule that NVLink, with `nvlink_gpus` GPUs, connects each tensor-parallel group."""

    def check(scenario: Scenario) -> str | None:
        """Return the violation of tensor-parallel groups that NVLink does not connect."""
        is_used = scenario.overlap.userbuffers
        if not is_used or scenario.mesh(nvlink_gpus).group("tp").inside_one_node:
            return None
        tensor = scenario.parallelism.tensor
        return (
            f"overlap.userbuffers is true while parallelism.tensor is {tensor}, but NVLink "
            f"connects only {nvlink_gpus} GPUs"
        )

    return Rule(
        "E375",
        "each rank writes to the userbuffers of its tensor-parallel peers over NVLink",
        "parallelism: {tensor: 16, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}",
        check,
    )
