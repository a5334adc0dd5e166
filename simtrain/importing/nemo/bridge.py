"""Import configs of Megatron-Bridge: a printed ConfigContainer, or a recipe in Python."""

from __future__ import annotations

import re
from pathlib import Path

from simtrain.base.importer import ImportRequest
from simtrain.base.input_file import MOST_BYTES_OF_LOG, text_of_kind
from simtrain.base.strict_yaml import parse_document
from simtrain.errors import InputError, Location
from simtrain.importing.draft import Draft
from simtrain.importing.gpus import machine_of_config, machine_of_log
from simtrain.importing.importers import MegatronBridge
from simtrain.importing.nemo.config import (
    TARGET,
    WORDS,
    Config,
    Field,
    config_of_document,
    config_of_object,
    refuse_family,
)
from simtrain.importing.nemo.translation import PRINT, Translation
from simtrain.importing.published_models import known_name
from simtrain.importing.python_config import Built, PythonSource

_TOOL = "Megatron-Bridge"
_COMMON = WORDS.section("common")
_YAML = re.compile(rf"^{TARGET}: .*ConfigContainer\s*$", re.MULTILINE)
_PROVIDERS = ("from_hf_pretrained", "from_hf_config", "from_auto_config")
_HYBRID_PROVIDER = re.compile(r"(?:Mamba|NemotronH)Model(?:Provider(\d+B)?|\d+BProvider)$")
"""Classes of models/mamba/mamba_provider.py and models/nemotronh/nemotron_h_provider.py."""
_SECTIONS = "model", "train", "optimizer", "ddp", "dist", "mixed_precision", "comm_overlap", "peft"


def bridge_draft(request: ImportRequest) -> Draft:
    """Return the draft of a scenario from a config of Megatron-Bridge.

    Raises:
        InputError: unreadable files, unknown fields and models, and values and combinations that
            Megatron-Core refuses.
    """
    file = request.file
    text = text_of_kind(Path(file), *MegatronBridge.kinds, most_bytes=MOST_BYTES_OF_LOG)
    lines = list[str]()
    if file.endswith(".py") or MegatronBridge.kinds[1].sign_in(text):
        source = PythonSource(text, file)
        _, job = source.config(request.config or None, _is_recipe)
        config = config_of_object(job, source)
        config = config.with_defaults(_COMMON.get(job.symbol.last, {}))
    else:
        lines = text.split("\n")
        if sign := _YAML.search(text):  # which a log may have among other lines
            body = re.split(r"^-{5,}", text[sign.start() :], maxsplit=1, flags=re.MULTILINE)[0]
            # Empty lines keep its line numbers.
            text = "\n" * text.count("\n", 0, sign.start()) + body
        config = config_of_document(parse_document(text, file))
    draft = _translated(config, file).draft(request)
    draft.machine = machine_of_config(request.config) or machine_of_log(lines, file)
    return draft


def _is_recipe(value: Built) -> bool:
    is_start = value.symbol.last in _COMMON or value.symbol.last == "ConfigContainer"
    return is_start and "model" in value.fields


def _translated(config: Config, file: str) -> Translation:
    """Translate a config; later sections override earlier ones, as in Megatron-Bridge."""
    translation = Translation(file, _TOOL, config)
    translation.refuse_unknown(*_SECTIONS)
    _set_model(translation, config, file)
    translation.model("model")
    translation.copy("train", "optimizer", "ddp", "dist")
    if config.value("ddp.use_megatron_fsdp") or config.value("dist.use_megatron_fsdp"):
        translation.default("use_megatron_fsdp", True)
    else:
        translation.drop("data_parallel_sharding_strategy", "use_megatron_fsdp")
    precision = translation.mixed_precision("mixed_precision")
    names = ("mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32")
    translation.reduction(precision, *names)
    has_overlap = any(True for _ in config.section("comm_overlap"))
    translation.overlap("comm_overlap", has_overlap or bool(config.value("comm_overlap")))
    # The length of sequences is that of the model or of the data.
    for name in ("model.seq_length", "dataset.seq_length", "dataset.sequence_length"):
        field = config.fields.get(name)
        if field and (field.value is not None or field.unknown):
            translation.refuse_unknown(name.partition(".")[0])
            translation.add("seq_length", field, name)
            break
    translation.vocabulary("model", "tokenizer.vocab_size")
    translation.default("tokenizer_type", "the config's tokenizer")
    for name, value in WORDS.section("defaults.bridge").items():
        translation.default(name, value)
    translation.adapters()
    # Fields of sections that simtrain does not know are an error.
    known = {TARGET, *_SECTIONS, *WORDS.names("sections_without_effect")}
    for name, field in config.fields.items():
        if name.partition(".")[0] not in known and (field.value or field.unknown):
            last = name.removesuffix("()")
            translation.add(last if last in translation.table else name, field, name)
    return translation


def _set_model(translation: Translation, config: Config, file: str) -> None:
    """Set the arguments of the model that a recipe names, and refuse other kinds of models."""
    target = str(config.value(f"model.{TARGET}", ""))
    place = next((f.place for n, f in config.fields.items() if n.startswith("model.")), None)
    if provider := _HYBRID_PROVIDER.search(target):
        if size := provider[1]:
            field = Field(target, place)
            translation.published(f"nvidia/Nemotron-H-{size}-Base-8K", field)
        for name, value in WORDS.section("defaults.hybrid").items():
            translation.default(name, value)
    else:
        refuse_family(target, place)
    base = "model.receiver" if target == "to_megatron_provider" else "model"
    if config.target(base) in _PROVIDERS:
        named = config.fields.get(f"{base}.0") or config.fields.get(f"{base}.path")
        if named is None or not isinstance(named.value, str):
            message = "the name of the model is not in the file"
            place = config.fields[f"{base}.{TARGET}"].place or Location(file)
            fix = f"import the printed config: {PRINT[_TOOL]}"
            raise InputError.of("E874", message, place, fix)
        if known_name(named.value) is None:
            refuse_family(named.value, named.place)
        translation.published(named.value, named)
    for name in [*config.fields]:
        if name.startswith("model.receiver.") or name in ("model.0", "model.path"):
            del config.fields[name]
