"""Random legal scenarios with more options than those of random_scenarios, as plain values.

`python modern_scenarios.py NUMBER SEED` prints the path of the simtrain that checks them, then one
scenario per line as JSON. A field is drawn only if the fields before it allow it; about half of the
draws are legal. Models are small: thousands of scenarios are simulated in minutes.
"""

import json
import random
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import simtrain
from benchmarks.random_scenarios import is_legal

Values = dict[str, Any]

_FP8_CLUSTERS = ("h100_sxm", "h200_sxm")
_FP32_CLUSTERS = ("a100_sxm4_80gb", *_FP8_CLUSTERS)
_CLUSTERS = {"fp8": _FP8_CLUSTERS, "fp32": _FP32_CLUSTERS}
"""Clusters whose profiles have products of a data type; all profiles have 16-bit products."""
_OTHER_CLUSTERS = (*_FP32_CLUSTERS, "b200_sxm")
_MEMORIES = ("2600 MiB", "3 GiB", "4 GiB", "6 GiB")
_LIKE_CORE = ("megatron_bridge", "nemo", "mlperf_nvidia")
"""Variations of the stack `megatron_core`."""
_UNFUSED_EXCHANGE = "ring_self_attention"


def modern_scenarios(count: int, seed: int) -> Iterator[Values]:
    """Draw until `count` scenarios are legal, and yield these with a name."""
    rng = random.Random(seed)
    draws = (modern_scenario(rng) for _ in range(100 * count))
    for number, values in enumerate(islice(filter(is_legal, draws), count)):
        yield {"name": f"modern-{number}"} | values


def modern_scenario(rng: random.Random) -> Values:
    """Draw one scenario, which may break a rule."""
    stacks = [None, "megatron_core", "megatron_2022", "torchtitan", "torchtitan_compiled", "eager"]
    stacks += [*_LIKE_CORE, "megatron_2023"]
    stack = rng.choice([*stacks, None])
    precision = _precision(rng, stack)
    fused = precision["compute"] != "fp32" and rng.random() < 0.75
    split = _parallelism(rng, fused)
    schedule = "interleaved" if split["interleave"] > 1 else rng.choice(["gpipe", "1f1b", "1f1b"])
    model = _model(rng, split, precision, fused)
    micro = rng.choice([1, 1, 2, 3]) * (1 if precision["compute"] != "fp8" else 2)
    group = split["pipeline"] if split["interleave"] > 1 else 1
    memory = _memory(rng, split, schedule, precision, shards=stack == "torchtitan")
    if memory["zero_stage"] == 3 and split["pipeline"] > 1:
        model["tied_embeddings"] = False
        if "gathered_chunks" in memory and rng.random() < 0.5:
            schedule = "looped_bfs"
    scenario: Values = {
        "model": model,
        "parallelism": split,
        "placement": {"order": rng.choice(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])},
        "batch": {
            "micro": micro,
            "global": micro * split["data"] * group * rng.choice([1, 2, 3, 5]),
        },
        "recompute": _recompute(rng, split, model),
        "memory": memory,
        "software": {"stack": stack} if stack else {},
        "attention_backend": "fused" if fused else "unfused",
        "schedule": schedule,
        "cluster": rng.choice(_CLUSTERS.get(precision["compute"], _OTHER_CLUSTERS)),
        "precision": precision,
        "overlap": _overlap(rng, split, memory) | _userbuffers(rng, split, model, precision),
    }
    if rng.random() < 0.25:
        _add_experts(rng, scenario)
    has_patterns = stack in ("megatron_core", *_LIKE_CORE) and rng.random() < 0.3
    if has_patterns and split.get("context_communication") != _UNFUSED_EXCHANGE:
        _make_hybrid(rng, scenario)
    _add_modules(rng, scenario)
    _save_ops(rng, scenario)
    _merge_passes(rng, scenario)
    scenario["software"] |= _software(rng, scenario)
    _save_few_bits(rng, scenario)
    _fuse_experts(rng, scenario)
    _swap_states(rng, scenario)
    if rng.random() < 0.4:
        rng.choice(_ALONE)(rng, scenario)
    if rng.random() < 0.3:
        scenario["hardware"] = {"gpu": {"memory_capacity": rng.choice(_MEMORIES)}}
    # The values so far seed what varies, which so leaves those of later scenarios as they are.
    _vary(random.Random(json.dumps(scenario)), scenario)
    return scenario


def _precision(rng: random.Random, stack: str | None) -> Values:
    megatron, torchao = (
        stack in (None, "megatron_core", *_LIKE_CORE, "megatron_2022"),
        "torchtitan_compiled",
    )
    in_fp8 = ["fp8", "fp8"] if megatron or stack == torchao else []
    compute = rng.choice(["bf16", "bf16", "fp16", "fp32", *in_fp8])
    precision: Values = {"compute": compute}
    if compute == "fp32":
        precision |= _sometimes(rng, tf32=[True])
    elif rng.random() < 0.3:
        precision["gradients"] = "bf16" if compute == "fp8" else compute
    if compute == "fp8":
        recipes = ["delayed", "tensorwise", "blockwise"]
        precision |= _sometimes(rng, fp8_recipe=recipes, fp8_parameters=[True])
        if not megatron:
            precision["fp8_recipe"] = "tensorwise"
    if megatron and compute != "fp32" and rng.random() < 0.3:
        both = ["fp32", "bf16"]
        precision |= _sometimes(
            rng, exp_avg=both, exp_avg_sq=both, main_parameters=["fp32", "remainder"]
        )
    return precision


def _parallelism(rng: random.Random, fused: bool) -> Values:
    tensor, pipeline = rng.choice([1, 1, 2, 2, 4]), rng.choice([1, 1, 2, 3, 4])
    split: Values = {
        "tensor": tensor,
        "sequence_parallel": tensor > 1 and rng.random() < 0.6,
        "pipeline": pipeline,
        "interleave": rng.choice([1, 1, 2]) if pipeline > 1 else 1,
        "data": rng.choice([1, 2, 4, 8]),
    }
    if not split["sequence_parallel"]:
        split |= _sometimes(rng, scatter_gather=[False])
    if fused and rng.random() < 0.5:
        split["context"] = rng.choice([2, 4])
        split["context_communication"] = rng.choice(["p2p", "all_gather", "a2a", "a2a+p2p"])
        if split["context_communication"] == "a2a+p2p":
            split["context_a2a"] = 2
    elif not fused and rng.random() < 0.4:
        split |= {"context": rng.choice([2, 4]), "context_communication": _UNFUSED_EXCHANGE}
    return split


def _model(rng: random.Random, split: Values, precision: Values, fused: bool) -> Values:
    unit = 128 if precision["compute"] == "fp8" else 8
    groups = split["tensor"] * split.get("context", 1) * rng.choice([1, 1, 2])
    heads = groups * rng.choice([1, 1, 2])
    if split.get("context_communication") == _UNFUSED_EXCHANGE:
        heads = groups
    model: Values = {
        "num_layers": split["pipeline"] * split["interleave"] * rng.choice([1, 1, 2, 3]),
        "num_attention_heads": heads,
        "hidden_size": heads * rng.choice([8, 64, 128]) if unit == 8 else heads * 128,
        "seq_length": split["tensor"] * split.get("context", 1) * rng.choice([64, 256, 1024]),
        "vocab_size": split["tensor"] * rng.choice([128, 1000, 6400]),
    }
    model |= _sometimes(
        rng,
        ffn_hidden_size=[split["tensor"] * unit * one for one in (1, 3, 8)],
        tied_embeddings=[True, False],
        activation=["gelu", "swiglu", "geglu", "squared_relu"],
        normalization=["layer_norm", "rms_norm"],
        qk_norm=[True],
        position_embedding=["learned", "rope", "none"],
        biases=[True, False],
        parallel_attention_mlp=["none", "one_norm", "two_norms"],
        hidden_dropout=[0.0, 0.2],
        attention_dropout=[0.0, 0.2],
    )
    if model.get("position_embedding", "learned") != "learned" and rng.random() < 0.4:
        model["mtp_num_layers"] = rng.choice([1, 2])
    if fused and rng.random() < 0.25:
        ranks = [32, 80, 24, 96] if unit == 8 else [128, 256]
        latent = _sometimes(
            rng, q_lora_rank=ranks, qk_pos_emb_head_dim=[16, 32], v_head_dim=[32, 64]
        )
        return model | {"latent_attention": {"kv_lora_rank": rng.choice(ranks)} | latent}
    if fused and rng.random() < 0.2:
        model["attention_window"] = rng.choice([1, 32, 300, 100_000])
        model |= _sometimes(rng, full_attention_every=[2, 3])
    channels = [64, 128] if unit == 8 else [128]
    qkv_biases = [True, False]
    return model | _sometimes(
        rng, num_query_groups=[groups], kv_channels=channels, qkv_biases=qkv_biases
    )


def _add_experts(rng: random.Random, scenario: Values) -> None:
    """Add experts to a scenario's model, and change other sections as the experts require."""
    model, split = scenario["model"], scenario["parallelism"]
    ranks = split["tensor"] * split["data"] * split.get("context", 1)
    if split["tensor"] > 1:
        split["sequence_parallel"] = True
        split.pop("scatter_gather", None)
        scenario["recompute"].pop("distribute", None)
    if rng.random() < 0.5:
        split["expert_tensor"] = 1
    of_expert = split.get("expert_tensor", split["tensor"])
    least = 64 if scenario["precision"]["compute"] == "fp8" else 8
    split["expert"] = rng.choice([one for one in (1, 2, 4, 8) if ranks % (one * of_expert) == 0])
    split |= _sometimes(rng, expert_dispatch=["all_gather"])
    experts: Values = {
        "num": split["expert"] * rng.choice([1, 2, 4]),
        "ffn_hidden_size": of_expert * rng.choice([least, 96, 512]),
    }
    experts["top_k"] = rng.randint(1, min(3, experts["num"]))
    experts |= _sometimes(rng, layer_frequency=[2], first_dense_layers=[1])
    if scenario["precision"]["compute"] != "bf16" or rng.random() < 0.3:
        experts["router_dtype"] = "fp32"
    if rng.random() < 0.3:
        experts |= {"router_score": "sigmoid"} | _sometimes(rng, router_bias=[True])
    if rng.random() < 0.3 and experts["num"] % 2 == 0 and experts["top_k"] <= experts["num"] // 2:
        experts |= {"router_groups": 2, "router_group_top_k": 1}
    if rng.random() < 0.4:
        experts["shared_ffn_hidden_size"] = split["tensor"] * rng.choice([least, 256])
        experts |= _sometimes(rng, shared_gate=[True])
        if split.get("expert_dispatch") is None:
            scenario["overlap"] |= _sometimes(rng, shared_expert=[True])
    if split.get("expert_dispatch") is None:
        experts |= _sometimes(rng, capacity_factor=[0.5, 1.25])
    if split["expert"] > 1 and "capacity_factor" not in experts:
        experts |= _sometimes(rng, imbalance=[1.0, 1.7])
        if experts.get("imbalance") == 1.7:
            experts |= _sometimes(rng, imbalance_seed=[1, 2])
    if "layer_frequency" not in experts and "first_dense_layers" not in experts:
        model.pop("ffn_hidden_size", None)
    model |= {"experts": experts, "biases": False}


def _make_hybrid(rng: random.Random, scenario: Values) -> None:
    """Give each layer of a scenario's model one kind, at least one of each that it needs."""
    model, split = scenario["model"], scenario["parallelism"]
    mlp = "E" if "experts" in model else "-"
    needed = "M" + mlp
    model["num_layers"] *= len(needed)
    others = [rng.choice(f"M*{mlp}") for _ in range(model["num_layers"] - len(needed))]
    model["layer_pattern"] = "".join([*needed, *others])
    unit = 64 if scenario["precision"]["compute"] == "fp8" else 8
    groups = split["tensor"] * split.get("context", 1) * rng.choice([1, 2])
    model["mamba"] = {
        "num_heads": groups * rng.choice([16, 32] if unit == 64 else [1, 2]),
        "head_dim": unit * rng.choice([1, 2]),
        "state_dim": unit * rng.choice([1, 4]),
        "num_groups": groups,
    } | _sometimes(rng, chunk_size=[64, 256])
    for name in ("parallel_attention_mlp", "full_attention_every", "mtp_num_layers"):
        model.pop(name, None)
    if mlp == "E":
        model.pop("ffn_hidden_size", None)
        for name in ("first_dense_layers", "layer_frequency"):
            model["experts"].pop(name, None)


def _merge_passes(rng: random.Random, scenario: Values) -> None:
    """Merge passes that exchange tokens between experts, if Megatron-LM can merge them."""
    split, recompute = scenario["parallelism"], scenario["recompute"]
    exchanges = split.get("expert", 1) > 1 and "expert_dispatch" not in split
    is_hidden = scenario["overlap"].get("shared_expert")
    is_alone = split["pipeline"] > 1 and split["interleave"] == 1
    whole = recompute["strategy"] in ("full", "auto") or recompute.get("keep_microbatches")
    predicts = scenario["model"].get("mtp_num_layers", 0) > (split["pipeline"] > 1)
    if not exchanges or is_hidden or is_alone or whole or predicts:
        return
    if scenario["schedule"] != "gpipe" and scenario["memory"].get("zero_stage", 0) < 2:
        scenario["overlap"] |= _sometimes(rng, 0.7, merged_passes=[True])
        if scenario["overlap"].get("merged_passes"):
            scenario["overlap"] |= _sometimes(rng, 0.5, delayed_weight_gradients=[True])


def _recompute(rng: random.Random, split: Values, model: Values) -> Values:
    policy: Values = {"strategy": rng.choice(["none", "selective", "full", "full", "auto"])}
    if policy["strategy"] == "full":
        policy |= _sometimes(rng, method=["uniform", "block"])
        layers = model["num_layers"] // split["pipeline"] // split["interleave"]
        if policy.get("method") == "block" or not model.get("mtp_num_layers"):
            policy["num_layers"] = rng.randint(1, layers)
        if split["tensor"] > 1 and not split["sequence_parallel"]:
            policy |= _sometimes(rng, distribute=[True])
    if policy["strategy"] in ("selective", "full") and split["pipeline"] > 1:
        policy |= _sometimes(rng, keep_microbatches=[1, "auto"])
    return policy


def _save_ops(rng: random.Random, scenario: Values) -> None:
    """Draw recompute by op in stacks that have it, in place of none."""
    stacks = "torchtitan", "torchtitan_compiled", "eager"
    has_it = scenario["software"].get("stack") in stacks
    if has_it and scenario["recompute"]["strategy"] == "none" and rng.random() < 0.7:
        saved = [["products", "attention"], ["attention", "reduce_scatters", "projection"], []]
        scenario["recompute"] = {"strategy": "ops"} | _sometimes(rng, saved_ops=saved)


def _memory(
    rng: random.Random, split: Values, schedule: str, precision: Values, *, shards: bool
) -> Values:
    ranks, in_pipeline = split["data"] * split.get("context", 1), split["pipeline"] > 1
    most = 0 if ranks == 1 else 1 if in_pipeline else 3
    if shards and in_pipeline and ranks > 1 and rng.random() < 0.5:
        memory: Values = {"zero_stage": 3, "reduce_every_microbatch": False}
        if rng.random() < 0.3:
            return memory | {"gathered_chunks": rng.choice([1, 2, 3])}
        return memory | _sometimes(rng, reshard_after_forward=[False])
    states = ("exp_avg", "exp_avg_sq", "main_parameters")
    needs_stage_1 = any(name in precision for name in states)
    stages = [1] if needs_stage_1 else [*range(most + 1)]
    if precision.get("fp8_parameters"):
        stages = [1, most]
    memory = {"zero_stage": rng.choice(stages)}
    if memory["zero_stage"] and split["data"] > 1:
        memory |= _sometimes(rng, shard_over=[one for one in (2, 4, 8) if one <= split["data"]])
    if memory["zero_stage"] >= 2:
        memory |= _sometimes(rng, reduce_every_microbatch=[False])
    if memory["zero_stage"] == 3 and schedule == "1f1b":
        memory |= _sometimes(rng, reshard_after_forward=[False, 2])
    if rng.random() < 0.15:
        memory["offload_optimizer"] = True
        memory |= _host_states(rng, split, memory)
    return memory | _sometimes(rng, deallocate_outputs=[True, False])


def _host_states(rng: random.Random, split: Values, memory: Values) -> Values:
    """Draw what else is on the host: pipelines copy nothing in passes (rule E976)."""
    if split["pipeline"] > 1:
        return {}
    alone, stage = split["data"] * split.get("context", 1) == 1, memory["zero_stage"]
    every = memory.get("reduce_every_microbatch", True)
    keeps = memory.get("reshard_after_forward", True) is True and every
    states = {
        "offload_gradients": keeps and (alone or stage >= 2),
        "offload_parameters": keeps and (alone or stage == 3),
        "delayed_update": True,
    }
    return {name: True for name, can in states.items() if can and rng.random() < 0.5}


def _overlap(rng: random.Random, split: Values, memory: Values) -> Values:
    overlap: Values = _sometimes(rng, tensor_parallel=[True, False], data_parallel=[True])
    if split["interleave"] > 1:
        overlap["pipeline"] = split["pipeline"] == 2 or rng.random() < 0.5
    if "gathered_chunks" in memory:
        overlap["data_parallel"] = True
    if not overlap.get("data_parallel"):
        return overlap
    if memory["zero_stage"] == 3:
        return overlap | _sometimes(rng, prefetch=[1, 2, 5])
    if memory["zero_stage"] == 2 or split["data"] * split.get("context", 1) == 1:
        return overlap
    overlap |= _sometimes(rng, gradient_buckets=["layer", "megatron", 1, 300_000])
    if memory["zero_stage"] == 1:
        overlap |= _sometimes(rng, parameter_gather=[True])
    if split["pipeline"] > 1:
        overlap |= _sometimes(rng, align_gradient_reduction=[True])
    if split["interleave"] > 1 and overlap.get("parameter_gather"):
        overlap |= _sometimes(rng, align_parameter_gather=[True])
    return overlap


def _userbuffers(rng: random.Random, split: Values, model: Values, precision: Values) -> Values:
    is_plain = not {"latent_attention", "mtp_num_layers"} & set(model)
    if not split["sequence_parallel"] or precision["compute"] == "fp32" or not is_plain:
        return {}
    tokens = model["seq_length"] // split.get("context", 1)
    fits = tokens % (4 * split["tensor"]) == 0
    return {"tensor_parallel": True, "userbuffers": True} if fits and rng.random() < 0.4 else {}


def _add_modules(rng: random.Random, scenario: Values) -> None:
    """Draw modules for selective recompute from the modules of the model."""
    model, policy = scenario["model"], scenario["recompute"]
    experts = model.get("experts")
    if policy["strategy"] != "selective" or rng.random() < 0.3:
        return
    has = {
        "core_attention": True,
        "mlp": not experts or "layer_frequency" in experts or "first_dense_layers" in experts,
        "layernorm": scenario["precision"]["compute"] != "fp8",
        "mla_up_proj": "latent_attention" in model,
        "moe": experts,
        "moe_act": experts and scenario["precision"]["compute"] != "fp8",
        "shared_experts": experts and "shared_ffn_hidden_size" in experts,
    }
    modules = [module for module, has_it in has.items() if has_it and rng.random() < 0.5]
    policy["modules"] = modules or ["core_attention"]
    if {"mlp", "layernorm"} & {*modules} and scenario["precision"]["compute"] != "fp8":
        scenario["software"] |= _sometimes(rng, norm_in_linear=[True, False])


def _software(rng: random.Random, scenario: Values) -> Values:
    """Draw entries of the software stack that affect the scenario."""
    model, flags = scenario["model"], [True, False]
    used: dict[str, bool] = {
        "fused_softmax": scenario["attention_backend"] == "unfused",
        "fused_rotary": model.get("position_embedding") == "rope",
        "fused_rms_norm": model.get("normalization") == "rms_norm",
        "fused_activation": model.get("biases", True),
        "fused_dropout_add": model.get("biases", True),
        "fused_cross_entropy": True,
        "fused_gradient_accumulation": True,
        "fused_optimizer": not scenario["memory"].get("offload_optimizer"),
        "cuda_graphs": True,
        "fully_shard": scenario["memory"]["zero_stage"] == 3,
    }
    values: dict[str, list[Any]] = {name: flags for name, is_used in used.items() if is_used}
    values["host_issue"] = ["0 s", "25 us"]
    if scenario["attention_backend"] == "fused":
        values["attention_speed"] = [0.5, 1.3]
        values["attention_kernel"] = ["newest", "flash_attention_2"]
    for name in ("torch", "linear", *(["expert"] if "experts" in model else [])):
        values[f"{name}_workspaces"] = [1, 2]
    software = _sometimes(rng, 0.12, **values)
    if not software.get("cuda_graphs"):
        modules = [["attn"], ["mlp", "moe_router", "moe_preprocess"]]
        calls = _sometimes(rng, 0.12, host_call=["0 s", "90 us"], cuda_graph_modules=modules)
        software |= calls | _sometimes(rng, 0.06, blocking_launches=[True])
    software |= _sometimes(rng, 0.06, checkpointed_fp32_norms=[True])
    if software.get("fused_softmax") is False:
        software |= _sometimes(rng, separate_masking=flags)
    if used["fused_rotary"] and software.get("fused_rotary") is False:
        software |= _sometimes(rng, 0.5, complex_rotary=flags)
    has_groups = model.get("num_query_groups", heads := model["num_attention_heads"]) != heads
    if has_groups and scenario["attention_backend"] == "fused":
        software |= _sometimes(rng, 0.12, repeated_keys=flags)
    if software.get("fused_cross_entropy"):
        software["cross_entropy_fusion"] = rng.choice(["native", "te"])
    if "torch_workspaces" in software:
        software["cublas_workspace"] = rng.choice(["4 MiB", "32 MiB"])
    return software


def _save_few_bits(rng: random.Random, scenario: Values) -> None:
    """Draw what DeepSeek-V3 saves in few bits, in stacks with Transformer Engine."""
    precision, software, split = (
        scenario[name] for name in ("precision", "software", "parallelism")
    )
    if (
        software.get("stack") not in ("megatron_core", *_LIKE_CORE)
        or precision["compute"] == "fp32"
    ):
        return
    if scenario["model"].get("activation") == "swiglu" and software.get("fused_activation", True):
        precision |= _sometimes(rng, fp8_activation_inputs=[True])
    if precision.get("fp8_recipe") != "blockwise" or split["tensor"] > 1:
        return
    software |= _sometimes(rng, 0.8, fp8_columns=["recast"])
    is_plain = scenario["attention_backend"] == "fused" and split.get("context", 1) == 1
    recomputes = scenario["recompute"]["strategy"] == "selective"
    if "fp8_columns" in software and is_plain and not recomputes:
        precision |= _sometimes(rng, 0.8, attention_output_bits=[12])


def _fuse_experts(rng: random.Random, scenario: Values) -> None:
    """Draw how products of experts are launched and fused; fused ones are in mxfp8."""
    software, precision = scenario["software"], scenario["precision"]
    if "experts" not in scenario["model"]:
        return
    in_fp8 = precision["compute"] == "fp8" and precision.get("fp8_recipe") != "blockwise"
    if in_fp8 and software.get("stack") in ("megatron_core", *_LIKE_CORE) and rng.random() < 0.5:
        scenario["cluster"], precision["fp8_recipe"] = "b200_sxm", "mxfp8"
        software |= _sometimes(rng, 0.7, fused_grouped_mlp=[True])
        if "fused_grouped_mlp" in software:
            software |= _sometimes(rng, 0.5, paged_stash=[True])
    elif not software.get("cuda_graphs"):
        software |= _sometimes(rng, 0.1, grouped_products=[True, False])


def _swap_states(rng: random.Random, scenario: Values) -> None:
    """Move states from the host to NVMe, which one cluster has, or let one rank own parameters."""
    memory, split = scenario["memory"], scenario["parallelism"]
    copies = memory.get("offload_parameters", False)
    if copies and split["data"] > 1:
        memory |= _sometimes(rng, 0.8, parameter_owners=["one"])
    half = scenario["precision"]["compute"] in ("bf16", "fp16")
    alone = split["pipeline"] == 1 and scenario["attention_backend"] == "unfused"
    if memory.get("offload_optimizer") and alone and half and rng.random() < 0.7:
        scenario["cluster"] = "v100_dgx2"
        memory["nvme"] = rng.choice(["optimizer", "parameters", "all"] if copies else ["optimizer"])
    if memory.get("delayed_update") or "nvme" in memory:
        memory |= _sometimes(rng, sub_group_size=[100_000])


def _train_adapters(rng: random.Random, scenario: Values) -> None:
    """Train adapters of a dense model's linear layers."""
    model, rank = scenario["model"], 8 * scenario["parallelism"]["tensor"]
    others = {"experts", "latent_attention", "mtp_num_layers", "layer_pattern"} & {*model}
    if not others and scenario["memory"]["zero_stage"] < 2:
        modules = ["linear_qkv"], ["linear_proj", "linear_fc1"]
        model["lora"] = {"rank": rank} | _sometimes(rng, modules=[*modules], dropout=[0.1])
        if scenario["precision"]["compute"] == "fp8":
            scenario["precision"] |= _sometimes(rng, 0.7, fp8_parameters=[True, False])
            _multiply_on_blackwell(rng, scenario)


def _multiply_on_blackwell(rng: random.Random, scenario: Values) -> None:
    """Move a scenario in fp8 to GPUs that keep fewer copies of weights with one scale."""
    if rng.random() < 0.5:
        scenario["cluster"] = "b200_sxm"
        scenario["precision"] |= _sometimes(rng, 0.3, fp8_recipe=["mxfp8"])


def _pack_documents(rng: random.Random, scenario: Values) -> None:
    """Fill the sequences with documents."""
    batch, is_whole = scenario["batch"], scenario["parallelism"].get("context", 1) == 1
    if is_whole and batch["micro"] == 1 and scenario["attention_backend"] == "fused":
        batch["packed_lengths"] = rng.choice([[64], [16, 40]])


def _vary(rng: random.Random, scenario: Values) -> None:
    """Let durations vary between ranks, replicas and iterations."""
    if rng.random() > 0.4:
        return
    variation = _sometimes(
        rng,
        kernels=[0.0, 0.02, 0.1],
        collectives=[0.0, 0.1],
        gpu_spread=[0.0, 0.01],
        pauses=[{"per_gpu_hour": 1000.0, "duration": "1 ms"}, {"per_gpu_hour": 0.0}],
        slow=[
            {"what": what, "rank": 0, "factor": factor}
            for what in ("gpu", "node")
            for factor in (1.0, 1.5)
        ],
    )
    scenario["variation"] = variation


def _copy_to_the_host(rng: random.Random, scenario: Values) -> None:
    """Keep some saved tensors on the host between the passes."""
    unit = rng.choice(["layer", "chunk"] if scenario["parallelism"]["pipeline"] > 1 else ["layer"])
    scenario["offload"] = {"unit": unit} | _sometimes(rng, **{f"{unit}s": [1]})
    half = scenario["precision"]["compute"] in ("bf16", "fp16")
    if half and scenario["attention_backend"] == "unfused" and rng.random() < 0.5:
        scenario["cluster"], scenario["offload"]["device"] = "v100_dgx2", "nvme"
    # Other stacks and recompute may save no tensor of a module.
    if scenario["recompute"]["strategy"] == "none" and "stack" not in scenario["software"]:
        modules = [["core_attn", "attn_proj"], ["qkv_linear"]]
        scenario["offload"] |= _sometimes(rng, 0.7, modules=modules)


def _cut_sequences(rng: random.Random, scenario: Values) -> None:
    """Run slices of each sequence."""
    split = scenario["parallelism"]
    if split["pipeline"] > 1 and split["interleave"] == split.get("context", 1) == 1:
        scenario["schedule"], split["sequence_slices"] = "seq1f1b", 2
        split |= _sometimes(rng, slice_balance=["flops"])
        quarter = scenario["model"]["seq_length"] // 4
        if "slice_balance" not in split and quarter >= 256 * split["tensor"]:
            scenario["schedule"] = "terapipe"
            split["slice_lengths"] = [3 * quarter, quarter]


def _split_matrices(rng: random.Random, scenario: Values) -> None:
    """Split the matrices of a dense model's layers over a grid of ranks."""
    split, model = scenario["parallelism"], scenario["model"]
    others = {"experts", "latent_attention", "mtp_num_layers", "layer_pattern"} & {*model}
    is_plain = scenario["precision"]["compute"] != "fp8" and split.get("context", 1) == 1
    projects_apart = scenario["software"].get("stack", "").startswith("torchtitan")
    if others or projects_apart or not is_plain or split["tensor"] == 1:
        return
    split["sequence_parallel"] = False
    grids: list[tuple[str, int, int]] = [("hidden", split["tensor"], 1), ("2d", 4, 2)]
    split["tensor_split"], ranks, sequences = rng.choice(
        [*grids, *[("2.5d", 8, 4)] * 3, ("3d", 8, 4)]
    )
    split["tensor"] = ranks
    if split["tensor_split"] == "2.5d":
        split["tensor_depth"] = 2
    for size in ("num_attention_heads", "num_query_groups", "hidden_size", "ffn_hidden_size"):
        if size in model:
            model[size] *= ranks
    scenario["batch"] = {key: size * sequences for key, size in scenario["batch"].items()}
    split.pop("scatter_gather", None)
    scenario["software"].pop("checkpointed_fp32_norms", None)
    scenario["recompute"].pop("distribute", None)
    scenario["overlap"].pop("userbuffers", None)


def _defer_output_gradients(rng: random.Random, scenario: Values) -> None:
    """Let the last stage compute weight gradients of the output layer after its passes."""
    if scenario["parallelism"]["pipeline"] > 1 and scenario["schedule"] != "gpipe":
        scenario["overlap"]["deferred_output_gradients"] = rng.choice([1, 2, 100])


def _validate_steps(rng: random.Random, scenario: Values) -> None:
    """Let optimizer steps run before the gradient norm of all stages exists."""
    split, model = scenario["parallelism"], scenario["model"]
    if split["pipeline"] > 1 and split["interleave"] == 1:
        scenario["schedule"] = rng.choice(["zb_h1", "zb_h2"])
        model["tied_embeddings"] = False
        scenario["overlap"]["optimizer_post_validation"] = True


def _run_from_both_ends(rng: random.Random, scenario: Values) -> None:
    """Run two copies of the model in opposite directions."""
    split, batch = scenario["parallelism"], scenario["batch"]
    if split["pipeline"] % 2 == 0 and split["interleave"] == 1:
        scenario["schedule"] = rng.choice(["chimera", "chimera_double"])
        batch["global"] *= 1 + batch["global"] // batch["micro"] // split["data"] % 2


def _run_in_waves(rng: random.Random, scenario: Values) -> None:
    """Place two chunks of each stage on the way there and back."""
    if scenario["parallelism"]["interleave"] == 2:
        scenario["schedule"], scenario["overlap"]["pipeline"] = "hanayo", True


def _skip_the_flush(rng: random.Random, scenario: Values) -> None:
    """Let iterations run into each other."""
    split, model, batch = (scenario[name] for name in ("parallelism", "model", "batch"))
    if split["pipeline"] > 1 and split["interleave"] == 1 and scenario["memory"]["zero_stage"] < 2:
        scenario["schedule"], model["tied_embeddings"] = "pipedream_2bw", False
        batch["global"] *= split["pipeline"]
        model.pop("mtp_num_layers", None)
        for name in ("parameter_gather", "align_parameter_gather", "pipeline"):
            scenario["overlap"].pop(name, None)


def _keep_ends_in_bf16(rng: random.Random, scenario: Values) -> None:
    """Keep the first and the last layers of a model in fp8 in bf16."""
    if scenario["precision"]["compute"] == "fp8":
        layers = {"first_layers_bf16": [1], "last_layers_bf16": [1]}
        scenario["precision"] |= _sometimes(rng, 0.7, **layers)


_ALONE = (
    *(_train_adapters, _pack_documents, _copy_to_the_host, _cut_sequences, _validate_steps),
    *(_validate_steps, _keep_ends_in_bf16, _defer_output_gradients, _split_matrices),
    *(_run_from_both_ends, _run_in_waves, _skip_the_flush),
    # Few scenarios can have modules of an offload, or a grid of ranks.
    *[_copy_to_the_host] * 3,
    *[_split_matrices] * 3,
)
"""Draws of options that few others may accompany: a scenario has at most one of them."""


def _sometimes(rng: random.Random, share: float = 0.35, **values: list[Any]) -> Values:
    """Draw a value for each field with the probability `share`, and omit the other fields."""
    return {name: rng.choice(ways) for name, ways in values.items() if rng.random() < share}


def main() -> None:
    print(simtrain.__file__)
    for scenario in modern_scenarios(int(sys.argv[1]), int(sys.argv[2])):
        print(json.dumps(scenario))


if __name__ == "__main__":
    main()
