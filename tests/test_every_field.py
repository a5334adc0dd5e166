"""Each field of a scenario changes the time or memory of some scenario, so none is ignored."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import annotated_types
import pytest
from pydantic import BaseModel

from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.scenario.section import name_in_files, section_of
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.variation import draw

Changes = dict[str, Any]

EVALUATOR = Evaluator(allow_oom=True)
BASE = Scenario.model_validate(
    {
        "model": {
            "num_layers": 4,
            "hidden_size": 256,
            "num_attention_heads": 8,
            "seq_length": 256,
            "vocab_size": 1024,
        },
        "batch": {"micro": 1, "global": 8},
        "cluster": "h100_sxm",
        "hardware": {"host": {"issue": "0 s"}},
    }
)

FUSED: Changes = {"attention_backend": "fused"}
LONG = FUSED | {"model.seq_length": 4096}
TENSOR: Changes = {"parallelism.tensor": 2}
SEQUENCE = TENSOR | {"parallelism.sequence_parallel": True}
PIPELINE: Changes = {"parallelism.pipeline": 2}
CHUNKS: Changes = {"parallelism.pipeline": 4, "model.num_layers": 8, "parallelism.interleave": 2}
WAITING = CHUNKS | {"model.num_layers": 16, "cluster": "a100_sxm4_80gb"}
DATA: Changes = {"parallelism.data": 4}
HIDDEN = DATA | {"overlap.data_parallel": True}
CONTEXT = FUSED | {"parallelism.context": 4}
LATENT = FUSED | {"model.latent_attention": {"kv_lora_rank": 64}}
EXPERTS: Changes = {
    "model.biases": False,
    "model.experts": {"num": 4, "top_k": 2, "ffn_hidden_size": 256},
}
SPLIT_EXPERTS = EXPERTS | DATA | {"parallelism.expert": 2}
GROUPS = EXPERTS | {"model.experts.router_groups": 2, "model.experts.router_group_top_k": 2}
SHARED = SPLIT_EXPERTS | {"model.experts.shared_ffn_hidden_size": 256}
FULL: Changes = {"recompute": "full"}
ROPE = FUSED | {"model.position_embedding": "rope"}
FP8 = FUSED | {"precision.compute": "fp8"}
MXFP8_EXPERTS = FP8 | EXPERTS | {"precision.fp8_recipe": "mxfp8", "cluster": "b200_sxm"}
HYBRID = FUSED | {
    "software.stack": "megatron_core",
    "model.layer_pattern": "M-*-",
    "model.mamba": {"num_heads": 8, "head_dim": 64},
}
LORA: Changes = {"model.lora": {"rank": 8}}
BLOCKWISE: Changes = {"precision": {"compute": "fp8", "fp8_recipe": "blockwise"}}
ZERO_3 = HIDDEN | {"memory.zero_stage": 3}

CASES: dict[str, tuple[Changes, Any]] = {
    "model.num_layers": ({}, 5),
    "model.hidden_size": ({}, 512),
    "model.num_attention_heads": ({}, 4),
    "model.ffn_hidden_size": ({}, 512),
    "model.seq_length": ({}, 512),
    "model.vocab_size": ({}, 2048),
    "model.tied_embeddings": ({}, False),
    "model.num_query_groups": ({}, 2),
    "model.kv_channels": ({}, 64),
    "model.activation": ({}, "swiglu"),
    "model.normalization": ({}, "rms_norm"),
    "model.qk_norm": ({}, True),
    "model.latent_attention.q_lora_rank": (LATENT, 64),
    "model.latent_attention.kv_lora_rank": (LATENT, 128),
    "model.latent_attention.qk_head_dim": (LATENT, 64),
    "model.latent_attention.qk_pos_emb_head_dim": (LATENT, 32),
    "model.latent_attention.v_head_dim": (LATENT, 64),
    "model.attention_window": (LONG, 1024),
    "model.full_attention_every": (LONG | {"model.attention_window": 1024}, 2),
    "model.position_embedding": ({}, "rope"),
    "model.biases": ({}, False),
    "model.qkv_biases": ({}, False),
    "model.parallel_attention_mlp": ({}, "one_norm"),
    "model.mtp_num_layers": (ROPE, 1),
    "model.hidden_dropout": ({}, 0),
    "model.attention_dropout": ({}, 0),
    "model.experts.num": (EXPERTS, 8),
    "model.experts.top_k": (EXPERTS, 1),
    "model.experts.ffn_hidden_size": (EXPERTS, 512),
    "model.experts.shared_ffn_hidden_size": (EXPERTS, 256),
    "model.experts.shared_gate": (SHARED, True),
    "model.experts.first_dense_layers": (EXPERTS, 1),
    "model.experts.layer_frequency": (EXPERTS, 2),
    "model.experts.capacity_factor": (EXPERTS, 1.5),
    "model.experts.router_dtype": (EXPERTS, "fp32"),
    "model.experts.router_score": (EXPERTS, "sigmoid"),
    "model.experts.router_bias": (EXPERTS | {"model.experts.router_score": "sigmoid"}, True),
    "model.experts.router_groups": (GROUPS, 4),
    "model.experts.router_group_top_k": (GROUPS, 1),
    "model.experts.imbalance": (SPLIT_EXPERTS, 1.5),
    "model.layer_pattern": (HYBRID, "MM*-"),
    "model.mamba.num_heads": (HYBRID, 16),
    "model.mamba.head_dim": (HYBRID, 32),
    "model.mamba.state_dim": (HYBRID, 64),
    "model.mamba.num_groups": (HYBRID, 4),
    "model.mamba.chunk_size": (HYBRID, 64),
    "model.lora.rank": (LORA, 16),
    "model.lora.modules": (LORA, ["linear_qkv"]),
    "model.lora.dropout": (LORA, 0.1),
    "parallelism.tensor": ({}, 2),
    "parallelism.sequence_parallel": (TENSOR, True),
    "parallelism.pipeline": ({}, 2),
    "parallelism.interleave": (CHUNKS | {"parallelism.interleave": 1}, 2),
    "parallelism.microbatch_group_size": (CHUNKS, 8),
    "parallelism.first_stage_layers": (PIPELINE, 1),
    "parallelism.last_stage_layers": (PIPELINE, 1),
    "parallelism.layout": (PIPELINE, "Et|tttL"),
    "parallelism.data": ({}, 2),
    "parallelism.context": (FUSED, 2),
    "parallelism.context_communication": (CONTEXT, "all_gather"),
    "parallelism.context_a2a": (
        CONTEXT
        | {"parallelism.context": 8, "parallelism.context_communication": "a2a+p2p"}
        | {"parallelism.context_a2a": 2},
        4,
    ),
    "parallelism.scatter_gather": (TENSOR | PIPELINE, False),
    "parallelism.expert": (EXPERTS | DATA, 2),
    "parallelism.expert_tensor": (EXPERTS | SEQUENCE, 1),
    "parallelism.expert_dispatch": (SPLIT_EXPERTS, "all_gather"),
    "placement.order": (PIPELINE | {"parallelism.data": 8}, "tp-cp-ep-pp-dp"),
    "batch.micro": ({}, 2),
    "batch.packed_lengths": (LONG, [256]),
    "batch.global": ({}, 16),
    "recompute.strategy": ({}, "full"),
    "recompute.modules": ({"recompute": "selective"}, ["mlp"]),
    "recompute.saved_ops": (FUSED | {"recompute": "ops", "software": "torchtitan"}, ["products"]),
    "recompute.method": (FULL | {"recompute.num_layers": 2}, "block"),
    "recompute.num_layers": (FULL, 2),
    "recompute.keep_microbatches": (FULL | PIPELINE, 1),
    "memory.zero_stage": (DATA, 1),
    "memory.shard_over": (DATA | {"memory.zero_stage": 1}, 2),
    "memory.reshard_after_forward": (ZERO_3, False),
    "memory.reduce_every_microbatch": (ZERO_3, False),
    "memory.offload_optimizer": ({"cluster": "a100_sxm4_80gb"}, True),
    "memory.deallocate_outputs": (PIPELINE, False),
    "memory.in_place_cross_entropy": ({"model.vocab_size": 102400}, False),
    "software.stack": ({}, "deepspeed_2022"),
    "software.fused_softmax": ({}, False),
    "software.fused_rotary": (ROPE, False),
    "software.complex_rotary": (ROPE | {"software.fused_rotary": False}, True),
    "software.repeated_keys": (FUSED | {"model.num_query_groups": 2}, True),
    "software.loss_chunks": ({"model.vocab_size": 102400}, 8),
    "software.fused_rms_norm": ({"model.normalization": "rms_norm"}, False),
    "software.fused_activation": ({}, False),
    "software.fused_dropout_add": ({}, False),
    "software.fused_cross_entropy": ({}, True),
    "software.cross_entropy_fusion": ({"software.fused_cross_entropy": True}, "te"),
    "software.fused_gradient_accumulation": ({}, False),
    "software.norm_in_linear": (
        FUSED | {"recompute": {"strategy": "selective", "modules": ["mlp"]}},
        True,
    ),
    "software.fused_optimizer": ({}, False),
    "software.cuda_graphs": ({"hardware.host.issue": "20 us"}, True),
    "software.fully_shard": (ZERO_3, True),
    "software.torch_workspaces": ({}, 2),
    "software.linear_workspaces": ({}, 1),
    "software.expert_workspaces": (EXPERTS, 4),
    "software.cublas_workspace": ({"software.torch_workspaces": 2}, "4 MiB"),
    "software.fp8_columns": (FUSED | BLOCKWISE, "recast"),
    "software.grouped_products": (EXPERTS | {"hardware.host.issue": "50 us"}, True),
    "software.fused_grouped_mlp": (MXFP8_EXPERTS, True),
    "software.separate_masking": ({"software.fused_softmax": False}, True),
    "software.paged_stash": (MXFP8_EXPERTS | {"software.fused_grouped_mlp": True}, True),
    "software.checkpointed_fp32_norms": ({}, True),
    "software.attention_kernel": (FUSED | {"cluster": "h100_sxm"}, "flash_attention_2"),
    "software.attention_speed": (FUSED, 0.5),
    "software.host_issue": ({}, "50 us"),
    "software.host_call": ({}, "50 us"),
    "software.optimizer_threads": ({"memory.offload_optimizer": True}, 2),
    "software.blocking_launches": ({"hardware.host.issue": "50 us"}, True),
    "software.cuda_graph_modules": ({"software.host_call": "50 us"}, ["attn"]),
    "attention_backend": ({}, "fused"),
    "schedule": (PIPELINE, "gpipe"),
    "cluster": ({}, "a100_sxm4_80gb"),
    "precision.fp8_dispatch": (
        SPLIT_EXPERTS
        | {"parallelism.expert_dispatch": "deepep", "cluster": "h100_sxm"}
        | {"precision": {"compute": "fp8", "fp8_recipe": "blockwise"}},
        True,
    ),
    "precision.fp8_activation_inputs": (FP8 | {"model.activation": "swiglu"}, True),
    "precision.attention_output_bits": (FUSED | BLOCKWISE | {"software.fp8_columns": "recast"}, 12),
    "precision.compute": ({}, "fp32"),
    "precision.tf32": ({"precision.compute": "fp32"}, True),
    "precision.fp8_recipe": (FP8, "tensorwise"),
    "precision.first_layers_bf16": (FP8 | {"precision.fp8_recipe": "tensorwise"}, 1),
    "precision.last_layers_bf16": (FP8 | {"precision.fp8_recipe": "tensorwise"}, 1),
    "precision.fp8_parameters": (FP8 | DATA | {"memory.zero_stage": 1}, True),
    "precision.gradients": ({}, "bf16"),
    "precision.exp_avg": (DATA | {"memory.zero_stage": 1}, "bf16"),
    "precision.exp_avg_sq": (DATA | {"memory.zero_stage": 1}, "bf16"),
    "precision.main_parameters": (DATA | {"memory.zero_stage": 1}, "remainder"),
    "overlap.tensor_parallel": (TENSOR, False),
    "overlap.userbuffers": (SEQUENCE, True),
    "overlap.pipeline": (CHUNKS, True),
    "overlap.data_parallel": (DATA, True),
    "overlap.parameter_gather": (HIDDEN | {"memory.zero_stage": 1}, True),
    "overlap.prefetch": (ZERO_3, 2),
    "overlap.gradient_buckets": (HIDDEN, "megatron"),
    "overlap.align_gradient_reduction": (
        HIDDEN | PIPELINE | {"parallelism.last_stage_layers": 3} | {"model.hidden_size": 1024},
        True,
    ),
    "overlap.align_parameter_gather": (
        HIDDEN
        | CHUNKS
        | {"memory.zero_stage": 1, "overlap.parameter_gather": True, "batch.global": 16},
        True,
    ),
    "overlap.shared_expert": (SHARED, True),
    "overlap.merged_passes": (SPLIT_EXPERTS, True),
    "overlap.delayed_weight_gradients": (SPLIT_EXPERTS | {"overlap.merged_passes": True}, True),
}
"""For each field, changes to `BASE`, and another value that then moves time or memory."""
REPLICAS: Changes = DATA | {
    "variation.kernels": 0,
    "variation.collectives": 0,
    "variation.gpu_spread": 0,
    "variation.pauses": {"per_gpu_hour": 0},
}
PAUSES = REPLICAS | {"variation.pauses": {"per_gpu_hour": 1e6, "duration": "1 ms"}}
SLOW = REPLICAS | {"parallelism.pipeline": 2, "variation.slow": {"factor": 2}}
VARIATION_CASES: dict[str, tuple[Changes, Any]] = {
    "variation.kernels": (REPLICAS, 0.1),
    "variation.collectives": (REPLICAS, 0.1),
    "variation.gpu_spread": (REPLICAS, 0.1),
    "variation.pauses.per_gpu_hour": (PAUSES, 2e6),
    "variation.pauses.duration": (PAUSES, "2 ms"),
    "variation.slow.what": (SLOW | {"parallelism.tensor": 1}, "node"),
    "variation.slow.rank": (SLOW | {"parallelism.last_stage_layers": 3}, 7),
    "variation.slow.factor": (SLOW, 3),
}
"""As `CASES`, for fields that move the mean time of draws."""
WITHOUT_EFFECT = {"name", "description"}
"""Fields that are only printed."""


@pytest.mark.parametrize("field", CASES)
def test_every_field_moves_time_or_memory(field: str) -> None:
    context, value = CASES[field]
    scenario = BASE.replace(context)
    one, other = (EVALUATOR.evaluate(each) for each in (scenario, scenario.replace({field: value})))
    assert one.run is not None and other.run is not None
    seconds = one.run.iteration_time_s, other.run.iteration_time_s
    assert seconds[0] != seconds[1] or one.peak_bytes != other.peak_bytes


@pytest.mark.parametrize("field", VARIATION_CASES)
def test_every_field_of_variation_moves_the_mean_of_draws(field: str) -> None:
    context, value = VARIATION_CASES[field]
    scenario = BASE.replace(context)
    means = [
        draw(each, draws=40).time.mean for each in (scenario, scenario.replace({field: value}))
    ]
    assert means[0] != means[1]


def test_every_field_has_its_case() -> None:
    # Other tests cover the entries of profiles, and recorded programs.
    assert {*CASES, *VARIATION_CASES} | WITHOUT_EFFECT | {"hardware", "program"} == {
        *fields_of(Scenario)
    }


def fields_of(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Return the names of all fields, also of nested sections."""
    for name, field in section.model_fields.items():
        alias = field.serialization_alias or name
        kinds = (*get_args(field.annotation), field.annotation)
        inside = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if inside:
            yield from fields_of(inside[0], f"{path}{alias}.")
        else:
            yield f"{path}{alias}"


def most_of(field: str) -> list[Any]:
    """Return the largest numbers, a long text and long lists, of which a field takes some."""
    section, name = Scenario, field
    while "." in name:
        outer, _, name = name.partition(".")
        section = section_of(section, outer)  # type: ignore[assignment]
    (info,) = (
        one for key, one in section.model_fields.items() if name_in_files(section, key) == name
    )
    return [
        *limits_of(info.annotation, info.metadata),
        1e300,
        "t|" * 50_000,
        [1] * 100_000,
        ["x"] * 100_000,
    ]


def limits_of(annotation: Any, metadata: Any) -> Iterator[int]:
    """Yield the upper limits of integers in a type."""
    yield from (int(one.le) for one in metadata if isinstance(one, annotated_types.Le))
    for inner in get_args(annotation):
        yield from limits_of(inner, getattr(inner, "__metadata__", ()))


def in_bounds(work: Callable[[], None]) -> int:
    """Run a function in a process with 10 s of CPU and 1 GB more than now; return its status."""
    import resource  # not on Windows

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most_bytes = pages * resource.getpagesize() + 10**9
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    try:
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.mark.ci
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("field", CASES)
def test_no_value_of_a_field_takes_long_or_fills_the_memory(field: str) -> None:
    """The largest number, a long text or a long list is refused, or runs in 10 s and 1 GB."""
    context, _ = CASES[field]
    scenario = BASE.replace(context)

    def work() -> None:
        for value in most_of(field):
            with suppress(InputError):
                EVALUATOR.evaluate(scenario.replace({field: value}))

    assert in_bounds(work) == 0
