"""Rules of LoRA (model.lora): what Megatron-Bridge refuses, and what is not simulated.

Source: Megatron-Bridge, peft/utils.py (`ParallelLinearAdapter`) and peft/lora.py.
"""

from __future__ import annotations

from simtrain.scenario.model import CANONICAL_PARTS
from simtrain.scenario.rule import Rules, against, divides, excludes, requires
from simtrain.scenario.schema import Scenario

_TOY = "model: {lora: {rank: 16}}\n"


def _adapts_columns(scenario: Scenario) -> bool:
    lora = scenario.model.lora
    return lora is not None and any(map(lora.adapts, CANONICAL_PARTS))


def _parts_without_gate(scenario: Scenario) -> bool:
    lora, gated = scenario.model.lora, scenario.model.activation in ("swiglu", "geglu")
    parts = CANONICAL_PARTS["linear_fc1"]
    return lora is not None and not gated and any(part in lora.modules for part in parts)


LORA_RULES = Rules()
LORA_RULES += [
    divides(
        "E460",
        "parallelism.tensor",
        "model.lora.rank",
        where=_adapts_columns,
        why="tensor-parallel ranks divide the columns of the first matrix of an adapter of "
        "linear_qkv or linear_fc1 (ColumnParallelLinear)",
        example="model: {lora: {rank: 12}}\nparallelism: {tensor: 8}",
    ),
    requires(
        "E461",
        "model.lora",
        needs={
            "model.experts": None,
            "model.latent_attention": None,
            "model.mtp_num_layers": 0,
            "model.layer_pattern": None,
        },
        why="adapters of experts, latent attention, token prediction and hybrid models are not "
        "simulated",
        example="model: {biases: false, lora: {rank: 16}, experts: {num: 8, top_k: 2, "
        "ffn_hidden_size: 4096}}",
    ),
    requires(
        "E462",
        "memory.zero_stage",
        needs={"model.lora": None},
        off=(1, 0),
        why="Megatron-LM keeps frozen parameters outside its buffers and shards only adapters; "
        "ZeRO 2 and 3 with frozen parameters are not simulated",
        example=_TOY + "parallelism: {data: 2}\nmemory: {zero_stage: 3}",
    ),
    requires(
        "E463",
        "overlap.userbuffers",
        needs={"model.lora": None},
        why="adapters read the gathered input of their layer, which userbuffers keep in parts; "
        "userbuffers with adapters are not simulated",
        example=_TOY + "parallelism: {tensor: 8, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}",
    ),
    excludes(
        "E464",
        "model.lora",
        "the software stack has separate projections of queries, keys and values",
        lambda scenario: scenario.facts.kernels.separate_projections,
        reads=("software.stack",),
        why="the adapters are those of Megatron-Bridge, whose layers fuse queries, keys and "
        "values; adapters of other stacks' separate layers are not simulated",
        example=_TOY + "software: torchtitan\nattention_backend: fused",
        first=("software",),
    ),
    against(
        "E465",
        _parts_without_gate,
        "model.lora.modules has a half of a gated MLP's first product, but model.activation is "
        "{scenario.model.activation}",
        why="linear_fc1_gate and linear_fc1_up are the halves of a gated MLP's first product",
        example="model: {lora: {rank: 16, modules: [linear_fc1_gate]}}",
    ),
    requires(
        "E466",
        "parallelism.sequence_slices",
        needs={"model.lora": None},
        off=1,
        why="the authors' Seq1F1B has no adapters, and frozen parameters in slices of sequences"
        " are not simulated",
        example="model: {lora: {rank: 16}}\n"
        "parallelism: {pipeline: 4, sequence_slices: 4}\n"
        "attention_backend: fused\n"
        "schedule: seq1f1b",
    ),
]
