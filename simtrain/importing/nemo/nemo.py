"""Import recipes of NeMo 2, in Python or as printed YAML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simtrain.base.importer import ImportRequest
from simtrain.base.input_file import text_of_kind
from simtrain.base.strict_yaml import parse_document
from simtrain.errors import InputError, Location
from simtrain.importing.draft import Draft
from simtrain.importing.gpus import machine_of_config
from simtrain.importing.importers import Nemo
from simtrain.importing.nemo.config import (
    TARGET,
    WORDS,
    Config,
    Field,
    config_of_document,
    config_of_object,
    refuse_family,
)
from simtrain.importing.nemo.translation import Translation, as_text
from simtrain.importing.python_config import Built, PythonSource
from simtrain.importing.settings import Setting
from simtrain.importing.table import WordsFile

_TOOL = "NeMo"
_WRAPPERS = ("nemo_run.Config", "nemo_run.Partial")
_OPTIMIZERS = ("distributed_fused_adam_with_cosine_annealing", "MegatronOptimizerModule")
_LENGTH = re.compile(r"_\d+k$")
"""The end of a version that tells the length of sequences, which the data has."""
_STRATEGY, _CALLBACKS = "trainer.strategy", "trainer.callbacks."
_SECTIONS = (
    *("model", "model.config", "trainer", _STRATEGY, f"{_STRATEGY}.ddp", "trainer.plugins"),
    *("trainer.callbacks", "optim", "optim.config", "data", "peft"),
)
_MODELS = WordsFile(Path(__file__).with_name("models.toml"))


def nemo_draft(request: ImportRequest) -> Draft:
    """Return the draft of a scenario from a config of NeMo.

    Raises:
        InputError: unreadable files, unknown fields and models, and values and combinations that
            Megatron-Core refuses.
    """
    file = request.file
    text = text_of_kind(Path(file), *Nemo.kinds)
    if file.endswith(".py") or Nemo.kinds[1].sign_in(text):
        source = PythonSource(text, file, _WRAPPERS)
        _, job = source.config(request.config or None, _is_recipe)
        translation = _translated(config_of_object(job, source), file)
    else:
        fields = config_of_document(parse_document(text, file))
        if not any(name.startswith(_STRATEGY) for name in fields.fields):
            message = f"the config has no {_STRATEGY}: configs of NeMo 1 are not read"
            fix = "import the log of the run, or the arguments of Megatron-LM that it prints"
            raise InputError.of("E875", message, Location(file), fix)
        translation = _translated(fields, file)
    launch = _launch(translation.config) if request.gpus is None else ()
    draft = translation.draft(request, launch)
    draft.machine = machine_of_config(request.config)
    return draft


def _is_recipe(value: Built) -> bool:
    return {"model", "trainer"} <= value.fields.keys()


def _launch(config: Config) -> tuple[Setting, ...]:
    """Return the settings whose product is the number of GPUs."""
    names = ("trainer.devices", "trainer.num_gpus_per_node"), ("trainer.num_nodes",)
    parts = [next((name for name in each if name in config.fields), None) for each in names]
    settings = [
        Setting(name, name, as_text(field.value), field.place, field.unknown, field.reason)
        for name in parts
        if name and ((field := config.fields[name]).value is not None or field.unknown)
    ]
    return tuple(settings) if len(settings) == 2 else ()


def _translated(config: Config, file: str) -> Translation:
    """Translate a recipe of NeMo 2."""
    is_function = config.target("trainer").endswith("_trainer")
    config = config.with_defaults(WORDS.section("common.trainer")) if is_function else config
    translation = Translation(file, _TOOL, config)
    translation.refuse_unknown(*_SECTIONS)
    _set_model(translation, config, file)
    translation.model("model.config")
    for word, argument in WORDS.section("trainer").items() if is_function else ():
        if (field := config.fields.get(f"trainer.{word}")) and field.value is not None:
            translation.add(argument, field, f"trainer.{word}")
    translation.copy(_STRATEGY)
    translation.copy(f"{_STRATEGY}.ddp", "optim.config")
    translation.layout(_STRATEGY)
    unused = WORDS.names("strategy_without_effect")
    translation.drop(*unused, *(f"{_STRATEGY}.{name}" for name in unused))
    if config.value(f"{_STRATEGY}.fsdp") == "megatron":
        translation.default("use_megatron_fsdp", True)
    else:
        translation.drop("data_parallel_sharding_strategy")
    if config.target("optim") in _OPTIMIZERS:
        translation.default("use_distributed_optimizer", True)
    plugin = config.value("trainer.plugins.precision")
    if isinstance(plugin, str):
        dtype = plugin.partition("-")[0].replace("16", "fp16").replace("bffp16", "bf16")
        named = config.fields["trainer.plugins.precision"]
        translation.add(dtype, named, "trainer.plugins.precision", True)
    precision = translation.mixed_precision("trainer.plugins")
    names = ("trainer.plugins.grad_reduce_in_fp32", f"{_STRATEGY}.ddp.grad_reduce_in_fp32")
    translation.reduction(precision, *names)
    _copy_callbacks(translation, config)
    for name in ("seq_length", "global_batch_size", "micro_batch_size"):
        size = config.fields.get(f"data.{name}")
        if size and (size.value is not None or size.unknown):
            translation.add(name, size, f"data.{name}")
    translation.vocabulary("model.config")
    translation.default("tokenizer_type", "the recipe's tokenizer")
    translation.default("moe_token_dispatcher_type", "alltoall")
    translation.default("cross_entropy_loss_fusion", True)
    translation.adapters()
    return translation


def _set_model(translation: Translation, config: Config, file: str) -> None:
    """Set the arguments of the class or version that names the model."""
    fields = config.fields
    name = "model.config" if f"model.config.{TARGET}" in fields else "model"
    function = config.target("model")
    field = fields.get("model.version") or fields.get("model.0") or fields.get(f"{name}.{TARGET}")
    word = str(field.value).rpartition(".")[2] if field else ""
    if word == "model" and field:  # llama3_70b.model() of another recipe
        word = str(field.value).split(".")[-2:][0]
    word = _LENGTH.sub("", word)
    place = field.place if field else Location(file)
    refuse_family(f"{function} {word}", place)
    sizes, published = _MODELS.section("sizes"), _MODELS.section("published")
    if word in sizes:
        for argument, value in _arguments_of(word).items():
            translation.settings[argument] = Setting(argument, word, as_text(value), place)
    elif word in published:
        translation.published(published[word], field or Field(None, place))
    elif f"{name}.num_layers" not in config.fields:
        raise InputError.of(
            "E877",
            f"simtrain does not have the sizes of the model {word}",
            place,
            "print the recipe with --yaml or print(recipe), and import that",
            f"known: {', '.join((*published, *sizes))}",
        )


def _arguments_of(name: str) -> dict[str, Any]:
    """Return the arguments of a model whose config.json is not published."""
    layers, hidden, ffn, heads, *groups = _MODELS.section("sizes")[name]
    family = _MODELS.section("nemotron" if "emotron" in name else "gpt")
    sizes = {
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "num_attention_heads": heads,
    }
    grouped = {"group_query_attention": True, "num_query_groups": groups[0]} if groups else {}
    return sizes | grouped | dict(family)


def _copy_callbacks(translation: Translation, config: Config) -> None:
    """Set overlaps and dropped tokens, which NeMo has in callbacks."""
    numbers = sorted({name.split(".")[2] for name in config.fields if name.startswith(_CALLBACKS)})
    overlaps = ""
    for number in numbers:
        name = f"{_CALLBACKS}{number}"
        kind = config.target(name)
        translation.refuse_unknown(name)
        if kind == "MegatronCommOverlapCallback":
            overlaps = name
        elif kind == "MegatronTokenDropCallback":
            factor = config.value(f"{name}.moe_expert_capacity_factor", 1.0)
            field: Any = config.fields[f"{name}.{TARGET}"]
            translation.add("moe_expert_capacity_factor", field, kind, factor)
            translation.add("moe_pad_expert_input_to_capacity", field, kind, True)
    translation.overlap(overlaps or f"{_CALLBACKS}none", bool(overlaps))
