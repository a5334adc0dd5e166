"""Translate training configs of NeMo 1, whose model has words of its own."""

from __future__ import annotations

from typing import Any

from simtrain.errors import InputError
from simtrain.importing.nemo.config import Config, Field
from simtrain.importing.nemo.families import refuse_family
from simtrain.importing.nemo.translation import Translation

_WORDS = {
    "encoder_seq_length": "seq_length",
    "num_micro_batches_with_partial_activation_checkpoints": (
        "num_microbatches_with_partial_activation_checkpoints"
    ),
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "num_moe_experts": "num_experts",
    "bias": "add_bias_linear",
    "rotary_percentage": "rotary_percent",
    "bias_dropout_add_fusion": "bias_dropout_fusion",
    "ub_tp_comm_overlap": "tp_comm_overlap",
    "fp8_params": "fp8_param_gather",
    "moe_aux_loss_coeff": "moe_aux_loss_coeff",
}
"""Arguments of NeMo 1's words with another name."""
_NO_EFFECT = """
    activation activations_checkpoint_layers_per_pipeline activations_checkpoint_recurrent
    apex_transformer_log_level apply_query_key_layer_scaling async_save attention_dropout
    attention_type bias_activation_fusion cluster_type custom data
    dist_ckpt_assume_constant_structure dist_ckpt_format dist_ckpt_load_on_device
    dist_ckpt_load_strictness dist_ckpt_parallel_dist_opt dist_ckpt_parallel_load
    dist_ckpt_parallel_save dist_ckpt_parallel_save_within_dp dist_ckpt_torch_dist_multiproc
    do_layer_norm_weight_decay embedding_init_method_std ffn_dropout fp16_enabled
    fp8_amax_compute_algo fp8_amax_history_len fp8_e4m3 fp8_hybrid fp8_interval fp8_margin
    fp8_wgrad gc_interval grad_allreduce_chunk_size_mb grad_div_ar_fusion
    gradient_as_bucket_view headscale hidden_dropout hysteresis init_method_std
    layernorm_epsilon log_train_loss make_vocab_size_divisible_by max_position_embeddings
    mcore_gpt megatron_amp_O2 name native_amp_growth_interval native_amp_init_scale
    nccl_communicator_config_path normalization normalize_attention_scores nsys_profile
    num_layers_to_freeze num_query_groups_per_rank num_sanity_val_steps onnx_safe optim
    override_vocab_size persist_layer_norm position_embedding_type post_process pre_process
    precision rampup_batch_size reduce_amax resume_from_checkpoint resume_if_exists rotary_base
    scale_embedding_gradient scale_positional_embedding seed seq_len_interpolation_factor
    share_embeddings_and_output_weights sharp sync_batch_comm target tokenizer tp_comm_overlap
    transformer_block_type transformer_engine ub_tp_comm_overlap_cfg use_cpu_initialization
    use_emha use_flash_attention use_scaled_init_method use_te_rng_tracker vocab_size
"""
_WITHOUT_EFFECT = frozenset(_NO_EFFECT.split())
_ACTIVATIONS = {
    "swiglu": "swiglu",
    "fast-swiglu": "swiglu",
    "geglu": "quick_geglu",
    "fast-geglu": "quick_geglu",
    "squared-relu": "squared_relu",
    "gelu": "",
}
_NORMS = {
    "layernorm": "LayerNorm",
    "layernorm1p": "LayerNorm",
    "rmsnorm": "RMSNorm",
    "low_precision_layernorm": "LayerNorm",
}
_OPTIMIZERS = {
    "distributed_fused_adam": True,
    "mcore_distributed_optim": True,
    "fused_adam": False,
    "adamw": False,
    "adam": False,
}
_PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "32": ""}


def translated_first(config: Config, file: str) -> Translation:
    """Translate the fields of a training config (megatron_gpt_config.yaml).

    Raises:
        InputError: values that are not modelled, and models that are no GPT.
    """
    translation = Translation(file, "NeMo", config)
    for name in ("model.target", "exp_manager.name", "run.name", "name"):
        field = config.fields.get(name)
        if field and isinstance(field.value, str):
            refuse_family(field.value, field.place)
    translation.default("normalization", "LayerNorm")
    for spelled, name, field in config.section("model"):
        first = name.partition(".")[0]
        argument = _WORDS.get(name, name)
        if argument in translation.table and name not in _OWN:
            translation.add(argument, field, spelled)
        elif first not in _WITHOUT_EFFECT and (field.value or field.unknown):
            translation.add(spelled, field, spelled)
    _choices(translation, config)
    _optimizer(translation, config)
    _precision(translation, config)
    _length_and_vocabulary(translation, config)
    return translation


_OWN = {"optim", "data", "tokenizer", "fp8", "normalization", "activation", "use_flash_attention"}
"""Words that functions read."""


def _choices(translation: Translation, config: Config) -> None:
    """Set the activation, the norm, tied embeddings and the fused activation."""
    if field := config.fields.get("model.activation"):
        flag = _one_of(_ACTIVATIONS, field, "model.activation")
        for each in ("swiglu", "quick_geglu", "squared_relu"):
            translation.add(each, field, "model.activation", flag == each)
    if field := config.fields.get("model.normalization"):
        norm = _one_of(_NORMS, field, "model.normalization")
        translation.add("normalization", field, "model.normalization", norm)
    name = "model.share_embeddings_and_output_weights"
    if (field := config.fields.get(name)) and isinstance(field.value, bool):
        translation.add("untie_embeddings_and_output_weights", field, name, not field.value)
    translation.activation_fusion("model")
    translation.query_groups()
    if config.value("model.mcore_gpt") is False:
        translation.notes.append("model.mcore_gpt false: NeMo's own layers, with other kernels")


def _one_of(words: dict[str, str], field: Field, name: str) -> str:
    value = str(field.value)
    if value not in words:
        message = f"{name} is {value}, which is not modelled"
        raise InputError.of("E872", message, field.place, f"write one of {', '.join(words)}")
    return words[value]


def _optimizer(translation: Translation, config: Config) -> None:
    """Set whether optimizer states are sharded, and the overlap of their collectives."""
    name = "model.optim.name"
    field = config.fields.get(name)
    kind = str(field.value) if field else "fused_adam"
    is_distributed = _OPTIMIZERS.get(kind, False)
    if field:
        translation.add("use_distributed_optimizer", field, name, is_distributed)
        if kind not in _OPTIMIZERS:
            translation.add("optimizer", field, name)
    words = {
        "overlap_grad_sync": "overlap_grad_reduce",
        "overlap_param_sync": "overlap_param_gather",
    }
    for word, argument in words.items():
        spelled = f"model.optim.{word}"
        if (flag := config.fields.get(spelled)) and isinstance(flag.value, bool):
            translation.add(argument, flag, spelled)
    interleaves = config.value("model.virtual_pipeline_model_parallel_size")
    translation.default(
        "overlap_p2p_comm", config.value("model.overlap_p2p_comm", bool(interleaves))
    )
    translation.default("align_param_gather", bool(config.value("model.optim.align_param_gather")))


def _precision(translation: Translation, config: Config) -> None:
    """Set dtypes from the trainer's precision, and fp8 from the model."""
    name = "trainer.precision" if "trainer.precision" in config.fields else "model.precision"
    field = config.fields.get(name)
    dtype = ""
    if field and (field.value is not None):
        dtype = _one_of(_PRECISIONS, field, name)
        if dtype:
            translation.add(dtype, field, name, True)
    if (fp8 := config.fields.get("model.fp8")) and fp8.value is True:
        hybrid = config.value("model.fp8_hybrid")
        translation.add("fp8", fp8, "model.fp8", "hybrid" if hybrid else "e4m3")
    elif fp8:
        translation.drop("fp8")
    spelled = "model.optim.grad_sync_dtype"
    reduced: Any = config.value(spelled)
    if reduced and (dtype_field := config.fields[spelled]):
        is_16 = str(reduced) in ("bf16", "fp16", "bfloat16")
        translation.add("grad_reduce_in_bf16", dtype_field, spelled, is_16 and dtype == "bf16")
    translation.default("accumulate_allreduce_grads_in_fp32", dtype != "fp16")


def _length_and_vocabulary(translation: Translation, config: Config) -> None:
    """Set the sequence length of the data, and the tokens of GPT-2's tokenizer or of the config."""
    name = "model.data.seq_length"
    if "seq_length" not in translation.settings and (field := config.fields.get(name)):
        translation.add("seq_length", field, name)
    name = "model.make_vocab_size_divisible_by"
    if field := config.fields.get(name):
        translation.add("make_vocab_size_divisible_by", field, name)
    name = "model.tokenizer.type"
    kind: Any = config.value(name)
    library = config.value("model.tokenizer.library")
    if kind and library == "megatron":
        translation.add("tokenizer_type", config.fields[name], name)
    elif kind and library == "huggingface":
        translation.add("tokenizer_type", config.fields[name], name, "HuggingFaceTokenizer")
        translation.add("tokenizer_model", config.fields[name], name)
    translation.vocabulary("model")
    translation.default("tokenizer_type", "the config's tokenizer")
