"""The fields of a config of Megatron-Bridge or NeMo, by their dotted names, and their words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simtrain.base.strict_yaml import YamlDocument
from simtrain.errors import InputError, Location
from simtrain.importing.megatron.arguments import TABLE
from simtrain.importing.python_config import Built, PythonSource, Symbol, unknown_in
from simtrain.importing.table import WordsFile, WordTable

WORDS = WordsFile(Path(__file__).with_name("words.toml"))


def table_of(tool: str) -> WordTable:
    """Return the table of a tool: Megatron-LM's arguments, and the tool's own words."""
    return dataclasses.replace(
        TABLE,
        kind="field",
        source=tool,
        mapped=dict(TABLE.mapped) | WORDS.words("fields"),
        not_modelled=dict(TABLE.not_modelled) | WORDS.effects("not_modelled"),
        without_effect=TABLE.without_effect | WORDS.names("without_effect"),
    )


def refuse_family(name: str, place: Location | None) -> None:
    """Check that the name of a class or model is not of a kind that simtrain does not have.

    Raises:
        InputError: the model has such a part (E877).
    """
    for pattern, part in WORDS.section("missing").items():
        if re.search(pattern, name[:500].lower()):
            raise InputError.of(
                "E877",
                f"{name[:100]} is a model with a part that simtrain does not have: {part}",
                place,
                "import a model of transformer layers only",
                "a GPT without this part would give a wrong time and memory",
            )


TARGET = "_target_"
"""The key whose value is the class or function of an object."""
_MARKS = (TARGET, "_call_", "_partial_", "_convert_", "_recursive_")
_REFERENCE = re.compile(r"\$\{\s*(\.*)([\w.]+)\s*\}")
_MOST_STEPS = 20


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a config.

    Args:
        value: its value.
        place: its position.
        unknown: the expression that it depends on and that the file does not determine, or None.
        reason: why that is unknown.
    """

    value: Any
    place: Location | None
    unknown: str | None = None
    reason: str = ""


@dataclass
class Config:
    """A config as fields by dotted names; `model._target_` is the class of the object `model`."""

    fields: dict[str, Field] = field(default_factory=dict)

    def value(self, name: str, default: Any = None) -> Any:
        """Return the value of a field; the default if it is absent, null or unknown."""
        entry = self.fields.get(name)
        return default if entry is None or entry.value is None else entry.value

    def target(self, name: str) -> str:
        """Return the last word of the class or function of an object, or ""."""
        return str(self.value(f"{name}.{TARGET}", "")).rpartition(".")[2]

    def section(self, *names: str) -> Iterator[tuple[str, str, Field]]:
        """Yield the dotted name, the last words and the field of each field of sections."""
        for dotted, entry in self.fields.items():
            for name in names:
                if dotted.startswith(f"{name}.") and not dotted.endswith(_MARKS):
                    yield dotted, dotted[len(name) + 1 :], entry

    def with_defaults(self, defaults: Mapping[str, Any]) -> Config:
        """Return the config with values of fields that it does not have."""
        added = {name: Field(value, None) for name, value in defaults.items()}
        return Config(added | self.fields)


def config_of_document(document: YamlDocument) -> Config:
    """Return the fields of a YAML file; references such as ${model.seq_length} are followed."""
    flat = dict(_flat(document.data, ()))
    named = {".".join(map(str, path)): value for path, value in flat.items()}
    fields: dict[str, Field] = {}
    for path, value in flat.items():
        name, place = ".".join(map(str, path)), document.positions.of_value(path)
        value, unknown = _resolved(name, value, named)
        reason = "which is not evaluated" if unknown else ""
        fields[name] = Field(value, place, unknown, reason)
    return Config(fields)


def _flat(data: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path and value of each field; the value of an object that is no call is its name.

    Lists of objects have their positions as names.
    """
    if isinstance(data, dict):
        if data.get("_call_") is False and isinstance(data.get(TARGET), str):
            yield path, data[TARGET]
            return
        for name, value in data.items():
            yield from _flat(value, (*path, name))
    elif isinstance(data, list) and any(isinstance(each, dict) for each in data):
        for number, value in enumerate(data):
            yield from _flat(value, (*path, number))
    else:
        yield path, data


def _resolved(name: str, value: Any, named: dict[str, Any]) -> tuple[Any, str | None]:
    """Return the value behind a reference, or the reference if it cannot be followed."""
    for _ in range(_MOST_STEPS):
        if not (isinstance(value, str) and "${" in value):
            return value, None
        match = _REFERENCE.fullmatch(value)
        if match is None:
            return None, value[:100]
        dots, target = match.groups()
        if dots:
            above = name.split(".")[: -len(dots)]
            target = ".".join([*above, target])
        if target not in named:
            target = target.partition(".")[2]  # a launcher's ${training.model.x} is model.x here
        if target not in named:
            return None, value[:100]
        name, value = target, named[target]
    return None, str(value)[:100]


def config_of_object(job: Built, source: PythonSource) -> Config:
    """Return the fields of an object of a Python file, and `_target_` of each object in it."""
    fields: dict[str, Field] = {}
    _add(fields, "", job, source)
    return Config(fields)


def _add(fields: dict[str, Field], name: str, job: Built, source: PythonSource) -> None:
    """Add the fields of an object."""
    start = f"{name}." if name else ""
    if job.symbol.name:
        place = source.place(job.node)
        fields[f"{start}{TARGET}"] = Field(job.symbol.name, place)
        for number, value in enumerate(job.positional):
            fields[f"{start}{number}"] = _field(value, source.place(job.node))
        if isinstance(job.receiver, Built):
            _add(fields, f"{start}receiver", job.receiver, source)
    for key, value in job.fields.items():
        _add_value(fields, f"{start}{key}", value, source.place(job.places[key]), source)
    for key, child in job.children.items():
        _add(fields, f"{start}{key}", child, source)
    for function, node in job.changes.items():
        fields[f"{start}{function}()"] = Field("called", source.place(node))


def _add_value(
    fields: dict[str, Field], name: str, value: Any, place: Location, source: PythonSource
) -> None:
    if isinstance(value, Built):
        if not value.is_object:
            fields[name] = _field(value, place)
        _add(fields, name, value, source)
    elif isinstance(value, list) and any(isinstance(each, Built) for each in value):
        for number, each in enumerate(value):
            _add_value(fields, f"{name}.{number}", each, place, source)
    else:
        fields[name] = _field(value, place)


def _field(value: Any, place: Location) -> Field:
    if isinstance(value, Symbol):
        if value.last in WORDS.section("constants"):
            return Field(WORDS.section("constants")[value.last], place)
        if value.last.isupper():
            return Field(None, place, value.last, "a constant of another file")
        return Field(value.name, place)  # a dtype, a function or a member of an enumeration
    unknown = unknown_in(value)
    if unknown:
        return Field(None, place, unknown.text, unknown.reason)
    return Field(value, place)
