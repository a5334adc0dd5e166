"""Translate training configs of NeMo 1, whose model has words of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simtrain.errors import InputError
from simtrain.importing.nemo.config import Config, Field
from simtrain.importing.nemo.families import refuse_family
from simtrain.importing.nemo.translation import Translation
from simtrain.importing.table import WordsFile

_FILE = WordsFile(Path(__file__).with_suffix(".toml"))
_RENAMED = _FILE.section("renamed")
"""Arguments of NeMo 1's words with another name."""
_WITHOUT_EFFECT = _FILE.names("without_effect")
_OPTIMIZERS = _FILE.section("optimizers")


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
        argument = _RENAMED.get(name, name)
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
        flag = _one_of("activations", field, "model.activation")
        for each in ("swiglu", "quick_geglu", "squared_relu"):
            translation.add(each, field, "model.activation", flag == each)
    if field := config.fields.get("model.normalization"):
        norm = _one_of("norms", field, "model.normalization")
        translation.add("normalization", field, "model.normalization", norm)
    name = "model.share_embeddings_and_output_weights"
    if (field := config.fields.get(name)) and isinstance(field.value, bool):
        translation.add("untie_embeddings_and_output_weights", field, name, not field.value)
    translation.activation_fusion("model")
    translation.query_groups()
    if config.value("model.mcore_gpt") is False:
        translation.notes.append("model.mcore_gpt false: NeMo's own layers, with other kernels")


def _one_of(section: str, field: Field, name: str) -> str:
    """Return our value of a field, by a section of the file."""
    words, value = _FILE.section(section), str(field.value)
    if value not in words:
        message = f"{name} is {value}, which is not modelled"
        raise InputError.of("E872", message, field.place, f"write one of {', '.join(words)}")
    return str(words[value])


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
        dtype = _one_of("precisions", field, name)
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
