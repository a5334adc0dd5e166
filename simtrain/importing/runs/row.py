"""A row of a table of measured runs as a scenario."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from simtrain.base.resources import list_profiles, list_stacks
from simtrain.base.strict_yaml import Positions, YamlDocument, apply_overrides, parse_value
from simtrain.base.strict_yaml.document import Place
from simtrain.errors import Location
from simtrain.importing.draft import missing_fields
from simtrain.importing.runs.columns import (
    ALIASES,
    COLUMN_OF,
    NOT_PRINTED,
    TEXTS,
    Fields,
    UnreadableCell,
    fields_of,
    integer,
    positive,
    switch,
)
from simtrain.importing.runs.known_names import model_facts, profile_named
from simtrain.importing.runs.megatron import import_arguments
from simtrain.scenario import Model, Scenario
from simtrain.scenario.releases import SEPARATOR, latest_until, split_reference
from simtrain.scenario.section import spell_out_words
from simtrain.scenario.software import DEFAULT_STACK, load_stack, releases_of, stack_of_framework
from simtrain.studies.validation.measured import RunSettings

Value = TypeVar("Value")
REQUIRED = tuple(missing_fields({}, Model, "model."))
"""Fields of the model that a table must have."""
_SIZES = (*("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),)
_RANKS = tuple(f"parallelism.{axis}" for axis in ("tensor", "context", "pipeline"))
_GATED = ("swiglu", "geglu")
_RECIPE_OF: dict[str, Fields] = {"torchao": {"precision.fp8_recipe": "tensorwise"}}
"""What a library of fp8 does unless told otherwise, if it is not what scenarios do."""
_RELEASE = re.compile(r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4}){1,3})(?![\w.])")
"""A number of a release, such as 26.06.01, and no part of a name or of a commit."""
_JOINED_RELEASE = re.compile(r"(?<=[a-z])v?(\d)[._]?(\d)(?![.\d])")
"""A release at the end of a framework's name, as in mlperf60."""
_HAS_EXPERTS = re.compile(
    r"\bmoe|experts|\d ?x ?\d+(?:\.\d+)? ?b|(?<![a-z])a\d+(?:\.\d+)? ?b"
    r"|gpt[-_ ]?oss|mixtral|deepseek[-_ ]?v[23]",
    re.IGNORECASE,
)
"""Names of models with experts, such as "Qwen3 30B-A3B" and "8x7B"."""
_SETTING_IN_NOTES = re.compile(r"\b([a-z_]{4,40})(?:=| (?=on\b|off\b))([\w-]+)")
"""A setting in notes by the name of its column: "schedule=1F1B", "tp_comm_overlap on"."""


class RefusedRow(Exception):
    """A row that cannot be simulated; the message says why."""


@dataclass(frozen=True)
class Row:
    """The cells of a row by the names of their columns."""

    cells: Mapping[str, str]

    def title(self, names: Sequence[str]) -> str:
        """Return the first column of these names with text; "" if none has any."""
        return next((name for name in names if self.cells.get(name)), "")

    def text(self, what: str) -> str:
        """Return the first cell with text in the columns of a text; "" if none has any."""
        return self.cells.get(self.title(TEXTS[what]), "")

    def number(self, names: Sequence[str]) -> tuple[float, str] | None:
        """Read the first number above 0 in columns of these names, and say in which one it is."""
        if name := self.title(names):
            return read(name, self.cells[name], positive), name
        return None

    def check(self, settings: RunSettings) -> None:
        """Refuse a row of another machine than the profile's, or that says what is not read."""
        if machine := self.text("hardware"):
            profile = profile_named(machine)
            # Who has a profile of their own knows which machine it is of.
            if settings.cluster in list_profiles() and profile != settings.cluster:
                which = f"whose profile is {profile}" if profile else "of which there is no profile"
                raise RefusedRow(f"measured on {machine}, {which}")
        for refused in ALIASES["refused"]:
            names = refused.get("columns", (*TEXTS["source"], *TEXTS["notes"]))
            cells = filter(None, map(self.cells.get, names))
            if not any(re.search(refused["words"], cell, re.IGNORECASE) for cell in cells):
                continue
            remedy = refused.get("unless")
            if remedy is None:
                raise RefusedRow(refused["why"])
            if not any(name.startswith(remedy) for name in (*settings.overrides, *self.cells)):
                raise RefusedRow(f"{refused['why']}: add columns, or --set, for {remedy}")

    def scenario(
        self, model: str, settings: RunSettings, location: Location
    ) -> tuple[Scenario, list[str]]:
        """Return the row as a scenario, and what was assumed."""
        if arguments := self.text("arguments"):
            return self._from_arguments(arguments, settings)
        fields, assumed = self._fields(model)
        overridden = {override.partition("=")[0] for override in settings.overrides}
        if not {"parallelism", "parallelism.data"} & {*fields, *overridden}:
            raise RefusedRow(
                "the number of GPUs is not printed: add a column gpus, or dp (replicas), or --set "
                "parallelism.data=8"
            )
        self._add_software(fields, settings, assumed)
        document = _document(fields, location)
        for assignment in (f"cluster={settings.cluster}", *settings.overrides):
            document = apply_overrides(spell_out_words(document), [assignment])
        return Scenario.from_document(spell_out_words(document)), assumed

    def _from_arguments(self, text: str, settings: RunSettings) -> tuple[Scenario, list[str]]:
        """Import Megatron-LM's arguments; the table has the number of GPUs."""
        try:
            arguments = json.loads(text)
        except (ValueError, RecursionError) as error:  # also integers of thousands of digits
            raise RefusedRow(f"args_json is not JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise RefusedRow("args_json must be an object of arguments")
        words = " ".join(_option(str(name), value) for name, value in arguments.items())
        overrides = settings.assignments
        if gpus := self.text("gpus"):
            values = {name.replace("-", "_"): value for name, value in arguments.items()}
            ranks = math.prod(read(name, str(values.get(name, 1)), integer) for name in _SIZES)
            data, rest = divmod(read("gpus", gpus, integer), ranks)
            if rest or not data:
                raise RefusedRow(f"{gpus} GPUs are not a multiple of {ranks} ranks of a replica")
            overrides = [f"parallelism.data={data}", *overrides]
        return import_arguments(words, overrides)

    def _fields(self, model: str) -> tuple[Fields, list[str]]:
        """Return the fields that the row sets, and what was assumed."""
        fields, assumed = self._in_notes(), list[str]()
        for name, text in self.cells.items():
            if not text or NOT_PRINTED.search(text):
                continue
            if name in ALIASES["counts"]:
                fields[name] = read(name, text, integer)
            elif "." in name:
                fields[name] = _yaml_value(name, text)
            elif name in COLUMN_OF:
                fields |= _cell(name, text)
        self._add_model(fields, model, assumed)
        self._add_ranks(fields)
        micro = fields.setdefault("batch.micro", 1)
        if "batch.global" not in fields and (text := self.text("microbatches")):
            number = read("microbatches", text, integer)
            fields["batch.global"] = number * micro * fields.get("parallelism.data", 1)
        _add_layout(fields, assumed)
        for name in (*REQUIRED, "batch.global"):
            if name not in fields:
                raise RefusedRow(f"{name} is not printed")
        if "model.vocab_size" not in fields:
            assumed.append("the vocabulary is not printed: simtrain's default")
        return fields, assumed

    def _in_notes(self) -> Fields:
        """Return what notes set by the name of a column."""
        fields = Fields()
        for notes in filter(None, map(self.cells.get, TEXTS["notes"])):
            for name, value in _SETTING_IN_NOTES.findall(notes):
                if name in COLUMN_OF:
                    fields |= _cell(name, value)
        return fields

    def _add_model(self, fields: Fields, model: str, assumed: list[str]) -> None:
        """Add what the table does not say of the model."""
        gated = self.text("gated_mlp")
        is_gated = read("gated_mlp", gated, switch) if gated else None
        facts, of = model_facts(model, gated=bool(is_gated))
        for name, value in facts.items():
            fields.setdefault(f"model.{name}", value)
        has_experts = any(name.startswith("model.experts") for name in fields)
        if _HAS_EXPERTS.search(model) and not has_experts:
            raise RefusedRow(
                f"{model} has experts, but the table does not say how many: add columns "
                "model.experts.num, model.experts.top_k and model.experts.ffn_hidden_size"
            )
        if isinstance(experts := fields.get("model.experts"), dict):
            experts = fields["model.experts"] = dict(experts)
            # Without dense layers, the width that a table prints is that of an expert; but some
            # print that of dense layers, which configurations have even if the model has none.
            if not experts.get("first_dense_layers") and "model.ffn_hidden_size" in fields:
                width = fields.pop("model.ffn_hidden_size")
                known = experts.setdefault("ffn_hidden_size", width)
                if known != width:
                    assumed.append(f"experts are {known} wide as in {of}, not {width} as printed")
        if of:
            assumed.append(f"what the table does not say of {model or 'the model'}: as {of}")
        activation = fields.get("model.activation", "gelu")
        if is_gated is not None and is_gated != (activation in _GATED):
            fields["model.activation"] = "swiglu" if is_gated else "gelu"

    def _add_ranks(self, fields: Fields) -> None:
        """Add the number of replicas, or check it against the number of GPUs."""
        gpus = self.text("gpus")
        if not gpus:
            return
        count = read("gpus", gpus, integer)
        ranks = math.prod(fields.get(name, 1) for name in _RANKS)
        data = fields.setdefault("parallelism.data", count // ranks)
        if data * ranks != count:
            product = f"tensor x context x pipeline x data is {data * ranks}"
            raise RefusedRow(f"{count} GPUs, but {product}")

    @property
    def _stack(self) -> str | None:
        return stack_of_framework(f"{_framework(self.text('framework'))} {self.text('notes')}")

    def _as_of_release(self, stack: str, assumed: list[str]) -> str:
        """Return the stack as of the release that the row names; as written if it names none.

        A release has a column, or stands in the cell of the framework or the source, such as
        "Megatron-Bridge docs/performance-summary.md [26.06, Pre-Training Performance]".
        """
        name, release = split_reference(stack)
        known = releases_of(name) if name in list_stacks() else ()
        if release or not known:
            return stack
        cells = (self.cells.get(title, "") for title in (*TEXTS["framework"], *TEXTS["source"]))
        texts = [text for text in map(_framework, cells) if stack_of_framework(text) == name]
        texts.insert(0, self.text("release"))
        numbers = [dict.fromkeys(_RELEASE.findall(text)) for text in texts]
        written = next((number for number in numbers if number), None)
        if written is None or len(written) > 1:
            return stack
        (release,) = written
        if latest_until(release, known) is None:
            assumed.append(f"release {release} of {name}, which is unknown: the newest one")
            return stack
        return f"{name}{SEPARATOR}{release}"

    def _add_software(self, fields: Fields, settings: RunSettings, assumed: list[str]) -> None:
        """Add the software stack: --software, the framework that the row names, the usual one."""
        if settings.software:
            fields.setdefault("software.stack", settings.software)
        if written := fields.get("software.stack"):
            fields["software.stack"] = self._as_of_release(written, assumed)
        if any(override.startswith("software") for override in settings.overrides):
            return
        stack = self._stack or settings.usual_software
        if stack and "software.stack" not in fields:
            fields["software.stack"] = stack = self._as_of_release(stack, assumed)
            of = f" of {self.text('framework')}" if self._stack else ""
            assumed.append(f"software{of}: {stack}, which --software changes")
        if fields.get("precision.compute") == "fp8" and "precision.fp8_recipe" not in fields:
            library = load_stack(fields.get("software.stack", DEFAULT_STACK)).fp8_library.value
            fields |= _RECIPE_OF.get(library, {})


def _framework(text: str) -> str:
    return _JOINED_RELEASE.sub(r" \1.\2", text.lower())


def _add_layout(fields: Fields, assumed: list[str]) -> None:
    """Divide layers over chunks of which their number is no multiple, as frameworks do.

    Megatron-LM and torchtitan count embedding and loss as layers if they then divide. Otherwise
    Megatron-Bridge's recipes of DeepSeek-V3 print a layout in which the last chunk has fewer layers
    (set_deepseek_v3_pipeline_model_parallel_layout): 61 layers on 16 chunks are 15 times 4 and 1.
    """
    chunks = fields.get("parallelism.pipeline", 1) * fields.get("parallelism.interleave", 1)
    layers = fields.get("model.num_layers", 0)
    if "parallelism.layout" in fields or chunks < 2 or layers % chunks == 0:
        return
    share, rest = divmod(layers + 2, chunks)
    most = -(-layers // chunks)
    if not rest:
        sizes = [share - 1, *[share] * (chunks - 2), share - 1]
        assumed.append("embedding and loss count as a layer each, because the layers do not divide")
    elif (last := layers - (chunks - 1) * most) > 0:
        sizes = [*[most] * (chunks - 1), last]
        assumed.append(f"chunks have {most} layers, the last {last}, because they do not divide")
    else:
        return
    predicted = fields.get("model.mtp_num_layers", 0)
    loss = "m" * (predicted if isinstance(predicted, int) and predicted < layers else 0) + "L"
    fields["parallelism.layout"] = "|".join(
        "E" * (chunk == 0) + "t" * size + loss * (chunk == chunks - 1)
        for chunk, size in enumerate(sizes)
    )


def _cell(name: str, text: str) -> Fields:
    return read(name, text, lambda text: fields_of(name, text))


def read(name: str, text: str, reader: Callable[[str], Value]) -> Value:
    """Read a cell; refuse the row, with the name of the column, if it is unreadable."""
    try:
        return reader(text)
    except UnreadableCell as error:
        raise RefusedRow(f'{name} is "{text}", but {error}') from None


def _yaml_value(name: str, text: str) -> Any:
    """Return the value of a cell as YAML has it, as --set reads it."""
    return parse_value(text, Location(f"--set {name}={text}"))


def _document(fields: Fields, location: Location) -> YamlDocument:
    """Return fields as the document of a scenario, all at one place."""
    data: dict[str, Any] = {}
    # A section of the shipped model comes before the fields of it that the row has.
    for name, value in sorted(fields.items(), key=lambda field: field[0].count(".")):
        *sections, last = name.split(".")
        inside = data
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[last] = dict(value) if isinstance(value, Mapping) else value
    return YamlDocument(data, Positions({(): Place(location, location)}))


def _option(name: str, value: Any) -> str:
    """Return an argument as a command line has it; "true" is a flag alone."""
    text = str(value).strip()
    flag = f"--{name.lstrip('-')}"
    return flag if text.lower() == "true" else f"{flag} {' '.join(map(shlex.quote, text.split()))}"
