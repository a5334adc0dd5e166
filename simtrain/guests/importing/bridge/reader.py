"""Import configs of Megatron-Bridge: a printed ConfigContainer, alone or in a log.

The config becomes settings with the names of Megatron-LM's arguments. Fields of Megatron-Core's
configs have these names unless a row of `words.toml` says another.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simtrain.base.importer import MOST_BYTES_OF_LOG, ImportRequest, text_of_kind
from simtrain.base.strict_yaml import YamlDocument, parse_document
from simtrain.errors import InputError, Location
from simtrain.guests.importing.draft import Draft
from simtrain.guests.importing.gpus import machine_of_log
from simtrain.guests.importing.kinds import KINDS
from simtrain.guests.importing.megatron.arguments import TABLE as OF_MEGATRON
from simtrain.guests.importing.megatron.draft import missing_part
from simtrain.guests.importing.megatron.fields import draft_of
from simtrain.guests.importing.megatron.source import MegatronSource
from simtrain.guests.importing.settings import Setting
from simtrain.guests.importing.table import WordsFile
from simtrain.scenario.parallelism import layout_of_chunks

_TOOL = "Megatron-Bridge"
_WORDS = WordsFile(Path(__file__).with_name("words.toml"))
TABLE = dataclasses.replace(
    OF_MEGATRON,
    kind="field",
    source=_TOOL,
    not_modelled=dict(OF_MEGATRON.not_modelled) | _WORDS.effects("not_modelled"),
    without_effect=OF_MEGATRON.without_effect | _WORDS.names("without_effect"),
)
"""Megatron-LM's arguments, and the words of Megatron-Bridge alone."""
_RENAMED, _INVERTED = _WORDS.section("renamed"), _WORDS.section("inverted")
_LETTERS, _BACKENDS = _WORDS.section("letters"), _WORDS.section("attention_backends")
_ACTIVATIONS: dict[str, str] = {
    f"{gate}.{name}": flag
    for gate in ("gated", "ungated")
    for name, flag in _WORDS.section(gate).items()
}
_OFF: tuple[Any, ...] = (None, False, "", [], {}, 0)
_TARGET = "_target_"
"""The key whose value is the class or function of an object."""
_MARKS = (_TARGET, "_call_", "_partial_", "_convert_", "_recursive_")
_START = re.compile(rf"^{_TARGET}: .*ConfigContainer\s*$", re.MULTILINE)
_HYBRID_PROVIDER = re.compile(r"(?:Mamba|NemotronH)Model(?:Provider(?:\d+B)?|\d+BProvider)$")
"""Classes of models/mamba/mamba_provider.py and models/nemotronh/nemotron_h_provider.py."""
_PACKING = re.compile(r"\.(packed_sequence_specs|offline_packing_specs)\.packed_sequence_size$")
_SECTIONS = "model", "train", "optimizer", "ddp", "dist", "mixed_precision", "comm_overlap", "peft"


def bridge_draft(request: ImportRequest) -> Draft:
    """Return the draft of a scenario from a printed config of Megatron-Bridge.

    Raises:
        InputError: unreadable files, unknown fields and models, and values and combinations that
            Megatron-Core refuses.
    """
    file = request.file
    text = text_of_kind(Path(file), *KINDS["bridge"], most_bytes=MOST_BYTES_OF_LOG)
    lines = text.split("\n")
    if sign := _START.search(text):  # which a log may have among other lines
        body = re.split(r"^-{5,}", text[sign.start() :], maxsplit=1, flags=re.MULTILINE)[0]
        # Empty lines keep its line numbers.
        text = "\n" * text.count("\n", 0, sign.start()) + body
    translation = _Translation(parse_document(text, file))
    translation.translate()
    arguments = translation.arguments
    source = MegatronSource(file, arguments, is_printed=True, tool=_TOOL, table=TABLE)
    draft = draft_of(source, request)
    _note_packing(draft, translation.config)
    draft.machine = machine_of_log(lines, file)
    return draft


class _Translation:
    """The arguments that a config sets; later sections override earlier ones.

    `config` has the fields of the config by their dotted names; `model._target_` is the class of
    the object `model`.
    """

    def __init__(self, document: YamlDocument) -> None:
        self.config: dict[str, Setting] = {}
        for path, value in _leaves(document.data, ()):
            name = ".".join(map(str, path))
            self.config[name] = Setting(name, name, value, document.positions.of_value(path))
        self.arguments: dict[str, Setting] = {}

    def translate(self) -> None:
        self._model()
        self._copy("train", "optimizer", "ddp", "dist")
        if self._value("ddp.use_megatron_fsdp") or self._value("dist.use_megatron_fsdp"):
            self._default("use_megatron_fsdp", True)
        else:
            self._drop("data_parallel_sharding_strategy", "use_megatron_fsdp")
        self._reduction(self._mixed_precision())
        self._overlap()
        # The length of sequences is that of the model or of the data.
        for name in ("model.seq_length", "dataset.seq_length", "dataset.sequence_length"):
            if field := self._given(name):
                self._add("seq_length", field)
                break
        self._vocabulary()
        for name, value in _WORDS.section("defaults.bridge").items():
            self._default(name, value)
        if scheme := self._target("peft"):
            self._add("peft", _spelled(self.config[f"peft.{_TARGET}"], "peft"), scheme)
        # Fields of sections that simtrain does not know are an error.
        known = {_TARGET, *_SECTIONS, *_WORDS.names("sections_without_effect")}
        for name, field in self.config.items():
            if name.partition(".")[0] not in known and field.value:
                self._add(name, field)

    # ------------------------------------------------------------------ fields and arguments

    def _given(self, name: str) -> Setting | None:
        field = self.config.get(name)
        return None if field is None or field.value is None else field

    def _value(self, name: str, default: Any = None) -> Any:
        field = self._given(name)
        return field.value if field else default

    def _target(self, name: str) -> str:
        """Return the last word of the class of an object, or ""."""
        return str(self._value(f"{name}.{_TARGET}", "")).rpartition(".")[2]

    def _section(self, *names: str) -> Iterator[tuple[str, Setting]]:
        """Yield the name inside of its section, and each field of sections."""
        for dotted, field in self.config.items():
            for name in names:
                if dotted.startswith(f"{name}.") and not dotted.endswith(_MARKS):
                    yield dotted[len(name) + 1 :], field

    def _add(self, argument: str, field: Setting, value: Any = ...) -> None:
        """Set an argument from a field; null leaves it to Megatron-Core's default."""
        text = _as_text(field.value if value is ... else value)
        self.arguments[argument] = Setting(argument, field.spelled, text, field.place)

    def _default(self, argument: str, value: Any) -> None:
        """Set an argument that the config does not have to the tool's default."""
        if argument not in self.arguments or self.arguments[argument].value == "None":
            text = _as_text(value)
            self.arguments[argument] = Setting(argument, f"default of {_TOOL}", text, None)

    def _drop(self, *arguments: str) -> None:
        """Leave out arguments that have no effect here."""
        for argument in arguments:
            self.arguments.pop(argument, None)

    def _is_on(self, argument: str) -> bool:
        return argument in self.arguments and self.arguments[argument].value == "True"

    def _copy(self, *sections: str) -> None:
        """Set the arguments that have the names of fields, or other names in the tables."""
        for name, field in self._section(*sections):
            first, _, nested = name.partition(".")
            last = name.rpartition(".")[2]
            argument = _RENAMED.get(last, last)
            if nested and first in TABLE:
                continue  # arguments of an object, such as a signal
            if last in _INVERTED:
                is_known = isinstance(field.value, bool)
                self._add(_INVERTED[last], field, not field.value if is_known else None)
            elif argument in TABLE:
                self._add(argument, field)
            elif field.value not in _OFF:
                self._add(field.name, field)  # Unknown fields that are off have no effect.

    # ------------------------------------------------------------------------------ sections

    def _model(self) -> None:
        """Set the arguments of the model, and refuse other kinds of models."""
        target = str(self._value(f"model.{_TARGET}", ""))
        if _HYBRID_PROVIDER.search(target):
            for name, value in _WORDS.section("defaults.hybrid").items():
                self._default(name, value)
        else:
            fields = (field.place for _, field in self._section("model"))
            _refuse_family(target, next(fields, None))
        self._copy("model")
        self._activation()
        fusion = self.config.get("model.bias_activation_fusion")
        if fusion and isinstance(fusion.value, bool):  # whichever the activation is
            self._add("bias_swiglu_fusion", fusion)
            self._add("bias_gelu_fusion", fusion)
        layout = self.config.get("model.pipeline_model_parallel_layout")
        if layout and isinstance(layout.value, list):
            chunks = layout.value  # names of the parts of each stage
            if all(isinstance(chunk, list) for chunk in chunks):
                letters = (
                    map(lambda part: _LETTERS.get(str(part), "?"), chunk) for chunk in chunks
                )
                chunks = ["".join(each) for each in letters]
            text = layout_of_chunks(map(str, chunks))
            self._add("pipeline_model_parallel_layout", layout, text)
        backend = self.config.get("model.attention_backend._args_")  # a number
        if backend and isinstance(backend.value, list) and str(*backend.value[:1]) in _BACKENDS:
            self._add("attention_backend", backend, _BACKENDS[str(backend.value[0])])
        self._drop("model.attention_backend._args_", "model.attention_backend._name_")
        groups = self.arguments.get("num_query_groups")
        if groups and groups.value != "None":
            self._add("group_query_attention", groups, True)

    def _activation(self) -> None:
        """Set the activation from Megatron-Core's function and gate.

        Raises:
            InputError: the function is not modelled (E872).
        """
        name = "model.activation_func"
        function, gate = self.config.get(name), self.config.get("model.gated_linear_unit")
        if (field := function or gate) is None:
            return
        word = str(self._value(name, "gelu")).rpartition(".")[2]
        flag_name = _ACTIVATIONS.get(f"{'gated' if gate and gate.value else 'ungated'}.{word}")
        if flag_name is None:
            message = f"{name} is {word}, which is not modelled"
            fix = "write silu with a gate, gelu or squared_relu"
            raise InputError.of("E872", message, field.place, fix)
        for flag in ("swiglu", "quick_geglu", "squared_relu"):
            self._add(flag, field, flag_name == flag)

    def _mixed_precision(self) -> str:
        """Set dtypes from a precision, which is a name or an object; return the type."""
        section = "mixed_precision"
        named = self.config.get(section) or self.config.get(f"{section}.{_TARGET}")
        word = str(self._value(section) or self._target(section))
        if named:
            arguments = _WORDS.section("mixed_precision").get(word.replace("-", "_"), {})
            for argument, value in arguments.items():
                self._add(argument, _spelled(named, section), value)
        self._copy(section)
        self._drop(f"{section}.precision", section)
        return "fp16" if self._is_on("fp16") else "bf16" if self._is_on("bf16") else "fp32"

    def _reduction(self, dtype: str) -> None:
        """Set the dtype of gradients."""
        for section in ("mixed_precision", "ddp"):
            field = self.config.get(f"{section}.grad_reduce_in_fp32")
            if field and isinstance(field.value, bool):
                self._add("accumulate_allreduce_grads_in_fp32", field)
                self._add("grad_reduce_in_bf16", field, not field.value and dtype == "bf16")
                return
        self._default("accumulate_allreduce_grads_in_fp32", dtype != "fp16")

    def _overlap(self) -> None:
        """Set overlaps: a config of overlaps turns on what the layout can have.

        Source: `_get_model_comm_overlap_cfgs` of CommOverlapConfig.
        """
        fields = dict(self._section("comm_overlap"))
        is_given = bool(fields) or bool(self._value("comm_overlap"))
        fields = {name: field for name, field in fields.items() if field.value is not None}
        if is_given:
            decided = {"overlap_p2p_comm", "align_param_gather", "overlap_grad_reduce"}
            self._drop(*decided - fields.keys(), "overlap_param_gather")
        for name, field in fields.items():
            if (argument := _RENAMED.get(name, name)) in TABLE:
                self._add(argument, field)
        if not self._is_on("sequence_parallel"):
            self._drop("tp_comm_overlap")  # which Megatron-Bridge turns off
        if is_given:
            distributed = self._is_on("use_distributed_optimizer")
            self._default("overlap_grad_reduce", distributed)
            self._default("overlap_param_gather", distributed)
        else:
            self._default("overlap_p2p_comm", False)
            self._default("align_param_gather", False)

    def _vocabulary(self) -> None:
        """Set the tokens of the model, of which `should_pad_vocab: false` keeps the number."""
        others = () if "padded_vocab_size" in self.arguments else ("tokenizer.vocab_size",)
        for name in ("model.vocab_size", *others):
            if field := self._given(name):
                is_padded = self._value("model.should_pad_vocab", True)
                self._drop("padded_vocab_size")
                self._add("vocab_size" if is_padded else "padded_vocab_size", field)
                is_null = self._value("tokenizer.tokenizer_type") == "NullTokenizer"
                kind = "NullTokenizer" if is_null and name in others else "the config's tokenizer"
                self.arguments["tokenizer_type"] = Setting("tokenizer_type", name, kind, None)
                break
        self._default("tokenizer_type", "the config's tokenizer")


def _spelled(field: Setting, name: str) -> Setting:
    return dataclasses.replace(field, spelled=name)


def _leaves(data: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path and value of each field; the value of an object that is no call is its name.

    Lists of objects have their positions as names.
    """
    if isinstance(data, dict):
        if data.get("_call_") is False and isinstance(data.get(_TARGET), str):
            yield path, data[_TARGET]
            return
        for name, value in data.items():
            yield from _leaves(value, (*path, name))
    elif isinstance(data, list) and any(isinstance(each, dict) for each in data):
        for number, value in enumerate(data):
            yield from _leaves(value, (*path, number))
    else:
        yield path, data


def _refuse_family(name: str, place: Location | None) -> None:
    """Check that the name of a class is not of a kind of model that simtrain does not have.

    Raises:
        InputError: the model has such a part (E877).
    """
    for pattern, part in _WORDS.section("missing").items():
        if re.search(pattern, name[:500].lower()):
            raise missing_part(f"{name[:100]} is", place, part)


def _as_text(value: Any) -> str:
    """Return a value as Megatron-LM prints it."""
    return " ".join(map(_as_text, value)) if isinstance(value, list | tuple) else str(value)


def _note_packing(draft: Draft, config: dict[str, Setting]) -> None:
    """Note packed documents, whose lengths are in the data, unless an override has them."""
    name = next((name for name in config if config[name].value and _PACKING.search(name)), "")
    if name and draft.override_text("batch.packed_lengths") is None:
        text = (
            "sequences pack documents, whose lengths are in the data: add --set "
            "batch.packed_lengths=[512] or other lengths; attention spans whole sequences here"
        )
        draft.note(name, text, config[name].place)
