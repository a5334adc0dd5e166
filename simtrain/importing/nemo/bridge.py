"""Import configs of Megatron-Bridge: a printed ConfigContainer, or a recipe in Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simtrain.base.file_kinds import MOST_BYTES_OF_LOG, text_of_kind
from simtrain.base.importer import ImportRequest
from simtrain.base.strict_yaml import parse_document
from simtrain.errors import InputError, Location
from simtrain.importing.draft import Draft
from simtrain.importing.gpus import machine_of_config, machine_of_log
from simtrain.importing.importers import BRIDGE_PYTHON, MegatronBridge
from simtrain.importing.megatron.scenario_draft import draft_of
from simtrain.importing.nemo.config import (
    TARGET,
    Config,
    Field,
    config_of_document,
    config_of_object,
)
from simtrain.importing.nemo.families import refuse_family
from simtrain.importing.nemo.fine_tuning import note_packing, set_adapters, translate_adapters
from simtrain.importing.nemo.translation import PRINT, Translation
from simtrain.importing.nemo.words import WORDS
from simtrain.importing.published_models import known_name
from simtrain.importing.python_config import Built, PythonSource

TOOL = "Megatron-Bridge"
_DDP = {
    "ddp.grad_reduce_in_fp32": True,
    "ddp.overlap_grad_reduce": True,
    "ddp.overlap_param_gather": True,
    "ddp.use_distributed_optimizer": True,
    "mixed_precision": "bf16_mixed",
}
_COMMON: dict[str, dict[str, Any]] = {
    "_pretrain_common": _DDP
    | {
        "train.global_batch_size": 32,
        "train.micro_batch_size": 2,
        "dataset.seq_length": 4096,
    },
    "_sft_common": _DDP
    | {
        "train.global_batch_size": 128,
        "train.micro_batch_size": 1,
        "dataset.seq_length": 2048,
        "ddp.overlap_grad_reduce": False,
        "ddp.overlap_param_gather": False,
    },
}
_COMMON["_peft_common"] = _COMMON["_sft_common"] | {"peft": "LoRA"}
"""What the functions that recipes start with set (recipes/common.py of Megatron-Bridge)."""
_YAML = re.compile(rf"^{TARGET}: .*ConfigContainer\s*$", re.MULTILINE)
_PROVIDERS = ("from_hf_pretrained", "from_hf_config", "from_auto_config")


def bridge_draft(request: ImportRequest) -> Draft:
    """Return the draft of a scenario from a config of Megatron-Bridge.

    Raises:
        InputError: unreadable files, unknown fields and models, and values and combinations that
            Megatron-Core refuses.
    """
    file, config = request.file, request.config
    text = text_of_kind(Path(file), *MegatronBridge.kinds, most_bytes=MOST_BYTES_OF_LOG)
    is_python = file.endswith(".py") or BRIDGE_PYTHON.sign_in(text)
    fields = _of_python(text, file, config or None) if is_python else _of_yaml(text, file)
    translation = _translated(fields, file)
    draft = draft_of(translation.source(), request)
    lines = () if is_python else text.split("\n")
    draft.machine = machine_of_config(config) or machine_of_log(lines, file)
    set_adapters(draft)
    note_packing(draft, translation.config)
    return draft


def _of_yaml(text: str, file: str) -> Config:
    """Read a printed config, which a log may have among other lines."""
    if sign := _YAML.search(text):
        before = text[: sign.start()]
        body = re.split(r"^-{5,}", text[sign.start() :], maxsplit=1, flags=re.MULTILINE)[0]
        text = "\n" * before.count("\n") + body  # which keeps line numbers
    return config_of_document(parse_document(text, file))


def _of_python(text: str, file: str, config: str | None) -> Config:
    source = PythonSource(text, file)
    _, job = source.config(config, _is_recipe)
    fields = config_of_object(job, source)
    return fields.with_defaults(_COMMON.get(job.symbol.last, {}))


def _is_recipe(value: Built) -> bool:
    is_start = value.symbol.last in _COMMON or value.symbol.last == "ConfigContainer"
    return is_start and "model" in value.fields


def _translated(config: Config, file: str) -> Translation:
    """Translate a config; later sections override earlier ones, as in Megatron-Bridge."""
    translation = Translation(file, TOOL, config)
    translation.refuse_unknown(*_SECTIONS)
    _set_model(translation, config, file)
    translation.copy("model")
    for part in ("activation", "activation_fusion", "layout", "attention_backend"):
        getattr(translation, part)("model")
    translation.query_groups()
    translation.copy("train", "optimizer", "ddp", "dist")
    if config.value("ddp.use_megatron_fsdp") or config.value("dist.use_megatron_fsdp"):
        translation.default("use_megatron_fsdp", True)
    else:
        translation.drop("data_parallel_sharding_strategy", "use_megatron_fsdp")
    precision = translation.mixed_precision("mixed_precision")
    names = ("mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32")
    translation.reduction(precision, *names)
    has_overlap = any(True for _ in config.section("comm_overlap")) or bool(
        config.value("comm_overlap")
    )
    translation.overlap("comm_overlap", has_overlap)
    _set_length(translation, config)
    translation.vocabulary("model", "tokenizer.vocab_size")
    translation.default("tokenizer_type", "the config's tokenizer")
    for name, value in _DEFAULTS.items():
        translation.default(name, value)
    translate_adapters(translation)
    _note_others(translation, config)
    return translation


_DEFAULTS = {
    "add_bias_linear": True,
    "moe_token_dispatcher_type": "alltoall",
    "cross_entropy_loss_fusion": True,
    "cross_entropy_fusion_impl": "native",
    "micro_batch_size": 1,
}
"""Defaults of Megatron-Bridge that are not Megatron-LM's."""
_SECTIONS = "model", "train", "optimizer", "ddp", "dist", "mixed_precision", "comm_overlap", "peft"
_WITHOUT_EFFECT = WORDS.names("sections_without_effect")


def _note_others(translation: Translation, config: Config) -> None:
    """Pass on the fields of sections that simtrain does not know, which are then an error."""
    for name, field in config.fields.items():
        section = name.partition(".")[0]
        is_known = section in (TARGET, *_SECTIONS, *_WITHOUT_EFFECT)
        if not is_known and (field.value or field.unknown):
            last = name.removesuffix("()")
            translation.add(last if last in translation.table else name, field, name)


def _set_model(translation: Translation, config: Config, file: str) -> None:
    """Set the arguments of the model that a recipe names, and refuse other kinds of models."""
    target = str(config.value(f"model.{TARGET}", ""))
    place = next((f.place for n, f in config.fields.items() if n.startswith("model.")), None)
    if provider := _HYBRID_PROVIDER.search(target):
        _set_hybrid(translation, Field(target, place), provider[1])
    else:
        refuse_family(target, place)
    base = "model.receiver" if target == "to_megatron_provider" else "model"
    if config.target(base) in _PROVIDERS:
        field = config.fields.get(f"{base}.0") or config.fields.get(f"{base}.path")
        if field is None or not isinstance(field.value, str):
            message = "the name of the model is not in the file"
            place = config.fields[f"{base}.{TARGET}"].place or Location(file)
            raise InputError.of("E874", message, place, f"import the printed config: {PRINT[TOOL]}")
        if known_name(field.value) is None:
            refuse_family(field.value, field.place)
        translation.published(field.value, field)
    for name in [*config.fields]:
        if name.startswith("model.receiver.") or name in ("model.0", "model.path"):
            del config.fields[name]


_HYBRID_PROVIDER = re.compile(r"(?:Mamba|NemotronH)Model(?:Provider(\d+B)?|\d+BProvider)$")
"""Classes of models/mamba/mamba_provider.py and models/nemotronh/nemotron_h_provider.py."""
_OF_HYBRID = {
    "is_hybrid_model": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "position_embedding_type": "none",
    "untie_embeddings_and_output_weights": True,
}
"""Defaults of these classes that are not Megatron-LM's."""


def _set_hybrid(translation: Translation, field: Field, size: str | None) -> None:
    """Set the arguments of a class for hybrid models; its name may have the size of Nemotron-H."""
    if size:
        translation.published(f"nvidia/Nemotron-H-{size}-Base-8K", field)
    for name, value in _OF_HYBRID.items():
        translation.default(name, value)


def _set_length(translation: Translation, config: Config) -> None:
    """Set the length of sequences, of the model or of the data."""
    for name in ("model.seq_length", "dataset.seq_length", "dataset.sequence_length"):
        field = config.fields.get(name)
        if field and (field.value is not None or field.unknown):
            translation.refuse_unknown(name.partition(".")[0])
            translation.add("seq_length", field, name)
            return
