"""Translate a config to settings with the names of Megatron-LM's arguments."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from simtrain.base.importer import ImportRequest
from simtrain.errors import InputError, Location
from simtrain.importing.draft import Draft
from simtrain.importing.megatron.export import model_arguments
from simtrain.importing.megatron.fields import draft_of
from simtrain.importing.megatron.source import Source
from simtrain.importing.nemo.config import TARGET, WORDS, Config, Field, table_of
from simtrain.importing.published_models import CONFIGS, known_name, published_model
from simtrain.importing.settings import Setting
from simtrain.importing.table import WordTable
from simtrain.scenario.model import MODULES
from simtrain.scenario.parallelism import layout_of_chunks

_RENAMED, _INVERTED = WORDS.section("renamed"), WORDS.section("inverted")
_LETTERS, _BACKENDS = WORDS.section("letters"), WORDS.section("attention_backends")
_OFF: tuple[Any, ...] = (None, False, "", [], {}, 0)


class Translation:
    """The arguments that a config sets.

    Args:
        file: the config's path.
        tool: what it is a config of, such as "Megatron-Bridge".
        config: its fields.
    """

    def __init__(self, file: str, tool: str, config: Config) -> None:
        self.file, self.tool, self.config = file, tool, config
        self.table: WordTable = table_of(tool)
        self.settings: dict[str, Setting] = {}
        self.notes: list[str] = []

    def draft(self, request: ImportRequest, launch: tuple[Setting, ...] = ()) -> Draft:
        """Return the draft of the translated arguments, with adapters and packed documents."""
        source = Source(
            self.file,
            self.settings,
            launch,
            is_printed=True,
            tool=self.tool,
            table=self.table,
            notes=tuple(self.notes),
        )
        draft = draft_of(source, request)
        _set_adapters(draft)
        _note_packing(draft, self.config)
        return draft

    def model(self, section: str) -> None:
        """Set the arguments of the section of the model."""
        self.copy(section)
        self._activation(section)
        self.activation_fusion(section)
        self.layout(section)
        self._attention_backend(section)
        self.query_groups()

    def add(self, argument: str, field: Field, spelled: str, value: Any = ...) -> None:
        """Set an argument from a field; null leaves it to Megatron-Core's default."""
        value = field.value if value is ... else value
        text = as_text("unknown" if field.unknown and value is None else value)
        place, unknown, reason = field.place, field.unknown, field.reason
        self.settings[argument] = Setting(argument, spelled, text, place, unknown, reason)

    def default(self, argument: str, value: Any) -> None:
        """Set an argument that the config does not have to the tool's default."""
        if argument not in self.settings or self.settings[argument].value == "None":
            name = f"default of {self.tool}"
            self.settings[argument] = Setting(argument, name, as_text(value), None)

    def copy(self, *sections: str) -> None:
        """Set the arguments that have the names of fields, or other names in the tables."""
        for spelled, name, field in self.config.section(*sections):
            first, _, nested = name.partition(".")
            if nested and first in self.table:
                continue  # arguments of an object, such as a signal
            last = name.rpartition(".")[2].removesuffix("()")
            argument = _RENAMED.get(last, last)
            if last.isdigit():
                continue  # arguments of a function of another file, which is an unknown field
            if last in _INVERTED:
                is_known = isinstance(field.value, bool)
                self.add(_INVERTED[last], field, spelled, not field.value if is_known else None)
            elif argument in self.table:
                self.add(argument, field, spelled)
            elif field.value not in _OFF or field.unknown:
                # Names of classes and values of unknown fields; those that are off have no effect.
                self.add(spelled, field, spelled)

    def refuse_unknown(self, *sections: str) -> None:
        """Refuse sections of which the file does not determine anything.

        Raises:
            InputError: such a section (E874).
        """
        for name in sections:
            field = self.config.fields.get(name)
            if field and field.unknown and f"{name}.{TARGET}" not in self.config.fields:
                raise InputError.of(
                    "E874",
                    f"{name} depends on {field.unknown}, {field.reason}",
                    field.place,
                    "write its fields in the file, or print the config and import that: "
                    + PRINT[self.tool],
                )

    def published(self, name: str, field: Field) -> None:
        """Set the arguments of a published model.

        Args:
            name: its name on Hugging Face.
            field: the field that names it.

        Raises:
            InputError: simtrain does not have its sizes (E877).
        """
        if (known := known_name(name)) is None:
            raise InputError.of(
                "E877",
                f"simtrain does not have the sizes of the model {name}",
                field.place or Location(self.file),
                f"print the config and import that: {PRINT[self.tool]}",
                f"known models: {', '.join(CONFIGS)}",
            )
        model = published_model(known)
        self.notes += [f"{name}: {note}" for note in model.notes]
        for argument, value in model_arguments(model.fields).items():
            self.settings[argument] = Setting(argument, name, as_text(value), field.place)

    def _activation(self, section: str) -> None:
        """Set the activation from Megatron-Core's function and gate.

        Raises:
            InputError: the function is not modelled (E872).
        """
        names = f"{section}.activation_func", f"{section}.gated_linear_unit"
        function, gate = map(self.config.fields.get, names)
        if (field := function or gate) is None:
            return
        word = str(self.config.value(names[0], "gelu")).rpartition(".")[2]
        flags = WORDS.section("gated" if gate and gate.value else "ungated")
        if word not in flags:
            message = f"{names[0]} is {word}, which is not modelled"
            fix = "write silu with a gate, gelu or squared_relu"
            raise InputError.of("E872", message, field.place, fix)
        for flag in ("swiglu", "quick_geglu", "squared_relu"):
            self.add(flag, field, names[0], flags[word] == flag)

    def query_groups(self) -> None:
        """Set the flag that Megatron-LM's number of query groups needs."""
        setting = self.settings.get("num_query_groups")
        if setting and setting.value != "None":
            flag = replace(setting, name="group_query_attention", value="True", unknown=None)
            self.settings["group_query_attention"] = flag

    def activation_fusion(self, section: str) -> None:
        """Set the fusion of bias and activation, whichever the activation is."""
        name = f"{section}.bias_activation_fusion"
        if (field := self.config.fields.get(name)) and isinstance(field.value, bool):
            for argument in ("bias_swiglu_fusion", "bias_gelu_fusion"):
                self.add(argument, field, name)

    def layout(self, section: str) -> None:
        """Set a layout that is a list of the names of parts of each stage."""
        name = f"{section}.pipeline_model_parallel_layout"
        field = self.config.fields.get(name)
        if field is None or not isinstance(field.value, list):
            return
        chunks = field.value
        if all(isinstance(chunk, list) for chunk in chunks):
            chunks = ["".join(_LETTERS.get(str(part), "?") for part in chunk) for chunk in chunks]
        layout = layout_of_chunks(map(str, chunks))
        self.add("pipeline_model_parallel_layout", field, name, layout)

    def _attention_backend(self, section: str) -> None:
        """Set the attention backend, which printed configs have as a number."""
        name = f"{section}.attention_backend"
        numbers = self.config.value(f"{name}._args_")
        if isinstance(numbers, list) and numbers and str(numbers[0]) in _BACKENDS:
            field = self.config.fields[f"{name}._args_"]
            self.add("attention_backend", field, name, _BACKENDS[str(numbers[0])])
        for argument in (f"{name}._args_", f"{name}._name_"):
            self.settings.pop(argument, None)

    def mixed_precision(self, section: str) -> str:
        """Set dtypes from a precision, which is a name or an object; return the type."""
        field = self.config.fields.get(section) or self.config.fields.get(f"{section}._target_")
        named = self.config.value(f"{section}.0")  # get_mixed_precision_config("bf16_mixed")
        word = str(named or self.config.value(section) or self.config.target(section))
        arguments = WORDS.section("mixed_precision").get(word.replace("-", "_"), {})
        if field:
            for argument, value in arguments.items():
                self.add(argument, Field(word, field.place), section, value)
        self.copy(section)
        self.drop(f"{section}.precision", section)
        return "fp16" if self._is_on("fp16") else "bf16" if self._is_on("bf16") else "fp32"

    def reduction(self, dtype: str, *names: str) -> None:
        """Set the dtype of gradients from the first of some fields that is given."""
        for name in names:
            field = self.config.fields.get(name)
            if field and isinstance(field.value, bool):
                in_fp32 = field.value
                self.add("accumulate_allreduce_grads_in_fp32", field, name, in_fp32)
                self.add("grad_reduce_in_bf16", field, name, not in_fp32 and dtype == "bf16")
                return
        self.default("accumulate_allreduce_grads_in_fp32", dtype != "fp16")

    def overlap(self, section: str, is_given: bool) -> None:
        """Set overlaps: a config of overlaps turns on what the layout can have.

        Source: `_get_model_comm_overlap_cfgs` and `_get_optimizer_overlap_cfgs` of
        Megatron-Bridge's CommOverlapConfig and NeMo's MegatronCommOverlapCallback.
        """
        pairs = {
            name: field
            for _, name, field in self.config.section(section)
            if is_given and field.value is not None
        }
        for name in ("overlap_p2p_comm", "align_param_gather", "overlap_grad_reduce"):
            if is_given and name not in pairs:
                self.settings.pop(name, None)
        if is_given:
            self.settings.pop("overlap_param_gather", None)
        for name, field in pairs.items():
            argument = _RENAMED.get(name, name)
            if argument in self.table:
                self.add(argument, field, f"{section}.{name}")
        if self._is_on("tp_comm_overlap") and not self._is_on("sequence_parallel"):
            self.drop("tp_comm_overlap")  # which both tools turn off
        if is_given:
            distributed = self._is_on("use_distributed_optimizer")
            self.default("overlap_grad_reduce", distributed)
            self.default("overlap_param_gather", distributed)
            return
        self.default("overlap_p2p_comm", False)
        self.default("align_param_gather", False)

    def vocabulary(self, model: str, *others: str) -> None:
        """Set the tokens of a model, of which `should_pad_vocab: false` keeps the number."""
        has_size = "padded_vocab_size" in self.settings
        names = (f"{model}.vocab_size", f"{model}.override_vocab_size")
        for name in (*names, *(() if has_size else others)):
            field = self.config.fields.get(name)
            if field is None or (field.value is None and not field.unknown):
                continue
            if field.unknown and has_size:
                continue  # a tokenizer with more tokens than the model
            is_padded = self.config.value(f"{model}.should_pad_vocab", True)
            self.settings.pop("padded_vocab_size", None)
            self.add("vocab_size" if is_padded else "padded_vocab_size", field, name)
            is_null = self.config.value("tokenizer.tokenizer_type") == "NullTokenizer"
            kind = "NullTokenizer" if is_null and name in others else "the config's tokenizer"
            self.settings["tokenizer_type"] = Setting("tokenizer_type", name, kind, None)
            return

    def adapters(self) -> None:
        """Set the adapters of a config, or note that all weights are trained instead.

        Raises:
            InputError: adapters of another kind, or of other layers (E872).
        """
        config = self.config
        scheme = config.target("peft") or str(config.value("peft", ""))
        if scheme == "default_peft_config":
            scheme = str(config.value("peft.0") or config.value("peft.peft_scheme", ""))
        scheme = _SCHEMES.get(scheme.lower(), scheme)
        if not scheme or scheme == "none":
            return
        field = config.fields.get("peft") or config.fields[f"peft.{TARGET}"]
        if scheme == "DoRA":
            message = "peft is DoRA, which also trains the length of each column of the weights"
            raise InputError.of("E872", message, field.place, "import LoRA, or remove peft")
        is_other = any(
            name in self.settings and self.settings[name].value not in ("None", "False")
            for name in _WITHOUT_ADAPTERS
        )
        defaults = {"dim": 32, "target_modules": _TARGETS.get(scheme, []), "dropout": 0.0}
        entries = [config.fields.get(f"peft.{name}") for name in defaults]
        if scheme not in _TARGETS or is_other or any(each and each.unknown for each in entries):
            self.add("peft", field, "peft", scheme)
            return
        for name, default in defaults.items():
            entry = config.fields.get(f"peft.{name}")
            if entry is None or entry.value is None:
                entry = Field(default, field.place)
            self.add(f"peft_{name}", entry, f"peft.{name}")

    def _is_on(self, argument: str) -> bool:
        return argument in self.settings and self.settings[argument].value == "True"

    def drop(self, *arguments: str) -> None:
        """Leave out arguments that have no effect here."""
        for argument in arguments:
            self.settings.pop(argument, None)


PRINT: dict[str, str] = WORDS.section("print")
"""How to print a config with all sizes, by tool."""


def as_text(value: Any) -> str:
    """Return a value as Megatron-LM prints it."""
    if isinstance(value, list | tuple):
        return " ".join(map(as_text, value))
    return str(value)


_PACKING = re.compile(r"\.(packed_sequence_specs|offline_packing_specs)\.packed_sequence_size$")
_SCHEMES: dict[str, str] = WORDS.section("schemes")
_TARGETS: dict[str, list[str]] = WORDS.section("targets")
"""The modules with adapters, of each scheme."""
_WITHOUT_ADAPTERS = "num_experts", "multi_latent_attention", "mtp_num_layers"
"""Arguments of models whose adapters are not simulated."""


def _set_adapters(draft: Draft) -> None:
    """Set the fields of the adapters.

    Raises:
        InputError: a value is wrong, or adapters are of single layers or other modules (E872).
    """
    rank = draft.given("peft_dim")
    targets, dropout = draft.given("peft_target_modules"), draft.given("peft_dropout")
    if rank is None or targets is None or dropout is None:
        return
    modules = targets.value.split()
    if wrong := [module for module in modules if module not in MODULES]:
        message = f"peft.target_modules has {wrong[0]}, which is not simulated"
        fix = f"write some of {', '.join(MODULES)}"
        raise InputError.of("E872", message, targets.place, fix, "adapters are of whole layers")
    values: dict[str, Any] = {"rank": rank, "dropout": dropout}
    for name, setting in values.items():
        try:
            number = int(setting.value) if name == "rank" else float(setting.value)
        except ValueError:
            message, fix = f"{setting.words} is not a number", "write a number"
            raise InputError.of("E872", message, setting.place, fix) from None
        draft.set(f"model.lora.{name}", number, setting.name)
    draft.set("model.lora.modules", modules, targets.name)


def _note_packing(draft: Draft, config: Config) -> None:
    """Note packed documents, whose lengths are in the data, unless an override has them."""
    names = (name for name, field in config.fields.items() if field.value and _PACKING.search(name))
    name = next(names, "")
    is_set = any(override.startswith("batch.packed_lengths=") for override in draft.overrides)
    if name and not is_set:
        text = (
            "sequences pack documents, whose lengths are in the data: add --set "
            "batch.packed_lengths=[512] or other lengths; attention spans whole sequences here"
        )
        draft.note(name, text, config.fields[name].place)
