"""Valid single values of every field of a scenario, which together may break any rule.

All values are small: a scenario of any of them is evaluated in milliseconds, unless it is refused.
"""

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from simtrain.scenario import Scenario

Values = dict[str, Any]
"""Values by field."""

_COUNTS: Values = {
    "model.num_layers": (8, 4, 6, 1),
    "model.hidden_size": (256, 128, 96),
    "model.num_attention_heads": (8, 4, 6),
    "model.ffn_hidden_size": (512, 128, 100),
    "model.seq_length": (256, 128, 60),
    "model.vocab_size": (1024, 512, 1003),
    "model.num_query_groups": (8, 4, 2),
    "model.kv_channels": (32, 64, 16),
    "model.latent_attention": (None, {"kv_lora_rank": 64}),
    "model.latent_attention.q_lora_rank": (None, 64),
    "model.latent_attention.kv_lora_rank": (64, 32),
    "model.latent_attention.qk_head_dim": (64, 128),
    "model.latent_attention.qk_pos_emb_head_dim": (32, 64),
    "model.latent_attention.v_head_dim": (64, 128),
    "model.attention_window": (None, 64),
    "model.full_attention_every": (None, 2),
    "model.mtp_num_layers": (0, 1, 2),
    "model.hidden_dropout": (0.1, 0.0),
    "model.attention_dropout": (0.1, 0.0),
    "model.experts": (None, {"num": 8, "top_k": 2, "ffn_hidden_size": 128}),
    "model.experts.num": (8, 4),
    "model.experts.top_k": (2, 1),
    "model.experts.ffn_hidden_size": (128, 256),
    "model.experts.shared_ffn_hidden_size": (0, 128),
    "model.experts.first_dense_layers": (0, 1),
    "model.experts.layer_frequency": (1, 2),
    "model.experts.capacity_factor": (None, 1.5),
    "model.experts.router_groups": (None, 2, 4),
    "model.experts.router_group_top_k": (None, 1, 2),
    "model.experts.imbalance": (1.0, 1.5),
    "model.experts.imbalance_seed": (None, 1),
    "model.lora": (None, {"rank": 8}),
    "model.lora.rank": (8, 4),
    "model.lora.modules": (("linear_qkv", "linear_proj"), ("linear_fc1",)),
    "model.lora.dropout": (0.0, 0.1),
    "model.layer_pattern": (None, "M-*-M-*-", "MM*-"),
    "model.mamba.num_heads": (None, 8, 6),
    "model.mamba.head_dim": (64, 32),
    "model.mamba.state_dim": (128, 64),
    "model.mamba.num_groups": (8, 2),
    "model.mamba.chunk_size": (128, 64),
    "parallelism.tensor": (1, 2, 4),
    "parallelism.pipeline": (1, 2, 3, 4),
    "parallelism.interleave": (1, 2, 3),
    "parallelism.microbatch_group_size": (None, 3, 4),
    "parallelism.first_stage_layers": (None, 2, 1),
    "parallelism.last_stage_layers": (None, 2, 3),
    "parallelism.layout": (None, "Etttt|ttttL", "Et|tt|tttt|tL"),
    "parallelism.data": (1, 2, 4),
    "parallelism.context": (1, 2, 4),
    "parallelism.context_a2a": (None, 2),
    "parallelism.expert": (1, 2, 4),
    "parallelism.expert_tensor": (None, 1, 2),
    "batch.micro": (1, 2),
    "batch.global": (16, 8, 32, 6),
    "batch.packed_lengths": (None, (128, 64), (256,)),
    "recompute.modules": (("core_attention",), ("mlp", "layernorm"), ("moe_act",)),
    "recompute.saved_ops": (("attention",), ("products",)),
    "recompute.num_layers": (1, 2),
    "recompute.keep_microbatches": (0, 1, "auto"),
    "offload.modules": ((), ("core_attention",), ("qkv_linear",)),
    "offload.layers": (None, 1),
    "offload.chunks": (None, 1),
    "memory.zero_stage": (0, 1, 2, 3),
    "memory.shard_over": (None, 2),
    "memory.reshard_after_forward": (True, False, 2),
    "memory.gathered_chunks": (None, 1, 2),
    "memory.sub_group_size": (1_000_000_000, 10_000),
    "software.stack": (
        *("megatron_2022", "megatron_core", "torchtitan", "torchtitan_compiled"),
        *("megatron_bridge", "megatron_bridge@25.11"),
    ),
    "software.attention_speed": (None, 0.5),
    "software.torch_workspaces": (None, 1),
    "software.linear_workspaces": (None, 1),
    "software.expert_workspaces": (None, 4),
    "software.cublas_workspace": (None, "4 MiB"),
    "software.host_issue": (None, "5 us"),
    "software.host_call": (None, "5 us"),
    "software.cuda_graph_modules": (None, ("attn",), ("mlp", "moe_router")),
    "cluster": ("h100_sxm", "a100_sxm4_80gb", "b200_sxm", "trn1", "trn2", "v100_dgx2", "v100_p3"),
    "precision.first_layers_bf16": (0, 1),
    "precision.last_layers_bf16": (0, 1),
    "overlap.prefetch": (1, 2),
    "overlap.deferred_output_gradients": (0, 1, 100),
    "overlap.gradient_buckets": ("layer", "megatron", 100_000),
    "variation.kernels": (None, 0.0, 0.05),
    "variation.collectives": (None, 0.0),
    "variation.gpu_spread": (None, 0.02),
    "variation.pauses": (None, {"per_gpu_hour": 0}),
    "variation.pauses.per_gpu_hour": (None, 1000.0),
    "variation.pauses.duration": (None, "1 ms"),
    "variation.slow": (None, {"factor": 2.0}),
    "variation.slow.rank": (0, 3),
    "variation.slow.factor": (2.0, 1.0),
}
"""Values of fields that are neither flags nor choices, the one that most others allow first."""
_FIRST: Values = {"precision.compute": "bf16", "schedule": "1f1b", "attention_backend": "fused"}
_NOT_DRAWN = ("name", "description", "hardware", "program")


def _fields(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each field and each section that may be left out, with its annotation."""
    for name, field in section.model_fields.items():
        full, kinds = path + (field.serialization_alias or name), _kinds(field.annotation)
        inside = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inside or full in _COUNTS:
            yield full, field.annotation
        for kind in inside:
            yield from _fields(kind, f"{full}.")


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for kind in get_args(annotation) if get_origin(annotation) is not Literal else ():
        yield from _kinds(kind)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return all values of a flag or a choice."""
    values = [None] if type(None) in _kinds(annotation) else []
    for kind in _kinds(annotation):
        values += [False, True] if kind is bool else []
        values += get_args(kind) if get_origin(kind) is Literal else []
    return tuple(values)


def _values_of(field: str, annotation: Any) -> tuple[Any, ...]:
    values = _COUNTS.get(field) or _choices(annotation)
    first = _FIRST.get(field, values[0])
    return (first, *(value for value in values if value is not first))


FIELD_VALUES: dict[str, tuple[Any, ...]] = {
    field: _values_of(field, annotation)
    for field, annotation in _fields(Scenario)
    if field not in _NOT_DRAWN
}
"""Values of every field. The first ones together are a legal scenario."""
_REQUIRED = {"model.num_layers", "model.hidden_size", "model.num_attention_heads"}
_REQUIRED |= {"model.seq_length", "batch.micro", "batch.global", "cluster", "attention_backend"}


def nested(values: Mapping[str, Any]) -> Values:
    """Return values by field as sections; without those of a section that is left out."""
    data: Values = {}
    for field in sorted({*_REQUIRED, *values}):
        path, _, name = field.rpartition(".")
        if path in FIELD_VALUES and values.get(path) is None:
            continue
        section = data
        for part in filter(None, path.split(".")):
            section = section.setdefault(part, {})
        value = values[field] if field in values else FIELD_VALUES[field][0]
        section[name] = copy.copy(value)
    return data


def random_values(rng: random.Random) -> Values:
    """Draw values of a few fields, up to half of all."""
    number = rng.choice((3, 6, 12, len(FIELD_VALUES) // 2))
    fields = rng.sample(sorted(FIELD_VALUES), number)
    return {field: rng.choice(FIELD_VALUES[field]) for field in fields}
