"""Rules of LoRA (model.lora): what Megatron-Bridge refuses, and what is not simulated.

Source: Megatron-Bridge, peft/utils.py (`ParallelLinearAdapter`) and peft/lora.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from simtrain.scenario.allowed_values import one_of
from simtrain.scenario.lora import CANONICAL_PARTS
from simtrain.scenario.nearest import near_divisors, near_multiples
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import LEFT_OUT, rule_against

_TOY = "model: {lora: {rank: 16}}\n"


def _uneven_rank(scenario: Scenario) -> bool:
    lora, num_ranks = scenario.model.lora, scenario.parallelism.tensor
    return (
        lora is not None and bool(lora.rank % num_ranks) and any(map(lora.adapts, CANONICAL_PARTS))
    )


def _near_ranks(scenario: Scenario) -> Iterable[int]:
    lora = scenario.model.lora
    return near_multiples(lora.rank, scenario.parallelism.tensor) if lora else ()


def _near_tensor(scenario: Scenario) -> Iterable[int]:
    lora = scenario.model.lora
    return near_divisors(scenario.parallelism.tensor, lora.rank) if lora else ()


def _parts_without_gate(scenario: Scenario) -> bool:
    lora, gated = scenario.model.lora, scenario.model.activation in ("swiglu", "geglu")
    parts = CANONICAL_PARTS["linear_fc1"]
    return lora is not None and not gated and any(part in lora.modules for part in parts)


_NONE = one_of(None, near=())

LORA_RULES = [
    rule_against(
        "E460",
        "tensor-parallel ranks divide the columns of the first matrix of an adapter of "
        "linear_qkv or linear_fc1 (ColumnParallelLinear)",
        {"model.lora.rank": _near_ranks, "parallelism.tensor": _near_tensor},
        _uneven_rank,
        "model.lora.rank is {scenario.model.lora.rank}, not a multiple of parallelism.tensor, "
        "which is {scenario.parallelism.tensor}",
        what="Tensor-parallel ranks cannot divide the rank of the adapters evenly.",
        fix="Set model.lora.rank to a multiple of parallelism.tensor.",
        example="model: {lora: {rank: 12}}\nparallelism: {tensor: 8}",
    ),
    Requires(
        "E461",
        "model.lora",
        needs={
            "model.experts": _NONE,
            "model.latent_attention": _NONE,
            "model.mtp_num_layers": one_of(0, near=()),
            "model.layer_pattern": _NONE,
            "parallelism.vocabulary": one_of("first_last", near=()),
        },
        why=(
            "adapters of experts, latent attention, token prediction and hybrid models are not "
            "simulated, nor is a frozen vocabulary that stages split"
        ),
        example=(
            "model: {biases: false, lora: {rank: 16}, experts: {num: 8, top_k: 2, "
            "ffn_hidden_size: 4096}}"
        ),
    ),
    Requires(
        "E462",
        "memory.zero_stage",
        needs={"model.lora": None},
        off=(1, 0),
        why=(
            "Megatron-LM keeps frozen parameters outside its buffers and shards only adapters; "
            "ZeRO 2 and 3 with frozen parameters are not simulated"
        ),
        example=_TOY + "parallelism: {data: 2}\nmemory: {zero_stage: 3}",
    ),
    Requires(
        "E463",
        "overlap.userbuffers",
        needs={"model.lora": None},
        why=(
            "adapters read the gathered input of their layer, which userbuffers keep in parts; "
            "userbuffers with adapters are not simulated"
        ),
        example=(
            _TOY + "parallelism: {tensor: 8, sequence_parallel: true}\n"
            "overlap: {userbuffers: true, tensor_parallel: true}"
        ),
    ),
    rule_against(
        "E464",
        "the adapters are those of Megatron-Bridge, whose layers fuse queries, keys and values; "
        "adapters of other stacks' separate layers are not simulated",
        {"software": ["megatron_core"], "model.lora": [None]},
        lambda scenario: scenario.model.lora and scenario.facts.kernels.separate_projections,
        "model.lora is set for software stack {scenario.software}, which has separate projections "
        "of queries, keys and values",
        ("model.lora", "software"),
        what="LoRA is combined with a software stack of separate projections.",
        fix="Set software to megatron_core, or remove model.lora.",
        example=_TOY + "software: torchtitan\nattention_backend: fused",
    ),
    rule_against(
        "E465",
        "linear_fc1_gate and linear_fc1_up are the halves of a gated MLP's first product",
        {"model.lora.modules": [], "model.activation": ["swiglu"]},
        _parts_without_gate,
        "model.lora.modules has a half of a gated MLP's first product, but model.activation is "
        "{scenario.model.activation}",
        what="Adapters are for the gate of an MLP that has none.",
        fix="Write linear_fc1 in model.lora.modules.",
        example="model: {lora: {rank: 16, modules: [linear_fc1_gate]}}",
    ),
    Requires(
        "E466",
        "parallelism.sequence_slices",
        needs={"model.lora": None},
        off=one_of(1, near=(LEFT_OUT,)),
        why=(
            "the authors' Seq1F1B has no adapters, and frozen parameters in slices of sequences"
            " are not simulated"
        ),
        example=(
            "model: {lora: {rank: 16}}\n"
            "parallelism: {pipeline: 4, sequence_slices: 4}\n"
            "attention_backend: fused\n"
            "schedule: seq1f1b"
        ),
    ),
]
