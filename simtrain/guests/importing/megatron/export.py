"""Write a scenario as a script that starts Megatron-LM: the words of the import, inverted."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

from simtrain.base.importer import ImportRequest
from simtrain.base.output_folder import as_path, write_new
from simtrain.errors import InputError, Location, printable
from simtrain.guests.importing.megatron.arguments import EXPORTED, GROUPS, MAPPED, SPELLINGS
from simtrain.guests.importing.megatron.fields import MODULE_NAMES, megatron_draft
from simtrain.scenario import Scenario
from simtrain.scenario.check import check_is_scenario
from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.scenario.parallelism import chunks_of_layout, layout_of_chunks
from simtrain.scenario.resolved import settings_of
from simtrain.studies.evaluation import Evaluator

_FEWEST_PADDING = 128
_TO_RUN = "--tokenizer-type NullTokenizer --mock-data --train-iters 20 --lr 1.0e-4"
"""What pretrain_gpt.py needs besides, without effect on an iteration: to be replaced."""
RANKS_PER_NODE = 8
_OF_SIMTRAIN = ("name", "description", "cluster", "hardware", "software", "variation")
"""Sections that no framework sets; of `software`, the facts are compared."""
_LONG = {"microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage"}
"""Flags whose printed name is shorter."""
_SPEC = "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
Arguments = dict[str, Any]
"""Values by the names that Megatron-LM prints; a list has several values."""


def export(scenario: Scenario, out: str | Path | None = None) -> str:
    """Return a script that starts Megatron-LM with a scenario, as `simtrain export` writes it.

    Args:
        scenario: the scenario.
        out: file to write too.

    Raises:
        InputError: the scenario is illegal, a recorded program (E952) or nothing that Megatron-LM
            can run (E882), or the file cannot be written.
    """
    check_is_scenario(scenario)
    if scenario.program is not None:
        message = f"the program {scenario.program} is code of its own"
        fix = "run the script from which it was recorded"
        raise InputError.of("E952", message, Location(scenario.name or "the scenario"), fix)
    # Megatron-LM does not choose recompute: the answer is written.
    text = printable(megatron_script(Evaluator(allow_oom=True).evaluate(scenario).scenario))
    if out is not None:
        write_new(as_path(out), text)
    return text


def megatron_script(scenario: Scenario) -> str:
    """Return a script of bash with the arguments, and comments on what they cannot say.

    Raises:
        InputError: Megatron-LM cannot run the scenario (E882).
    """
    if scenario.model.lora:
        message = "model.lora is set, but Megatron-LM has no adapters"
        fix = "remove model.lora; Megatron-Bridge has adapters"
        raise InputError.of("E882", message, fix=fix, reason="it would train all weights")
    split, known = scenario.parallelism, MAPPED["cp_comm_type"].values.values()
    if split.context > 1 and split.context_communication not in known:
        message = (
            f"parallelism.context_communication is {split.context_communication}, which "
            "Megatron-LM does not have"
        )
        fix = "--set parallelism.context_communication=p2p --set attention_backend=fused"
        raise InputError.of("E882", message, fix=f"add {fix}")
    arguments = spelled(arguments_of(scenario))
    ranks = math.gcd(scenario.num_gpus, RANKS_PER_NODE)
    launch = f"torchrun --nproc-per-node {ranks} --nnodes {scenario.num_gpus // ranks}"
    name = f" of {scenario.name}" if scenario.name else ""
    overrides = [f"parallelism.data={split.data}", f"cluster={scenario.cluster}"]
    request = ImportRequest(" ".join([*arguments, _TO_RUN]), overrides=overrides)
    before, after = values_of(scenario), values_of(megatron_draft(request).finished()[0])
    lost = [
        f"# - {field}: {before.get(field)}, after an import {after.get(field)}"
        for field in sorted(before.keys() | after.keys())
        if before.get(field) != after.get(field)
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            f"# Megatron-LM's arguments{name}, with data of no meaning: replace the last line.",
            *(["# Arguments cannot say these fields of the scenario:"] if lost else []),
            *lost,
            " \\\n  ".join([f"{launch} pretrain_gpt.py", *arguments, _TO_RUN]),
            "",
        ]
    )


def values_of(scenario: Scenario) -> dict[str, Any]:
    """Return all settings that a framework could say, with the facts of the software stack."""
    values = {
        field: value
        for field, value in settings_of(scenario).items()
        if field.partition(".")[0] not in _OF_SIMTRAIN and value is not None
    }
    if layout := values.get("parallelism.layout"):
        # (t|)*2 and t|t| are the same chunks.
        values["parallelism.layout"] = layout_of_chunks(chunks_of_layout(layout))
    facts = scenario.facts
    kernels = {f"software.{name}": getattr(facts.kernels, name) for name in facts.kernels.__slots__}
    launches = {
        "software.blocking_launches": facts.blocking_launches,
        "software.cuda_graphs": facts.cuda_graphs,
        "software.cuda_graph_modules": [*facts.cuda_graph_modules],
    }
    return values | kernels | launches


def arguments_of(scenario: Scenario) -> Arguments:
    """Return the arguments of fields, and those that follow from several fields."""
    fields, arguments = _fields(scenario), Arguments()
    for section, names in EXPORTED.items():
        for name in names if section != "experts" or scenario.model.experts else ():
            word = MAPPED[name]
            if word.field in fields and (value := word.word_for(fields[word.field])) is not None:
                arguments[name] = value
        arguments |= _COMBINED[section](scenario)
    return {name: value for name, value in arguments.items() if value is not None}


def spelled(arguments: Arguments) -> list[str]:
    """Return arguments as a command line has them; a flag that is off has a name of its own."""
    texts = []
    for name, value in arguments.items():
        flag = _LONG.get(name, name)
        if value is False:
            off = (each for each, of in SPELLINGS.items() if of == (name, False))
            flag = next(off, f"no_{name}")
        values = value if isinstance(value, list | tuple) else [value]
        values = [] if isinstance(value, bool) else values
        words = (shlex.quote(str(each)) for each in values)
        texts.append(" ".join([f"--{flag.replace('_', '-')}", *words]))
    return texts


def _fields(scenario: Scenario) -> dict[str, Any]:
    """Return the fields, as Megatron-LM's arguments mean them in this scenario."""
    model, split, recompute = scenario.model, scenario.parallelism, scenario.recompute
    memory, precision, overlap = scenario.memory, scenario.precision, scenario.overlap
    has_layout, is_full = split.layout is not None, recompute.strategy == "full"
    shards, has_experts = memory.zero_stage > 1, model.experts is not None
    gathers, reduces = scenario.overlaps_parameter_gather, scenario.reduces_in_buckets
    has_context, buckets = split.context > 1, overlap.gradient_buckets
    needed: dict[str, tuple[Any, Any]] = {
        "model.ffn_hidden_size": (model.has_dense_layers, model.ffn_hidden_size),
        "model.kv_channels": (
            not model.latent_attention
            and model.kv_channels * model.num_attention_heads != model.hidden_size,
            model.kv_channels,
        ),
        "model.qkv_biases": (not model.biases, model.qkv_biases),
        "parallelism.layout": (has_layout, split.layout),
        "parallelism.interleave": (not has_layout and split.interleave > 1, split.interleave),
        "parallelism.first_stage_layers": (not has_layout, split.first_stage_layers),
        "parallelism.last_stage_layers": (not has_layout, split.last_stage_layers),
        "parallelism.microbatch_group_size": (scenario.group_size, scenario.group_size),
        "parallelism.context": (has_context, split.context),
        "parallelism.context_communication": (has_context, split.context_communication),
        "parallelism.expert": (has_experts and split.expert > 1, split.expert),
        "parallelism.expert_tensor": (has_experts, split.expert_tensor),
        "recompute.strategy": (recompute.strategy != "none", recompute.strategy),
        "recompute.method": (is_full, recompute.method),
        "recompute.num_layers": (is_full, recompute.num_layers),
        "recompute.keep_microbatches": (
            isinstance(recompute.keep_microbatches, int),
            recompute.keep_microbatches,
        ),
        "memory.reshard_after_forward": (shards, bool(memory.reshard_after_forward)),
        "precision.compute": (True, "bf16" if precision.casts else precision.compute),
        "precision.fp8_recipe": (precision.compute == "fp8", precision.fp8_recipe),
        "precision.fp8_parameters": (precision.compute == "fp8", scenario.keeps_fp8_parameters),
        "software.cross_entropy_fusion": (
            scenario.facts.kernels.fused_cross_entropy,
            scenario.facts.kernels.cross_entropy_fusion,
        ),
        "overlap.merged_passes": (has_experts, scenario.wants_merged_passes),
        "overlap.delayed_weight_gradients": (has_experts, scenario.delays_weight_gradients),
        "overlap.shared_expert": (has_experts, overlap.shared_expert),
        "overlap.pipeline": (scenario.schedule_family.overlaps, scenario.overlaps_pipeline),
        "overlap.data_parallel": (not shards, scenario.overlaps_data_parallel),
        "overlap.parameter_gather": (not shards, gathers),
        "overlap.gradient_buckets": (isinstance(buckets, int), buckets),
        "overlap.align_gradient_reduction": (
            reduces and split.pipeline > 1,
            scenario.aligns_gradient_reduction,
        ),
        "overlap.align_parameter_gather": (
            gathers and split.interleave > 1,
            scenario.aligns_parameter_gather,
        ),
    }
    fields = values_of(scenario) | {name: value for name, (is_on, value) in needed.items() if is_on}
    return {name: value for name, value in fields.items() if needed.get(name, (True,))[0]}


def _model(scenario: Scenario) -> Arguments:
    model = scenario.model
    tensor, size = scenario.parallelism.tensor, model.vocab_size
    # Megatron-LM pads tokens to a multiple of this unit x tensor; NullTokenizer adds one.
    unit = math.gcd(size // tensor if size % tensor == 0 else size, _FEWEST_PADDING)
    arguments: Arguments = {
        "max_position_embeddings": model.seq_length,
        "vocab_size": size - 1,
        "make_vocab_size_divisible_by": unit,
    }
    if model.latent_attention:
        arguments["multi_latent_attention"] = True
    elif model.num_query_groups != model.num_attention_heads:
        arguments |= {"group_query_attention": True, "num_query_groups": model.num_query_groups}
    if model.attention_window:
        arguments["window_size"] = f"{model.attention_window - 1},0"
    if model.layer_pattern is not None:
        arguments |= {"is_hybrid_model": True, "spec": _SPEC.split()}
    return arguments


def _experts(scenario: Scenario) -> Arguments:
    experts = scenario.model.experts
    if experts is None:
        return {}
    dense, frequency = experts.first_dense_layers, experts.layer_frequency
    routed = scenario.model.num_layers - dense
    is_padded = (experts.capacity_factor or 0) >= 1
    layers = f"([0]*{dense}+[1]*{routed})" if dense else frequency if frequency > 1 else None
    return dict.fromkeys(GROUPS["fusions_of_experts"], True) | {
        "moe_pad_expert_input_to_capacity": True if is_padded else None,
        "moe_layer_freq": layers,
    }


def _layout(scenario: Scenario) -> Arguments:
    recompute, arguments = scenario.recompute, Arguments()
    if recompute.strategy == "selective":
        names = [theirs for theirs, ours in MODULE_NAMES.items() if ours in recompute.modules]
        arguments["recompute_modules"] = names
    return arguments


def _others(scenario: Scenario) -> Arguments:
    memory, precision, facts = scenario.memory, scenario.precision, scenario.facts
    arguments = Arguments()
    if scenario.model.experts:
        kind, backend = DISPATCHERS[scenario.expert_dispatch].megatron
        arguments["moe_token_dispatcher_type"] = kind
        arguments["moe_flex_dispatcher_backend"] = backend
    if memory.zero_stage > 1:
        name = "data_parallel_sharding_strategy"
        strategy = MAPPED[name].word_for(memory.zero_stage)
        arguments |= {"use_megatron_fsdp": True, name: strategy}
    instances = scenario.parallelism.data // (memory.shard_over or scenario.parallelism.data)
    if instances > 1:
        arguments["num_distributed_optimizer_instances"] = instances
    if facts.cuda_graph_modules:
        arguments["cuda_graph_impl"] = "transformer_engine"
        arguments["cuda_graph_modules"] = [*facts.cuda_graph_modules]
    compute, gradients = precision.compute, scenario.gradient_type
    if compute == "fp4":
        arguments |= {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"}
    if compute == "fp8":
        arguments["fp8_format"] = "hybrid"
        # Megatron-LM casts gathered weights to mxfp8 from the buffer of gradients.
        if scenario.keeps_fp8_parameters and precision.fp8_recipe == "mxfp8":
            arguments["reuse_grad_buf_for_mxfp8_param_ag"] = True
    if precision.first_layers_bf16 or precision.last_layers_bf16:
        arguments["first_last_layers_bf16"] = True
        arguments["num_layers_at_start_in_bf16"] = precision.first_layers_bf16
        arguments["num_layers_at_end_in_bf16"] = precision.last_layers_bf16
    if compute == "fp16" and gradients == "fp32":
        arguments["accumulate_allreduce_grads_in_fp32"] = True
    if gradients == "bf16":
        arguments["grad_reduce_in_bf16"] = True
    states = {"exp_avg_dtype": precision.exp_avg, "exp_avg_sq_dtype": precision.exp_avg_sq}
    if precision.main_parameters != "fp32" or {*states.values()} != {"fp32"}:
        arguments |= {"use_precision_aware_optimizer": True} | states
    return arguments


_COMBINED = {"model": _model, "experts": _experts, "layout": _layout, "others": _others}
