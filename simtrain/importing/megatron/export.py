"""Write a scenario as a script that starts Megatron-LM, whose arguments are those of the import."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from simtrain.base.importer import ImportRequest
from simtrain.errors import InputError
from simtrain.importing.lost_fields import (
    comments_of,
    lost_fields,
    refuse_adapters,
    refuse_splits,
)
from simtrain.importing.megatron.arguments import MAPPED
from simtrain.importing.megatron.memory import MODULE_NAMES
from simtrain.importing.megatron.scenario_draft import megatron_draft
from simtrain.scenario import Scenario
from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.scenario.offload_section import OFFLOAD_MODULES

_FEWEST_PADDING = 128
_TO_RUN = "--tokenizer-type NullTokenizer --mock-data --train-iters 20 --lr 1.0e-4"
"""What pretrain_gpt.py needs besides, without effect on an iteration: to be replaced."""
_RANKS_PER_NODE = 8
_NOT_OF_A_MODEL = (
    "max-position-embeddings",
    "vocab-size",
    "make-vocab-size-divisible-by",
    "moe-token-dispatcher-type",
    "attention-backend",
)
"""Arguments that depend on more than the model."""


def megatron_script(scenario: Scenario) -> str:
    """Return a script of bash with the arguments, and comments on what they cannot say.

    Raises:
        InputError: Megatron-LM cannot run the scenario (E882).
    """
    refuse_adapters(scenario, "Megatron-LM")
    refuse_splits(scenario, "Megatron-LM")
    _refuse_exchange(scenario)
    arguments = [*_arguments(scenario)]
    ranks = math.gcd(scenario.num_gpus, _RANKS_PER_NODE)
    launch = f"torchrun --nproc-per-node {ranks} --nnodes {scenario.num_gpus // ranks}"
    name = f" of {scenario.name}" if scenario.name else ""
    comments = comments_of(differences(scenario, arguments), "Arguments")
    return "\n".join(
        [
            "#!/bin/bash",
            f"# Megatron-LM's arguments{name}, with data of no meaning: replace the last line.",
            *comments,
            " \\\n  ".join([f"{launch} pretrain_gpt.py", *arguments, _TO_RUN]),
            "",
        ]
    )


def _refuse_exchange(scenario: Scenario) -> None:
    """Refuse an exchange of context parallelism that Megatron-LM does not have."""
    split, known = scenario.parallelism, MAPPED["cp_comm_type"].values.values()
    if split.context > 1 and split.context_communication not in known:
        message = (
            f"parallelism.context_communication is {split.context_communication}, which "
            "Megatron-LM does not have"
        )
        fix = "--set parallelism.context_communication=p2p --set attention_backend=fused"
        raise InputError.of("E882", message, fix=f"add {fix}")


def model_arguments(fields: dict[str, Any]) -> str:
    """Return the arguments of a model, for the section `model` of a scenario."""
    data = {"model": fields, "parallelism": {}, "batch": {"micro": 1, "global": 1}}
    scenario = Scenario.model_validate(data | {"attention_backend": "fused"})
    words = " ".join(word for write in _OF_A_MODEL for word in write(scenario))
    for name in _NOT_OF_A_MODEL:
        words = re.sub(rf" --{name} [^-]\S*(?= |$)", "", words)
    return f"{words} --padded-vocab-size {scenario.model.vocab_size}"


def differences(scenario: Scenario, arguments: list[str]) -> list[str]:
    """Import arguments again, and say which fields then differ from the scenario's."""
    overrides = [f"parallelism.data={scenario.parallelism.data}", f"cluster={scenario.cluster}"]
    request = ImportRequest(" ".join([*arguments, _TO_RUN]), overrides=overrides)
    again, _ = megatron_draft(request).finished()
    return lost_fields(scenario, again)


def _arguments(scenario: Scenario) -> Iterator[str]:
    for write in (
        _model,
        _hybrid,
        _attention,
        _experts,
        _parallelism,
        _recompute,
        _offload,
        _memory,
        _kernels,
        _precision,
        _overlap,
    ):
        yield from (argument for argument in write(scenario) if argument)


def shared_arguments(scenario: Scenario) -> list[str]:
    """Return the arguments of model, parallelism, batch and recompute, which forks have too."""
    sections = _model, _hybrid, _attention, _parallelism, _recompute
    return [argument for write in sections for argument in write(scenario) if argument]


def _flag(name: str, is_on: object) -> str:
    return f"--{name}" if is_on else ""


def _word(name: str, value: Any) -> str:
    """Return an argument with the source's word for our value."""
    words = {ours: theirs for theirs, ours in reversed([*MAPPED[name].values.items()])}
    return f"--{name.replace('_', '-')} {words[value]}" if value in words else ""


def _model(scenario: Scenario) -> Iterator[str]:
    model = scenario.model
    yield f"--num-layers {model.num_layers} --hidden-size {model.hidden_size}"
    if model.has_dense_layers:
        yield f"--ffn-hidden-size {model.ffn_hidden_size}"
    yield f"--seq-length {model.seq_length} --max-position-embeddings {model.seq_length}"
    yield _vocabulary(model.vocab_size, scenario.parallelism.tensor)
    yield _flag("untie-embeddings-and-output-weights", not model.tied_embeddings)
    yield _flag("swiglu", model.activation == "swiglu")
    yield _flag("squared-relu", model.activation == "squared_relu")
    yield _word("normalization", model.normalization)
    yield _word("position_embedding_type", model.position_embedding)
    yield _flag("disable-bias-linear", not model.biases)
    yield _flag("add-qkv-bias", model.qkv_biases and not model.biases)
    yield f"--hidden-dropout {model.hidden_dropout} --attention-dropout {model.attention_dropout}"
    if model.mtp_num_layers:
        yield f"--mtp-num-layers {model.mtp_num_layers}"


def _vocabulary(size: int, tensor: int) -> str:
    """Return tokens that Megatron-LM pads to a size; NullTokenizer adds one."""
    unit = math.gcd(size // tensor if size % tensor == 0 else size, _FEWEST_PADDING)
    return f"--vocab-size {size - 1} --make-vocab-size-divisible-by {unit}"


def _hybrid(scenario: Scenario) -> Iterator[str]:
    model, mamba = scenario.model, scenario.model.mamba
    if model.layer_pattern is None:
        return
    yield f"--is-hybrid-model --hybrid-override-pattern '{model.layer_pattern}'"
    yield "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
    if mamba is not None:
        if mamba.num_heads is not None:
            yield f"--mamba-num-heads {mamba.num_heads}"
        yield f"--mamba-head-dim {mamba.head_dim} --mamba-state-dim {mamba.state_dim}"
        yield f"--mamba-num-groups {mamba.num_groups}"


def _attention(scenario: Scenario) -> Iterator[str]:
    model = scenario.model
    yield f"--num-attention-heads {model.num_attention_heads}"
    if latent := model.latent_attention:
        yield "--multi-latent-attention"
        for name, size in latent:
            yield f"--{name.replace('_', '-')} {size}" if size is not None else ""
    else:
        if model.num_query_groups != model.num_attention_heads:
            yield f"--group-query-attention --num-query-groups {model.num_query_groups}"
        if model.kv_channels * model.num_attention_heads != model.hidden_size:
            yield f"--kv-channels {model.kv_channels}"
    yield _flag("qk-layernorm", model.qk_norm)
    if model.attention_window:
        yield f"--window-size {model.attention_window - 1},0"
        if model.full_attention_every:
            yield f"--window-attn-skip-freq {model.full_attention_every}"
    yield _word("attention_backend", scenario.attention_backend)


def _experts(scenario: Scenario) -> Iterator[str]:
    experts, split = scenario.model.experts, scenario.parallelism
    if experts is None:
        return
    yield f"--num-experts {experts.num} --moe-router-topk {experts.top_k}"
    yield f"--moe-ffn-hidden-size {experts.ffn_hidden_size}"
    if shared := experts.shared_ffn_hidden_size:
        yield f"--moe-shared-expert-intermediate-size {shared}"
    if dense := experts.first_dense_layers:
        routed = scenario.model.num_layers - dense
        yield f"--moe-layer-freq '([0]*{dense}+[1]*{routed})'"
    elif experts.layer_frequency > 1:
        yield f"--moe-layer-freq {experts.layer_frequency}"
    yield "--moe-grouped-gemm --moe-permute-fusion --moe-router-fusion"
    if experts.capacity_factor is not None:
        yield f"--moe-expert-capacity-factor {experts.capacity_factor}"
        yield _flag("moe-pad-expert-input-to-capacity", experts.capacity_factor >= 1)
    yield _word("moe_router_dtype", experts.router_dtype)
    yield _word("moe_router_score_function", experts.router_score)
    yield _flag("moe-router-enable-expert-bias", experts.router_bias)
    if experts.router_groups:
        yield f"--moe-router-num-groups {experts.router_groups}"
        yield f"--moe-router-group-topk {experts.router_group_top_k}"
    kind, backend = DISPATCHERS[scenario.expert_dispatch].megatron
    yield f"--moe-token-dispatcher-type {kind}"
    if backend:
        yield f"--moe-flex-dispatcher-backend {backend}"
    yield f"--expert-model-parallel-size {split.expert}" if split.expert > 1 else ""
    if split.expert_tensor is not None:
        yield f"--expert-tensor-parallel-size {split.expert_tensor}"
    overlap = scenario.overlap
    yield _flag("moe-shared-expert-overlap", overlap.shared_expert)
    yield _flag("overlap-moe-expert-parallel-comm", scenario.wants_merged_passes)
    yield _flag("delay-wgrad-compute", scenario.delays_weight_gradients)


def _parallelism(scenario: Scenario) -> Iterator[str]:
    split, batch = scenario.parallelism, scenario.batch
    yield f"--tensor-model-parallel-size {split.tensor}"
    yield _flag("sequence-parallel", split.sequence_parallel)
    yield f"--pipeline-model-parallel-size {split.pipeline}"
    if split.layout is not None:
        yield f"--pipeline-model-parallel-layout '{split.layout}'"
    else:
        if split.interleave > 1:
            yield f"--num-virtual-stages-per-pipeline-rank {split.interleave}"
        for end in ("first", "last"):
            if layers := getattr(split, f"{end}_stage_layers"):
                yield f"--decoder-{end}-pipeline-num-layers {layers}"
    if size := scenario.group_size:
        yield f"--microbatch-group-size-per-virtual-pipeline-stage {size}"
    if split.context > 1:
        yield f"--context-parallel-size {split.context}"
        yield _word("cp_comm_type", split.context_communication)
        if near := split.context_a2a:
            yield f"--hierarchical-context-parallel-sizes {near} {split.context // near}"
    yield _flag("use-tp-pp-dp-mapping", scenario.placement.order == "tp-cp-ep-pp-dp")
    yield f"--micro-batch-size {batch.micro} --global-batch-size {batch.global_}"


def _recompute(scenario: Scenario) -> Iterator[str]:
    recompute = scenario.recompute
    if recompute.strategy != "none":
        yield _word("recompute_granularity", recompute.strategy)
    if recompute.strategy == "selective":
        modules = [theirs for theirs, ours in MODULE_NAMES.items() if ours in recompute.modules]
        yield f"--recompute-modules {' '.join(modules)}"
    if recompute.strategy == "full":
        yield _word("recompute_method", recompute.method)
        yield f"--recompute-num-layers {recompute.num_layers}"
        yield _flag("distribute-saved-activations", recompute.distribute)
    if isinstance(kept := recompute.keep_microbatches, int) and kept:
        yield f"--num-microbatches-with-partial-activation-checkpoints {kept}"


def _offload(scenario: Scenario) -> Iterator[str]:
    offload = scenario.offload
    modules = [module for module in offload.modules if module in OFFLOAD_MODULES]
    if offload.unit == "layer" and modules:
        yield f"--fine-grained-activation-offloading --offload-modules {' '.join(modules)}"
    elif offload.unit == "layer" and not offload.modules:
        layers = offload.layers or scenario.model.num_layers - 1
        yield f"--cpu-offloading-num-layers {layers}"


def _memory(scenario: Scenario) -> Iterator[str]:
    memory = scenario.memory
    if memory.zero_stage > 1:
        yield "--use-megatron-fsdp"
        yield _word("data_parallel_sharding_strategy", memory.zero_stage)
        yield _flag("no-torch-fsdp2-reshard-after-forward", not memory.reshard_after_forward)
    elif memory.zero_stage:
        yield "--use-distributed-optimizer"
    if memory.shard_over:
        instances = scenario.parallelism.data // memory.shard_over
        yield f"--num-distributed-optimizer-instances {instances}" if instances > 1 else ""
    yield _flag("optimizer-cpu-offload", memory.offload_optimizer)


def _kernels(scenario: Scenario) -> Iterator[str]:
    facts, model = scenario.facts, scenario.model
    kernels, is_gated = facts.kernels, model.activation == "swiglu"
    yield _flag("no-masked-softmax-fusion", not kernels.fused_softmax)
    yield _flag("no-rope-fusion", not kernels.fused_rotary)
    activation = "no-bias-swiglu-fusion" if is_gated else "no-bias-gelu-fusion"
    yield _flag(activation, not kernels.fused_activation)
    yield _flag("no-bias-dropout-fusion", not kernels.fused_dropout_add)
    yield _flag("no-gradient-accumulation-fusion", not kernels.fused_gradient_accumulation)
    if kernels.fused_cross_entropy:
        yield "--cross-entropy-loss-fusion"
        yield _word("cross_entropy_fusion_impl", kernels.cross_entropy_fusion)
    yield _flag("enable-cuda-graph", facts.cuda_graphs)
    if facts.cuda_graph_modules:
        modules = " ".join(facts.cuda_graph_modules)
        yield f"--cuda-graph-impl transformer_engine --cuda-graph-modules {modules}"


def _precision(scenario: Scenario) -> Iterator[str]:
    precision = scenario.precision
    compute = precision.compute
    yield _flag("fp16", compute == "fp16")
    yield _flag("bf16", compute == "bf16" or precision.casts)
    if compute == "fp4":
        yield "--fp4-format e2m1 --fp4-recipe nvfp4"
    if precision.first_layers_bf16 or precision.last_layers_bf16:
        yield "--first-last-layers-bf16"
        yield f"--num-layers-at-start-in-bf16 {precision.first_layers_bf16}"
        yield f"--num-layers-at-end-in-bf16 {precision.last_layers_bf16}"
    if compute == "fp8":
        yield "--fp8-format hybrid"
        yield _word("fp8_recipe", precision.fp8_recipe)
        keeps_fp8 = scenario.keeps_fp8_parameters
        yield _flag("fp8-param-gather", keeps_fp8)
        # Megatron-LM casts gathered weights to mxfp8 from the buffer of gradients.
        in_mxfp8 = keeps_fp8 and precision.fp8_recipe == "mxfp8"
        yield _flag("reuse-grad-buf-for-mxfp8-param-ag", in_mxfp8)
    in_fp32 = scenario.gradient_type == "fp32"
    yield _flag("accumulate-allreduce-grads-in-fp32", compute == "fp16" and in_fp32)
    yield _flag("grad-reduce-in-bf16", scenario.gradient_type == "bf16")
    states = {"exp-avg-dtype": precision.exp_avg, "exp-avg-sq-dtype": precision.exp_avg_sq}
    if precision.main_parameters != "fp32" or {*states.values()} != {"fp32"}:
        yield "--use-precision-aware-optimizer"
        for name, dtype in states.items():
            yield f"--{name} {dtype}"


def _overlap(scenario: Scenario) -> Iterator[str]:
    overlap = scenario.overlap
    yield _flag("tp-comm-overlap", overlap.userbuffers)
    blocks = scenario.schedule_family.overlaps and not scenario.overlaps_pipeline
    yield _flag("no-overlap-p2p-communication", blocks)
    if overlap.deferred_output_gradients:
        yield "--defer-embedding-wgrad-compute"
        yield f"--wgrad-deferral-limit {overlap.deferred_output_gradients}"
    if scenario.memory.zero_stage < 2:
        yield _flag("overlap-grad-reduce", scenario.overlaps_data_parallel)
        yield _flag("overlap-param-gather", scenario.overlaps_parameter_gather)
    if re.fullmatch(r"\d+", str(overlap.gradient_buckets)):
        yield f"--ddp-bucket-size {overlap.gradient_buckets}"
    reduces_alone = scenario.reduces_in_buckets and not scenario.aligns_gradient_reduction
    yield _flag("no-align-grad-reduce", reduces_alone and scenario.parallelism.pipeline > 1)
    gathers_alone = scenario.overlaps_parameter_gather and not scenario.aligns_parameter_gather
    yield _flag("no-align-param-gather", gathers_alone and scenario.parallelism.interleave > 1)


_OF_A_MODEL = _model, _hybrid, _attention, _experts
