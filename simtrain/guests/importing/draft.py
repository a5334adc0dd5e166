"""A draft of an imported scenario: its fields, the source of each field, and its file."""

from __future__ import annotations

import math
import textwrap
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from pydantic import BaseModel

from simtrain.base.importer import ImportRequest
from simtrain.base.strict_yaml import (
    Positions,
    YamlDocument,
    apply_overrides,
    as_scalar,
    path_of,
    with_value,
)
from simtrain.base.strict_yaml.reading import Place
from simtrain.base.values import dataclass, field
from simtrain.errors import InputError, Location, Problem, printable
from simtrain.guests.importing.gpus import BLACKWELL, HOPPER, NamedMachine
from simtrain.guests.importing.settings import MAX_NAMES, Effect, Setting, unknown_settings
from simtrain.guests.importing.table import WordTable
from simtrain.scenario import Scenario, check_scenario
from simtrain.scenario.section import spell_out_words

DEFAULT = "default: not in the source"
"""The comment of a value that the source does not contain."""

_WIDTH = 100
_COMMENTS_AT = 34


@dataclass
class Draft:
    """A scenario during its import.

    Args:
        request: what is imported.
        what: its kind, such as "Megatron-LM's arguments".
        default: the comment of values that the framework has by default.
        table: what becomes of each word of the source.
        settings: the settings of the source, by name.
        file: the imported file; by default the source of the request.
        data: the fields, as nested sections.
        comments: the comment of each field, by its path.
        places: the position of each field in the source, by its path.
        notes: one sentence for each setting that is not modelled, with its effect.
        replicas: the assignment that follows from --gpus, or "".
        assumptions: what the source leaves open and the scenario takes for granted.
        machine: the GPUs that the source names, or None.
        ignored: the settings of the notes, as the source spells them.
        overrides: assignments of --set and of --gpus.
        num_settings: the number of settings that were read.
        unknown_machine: what is not known of the machine, after `scenario`; "" if it is.
        likely_clusters: the profiles of the likeliest two machines.
    """

    request: ImportRequest
    what: str
    default: str
    table: WordTable
    settings: Mapping[str, Setting]
    file: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    comments: dict[tuple[str | int, ...], str] = field(default_factory=dict)
    places: dict[tuple[str | int, ...], Location] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    machine: NamedMachine | None = None
    replicas: str = ""
    ignored: list[str] = field(default_factory=list)
    overrides: tuple[str, ...] = field(init=False)
    num_settings: int = field(init=False)
    unknown_machine: str = field(init=False, default="")
    likely_clusters: tuple[str, str] = field(init=False, default=("", ""))

    def __post_init__(self) -> None:
        self.file = self.file or self.request.file
        self.overrides = tuple(self.request.overrides)
        self.num_settings = len(self.settings)

    def given(self, name: str) -> Setting | None:
        """Return a setting if the source has a value for it."""
        return self.settings.get(name)

    def origin(self, *names: str, otherwise: str = "") -> str:
        """Return a comment with the names and lines of the settings that are given."""
        settings = [setting for name in names if (setting := self.given(name))]
        if not settings:
            return otherwise or self.default
        words = ", ".join(dict.fromkeys(setting.spelled for setting in settings))
        lines = {setting.place.line for setting in settings if setting.place and setting.place.line}
        return f"{words}, line {', '.join(map(str, sorted(lines)))}" if lines else words

    def place(self, *names: str) -> Location | None:
        """Return the position of the first setting that is given."""
        return next((setting.place for name in names if (setting := self.given(name))), None)

    def set(
        self, name: str, value: Any, *settings: str, otherwise: str = "", detail: str = ""
    ) -> None:
        """Set a field from settings, with their names and lines as comment.

        Args:
            name: dotted name of the field.
            value: its value.
            settings: names of the settings that it follows from.
            otherwise: the comment if none of them is given; by default the draft's `default`.
            detail: text that is appended to the comment.
        """
        comment = self.origin(*settings, otherwise=otherwise) + (f": {detail}" if detail else "")
        self.set_because(name, value, comment, self.place(*settings))

    def set_because(
        self, name: str, value: Any, comment: str, place: Location | None = None
    ) -> None:
        """Set a field by its dotted name, with a comment that gives the reason of the value."""
        path = _path(name)
        self.data = with_value(self.data, path, value, place)
        self.comments[path] = comment
        if place:
            for length in range(1, len(path) + 1):
                self.places.setdefault(path[:length], place)

    def override(self, name: str) -> int | None:
        """Return the integer that --set assigns to a field, or None."""
        text = self.override_text(name) or ""
        return int(text) if text.isdecimal() else None

    def override_text(self, name: str) -> str | None:
        """Return the text that --set assigns to a field, or None."""
        texts = (
            override.partition("=")[2].strip()
            for override in reversed(self.overrides)
            if path_of(override) == _path(name)
        )
        return next(texts, None)

    def use_gpus(self, *sizes: Any) -> None:
        """Set the data-parallel replicas for the number of GPUs of --gpus, as --set would.

        `sizes` are the tensor, context and pipeline-parallel ranks.

        Raises:
            InputError: the number of GPUs is not a multiple of the ranks.
        """
        gpus = self.request.gpus
        if gpus is None:
            return
        # Other values are refused with the scenario's.
        ranks = math.prod(size for size in sizes if type(size) is int and size > 0)
        data, rest = divmod(gpus, ranks)
        if rest or not data:
            message = f"--gpus is {gpus}, not a multiple of tensor x context x pipeline ({ranks})"
            fix = f"write --gpus {max(round(gpus / ranks), 1) * ranks}, or --set another"
            raise InputError.of("E880", message, fix=fix)
        self.replicas = f"parallelism.data={data}"
        self.overrides = (self.replicas, *self.overrides)

    def note(self, source: str | Setting, text: str, place: Location | None = None) -> None:
        """Add a note about a setting that is not modelled: its words and line, and its effect."""
        words = name = source
        if isinstance(source, Setting):
            words, place, name = source.words, source.place, source.spelled
        self.ignored.append(str(name))
        line = f", line {place.line}" if place and place.line else ""
        self.notes.append(f"{words}{line}: {text}")

    def value(self, name: str) -> Any:
        """Return our value of a word that sets a field, or the table's default.

        Raises:
            InputError: the word can have some values only, and has another one (E872).
        """
        setting, word = self.given(name), self.table.mapped[name]
        if setting is None:
            return word.our_default
        if not word.values:
            return setting.value
        if isinstance(setting.value, str) and setting.value in word.values:
            return word.values[setting.value]
        fix = f"write one of {', '.join(word.values)}"
        raise InputError.of("E872", f"{setting.words} is not modelled", setting.place, fix)

    def set_words(self) -> None:
        """Set the field of each word that the source has, or whose default the table has.

        The number of GPUs sets the replicas, and settings that are not modelled are noted.

        Raises:
            InputError: settings that the table does not have, or values that cannot be used.
        """
        self.refuse_unknown()
        for name, word in self.table.mapped.items():
            if self.given(name) or word.default is not None:
                self.fill(name)
        split = self.data.get("parallelism", {})
        axes = ("tensor", "context", "pipeline")
        self.use_gpus(*(self.override(f"parallelism.{axis}") or split.get(axis) for axis in axes))
        self.note_effects()

    def fill(self, *names: str) -> None:
        """Set the field of each word to its value or the table's default."""
        for name in names:
            self.set(self.table.mapped[name].field, self.value(name), name)

    def copy(self, *names: str) -> None:
        """Set the field of each word whose value differs from the table's default."""
        mapped = self.table.mapped
        self.fill(*(name for name in names if self.value(name) != mapped[name].our_default))

    def refuse_unknown(self) -> None:
        """Raise an error that names all settings that the table does not have, or note them."""
        if problem := self.unknown_settings():
            raise InputError([problem])

    def unknown_settings(self, suggested: Collection[str] = ()) -> Problem | None:
        """Return the problem that names all settings that the table does not have.

        With --ignore-unknown, note them and return None.

        Args:
            suggested: names that are suggested for similar ones; by default the table's words.
        """
        table = self.table
        unknown = [setting for name, setting in self.settings.items() if name not in table]
        if unknown and not self.request.ignore_unknown:
            names = suggested or table.words
            return unknown_settings(unknown, table.kind, table.source, names)
        for setting in unknown[:MAX_NAMES]:
            self.note(setting, "ignored: simtrain does not know it, and it may have an effect")
        if (more := len(unknown) - MAX_NAMES) > 0:
            self.note(f"{more:,} more {table.kind}s", "ignored: simtrain does not know them")
        return None

    def note_effects(self, effects: Mapping[str, Effect] | None = None) -> None:
        """Note each setting with an effect that is not modelled, in the order of the source.

        Args:
            effects: the effect of each setting; by default the table's.
        """
        effects = self.table.not_modelled if effects is None else effects
        for name in self.settings:
            setting, effect = self.given(name), effects.get(name)
            if setting and effect and effect.applies(setting.value):
                self.note(setting, effect.text)

    def is_default(self, name: str) -> bool:
        """Whether neither the source nor --set says anything about a field.

        After `scenario` or `finished`, which apply the overrides.
        """
        return self.comments.get(_path(name), "").startswith(DEFAULT)

    def finished(self) -> tuple[Scenario, str]:
        """Return the scenario after overrides and checks, and the text of its file.

        Raises:
            InputError: missing or wrong values, or combinations that the framework refuses.
        """
        scenario = self.scenario()
        check_scenario(scenario)
        return scenario, self.text()

    def scenario(self) -> Scenario:
        """Return the scenario after overrides, without checking the rules on combinations.

        Raises:
            InputError: missing or wrong values.
        """
        self._set_cluster()
        places = {path: Place(location, location) for path, location in self.places.items()}
        document = YamlDocument(self.data, Positions(places))
        for override in self.overrides:
            document = apply_overrides(spell_out_words(document), [override])
            path = path_of(override)
            kept = {
                field: self.comments[field] for field in self.comments if field[: len(path)] != path
            }
            self.comments = kept | {path: "--gpus" if override == self.replicas else "--set"}
            if override == self.replicas:
                place = Location(f"--gpus {self.request.gpus}")
                document = YamlDocument(document.data, document.positions.moved([path], place))
        document = spell_out_words(document)
        if missing := self.missing(missing_fields(document.data, Scenario)):
            raise InputError(missing)
        self.data = document.data
        return Scenario.from_document(document).with_notes([*self.assumptions, *self.notes])

    def missing(self, fields: Iterable[str]) -> list[Problem]:
        """Return a problem for each field that is missing, with the word that would set it."""
        place, kind = Location(self.file), f"{self.table.kind} of {self.table.source}"
        return [
            Problem("E873", f"{word} is missing", place, fix=f"add {word}, or --set {name}=...")
            if (word := self.word_of(name))
            else Problem(
                "E873", f"{name} is missing: no {kind} sets it", place, fix=f"add --set {name}=..."
            )
            for name in fields
        ]

    def word_of(self, name: str) -> str:
        """Return the first word of the source that sets a field, as errors spell it, or ""."""
        words = (word for word, each in self.table.mapped.items() if each.field == name)
        return next(words, "")

    def _set_cluster(self) -> None:
        """Set the cluster: that of the source's GPU, or else the likeliest, which is not used."""
        if self.override_text("cluster") is not None:
            return
        precision = self.data.get("precision", {})
        compute, recipe = precision.get("compute"), precision.get("fp8_recipe")
        clusters, capability = ("h100_sxm", "a100_sxm4_80gb"), 0
        if compute == "fp4" or recipe == "mxfp8":
            clusters, capability = ("b200_sxm", "gb200"), BLACKWELL
        elif compute == "fp8":
            clusters, capability = ("h100_sxm", "b200_sxm"), HOPPER
        self.likely_clusters = clusters
        self.unknown_machine = "the file does not say its machine"
        if self.machine:
            named = self.machine.gpu(capability)
            text = self.machine.assumption(named)
            if named.cluster:
                self.unknown_machine = ""
                # The GPU matters most.
                self.assumptions[:0] = [text] if text and text not in self.assumptions else []
                line = self.machine.place.line if self.machine.place else None
                words = self.machine.words + (f", line {line}" if line else "")
                comment = f"{words}: {named.name} ({named.form})"
                self.set_because("cluster", named.cluster, comment, self.machine.place)
                return
            self.unknown_machine = text
        self.set_because("cluster", clusters[0], DEFAULT)

    def text(self) -> str:
        """Return the text of the scenario's file, after `scenario`."""
        lines = [*chain(*(_wrapped(text, "# ", "#   ") for text in self.assumptions))]
        lines.append(f"# Imported by simtrain from {self.what}.")
        if self.notes:
            lines.append("# Settings that are not modelled, with their effect:")
            lines += chain(*(_wrapped(note, "# - ", "#   ") for note in self.notes))
        return printable("\n".join([*lines, *self._section(self.data, ())]) + "\n")

    def _section(self, data: dict[str, Any], path: tuple[str | int, ...]) -> Iterable[str]:
        for name, value in data.items():
            inside = (*path, name)
            is_section = isinstance(value, dict) and value
            line = f"{'  ' * len(path)}{name}:" + ("" if is_section else f" {_as_yaml(value)}")
            gap = " " * max(2, _COMMENTS_AT - len(line))
            yield line + (f"{gap}# {self.comments[inside]}" if inside in self.comments else "")
            if is_section:
                yield from self._section(value, inside)


def _wrapped(text: str, indent: str, later: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=later, break_on_hyphens=False
    )


def padded_vocabulary(tokens: int, unit: int) -> tuple[int, str]:
    """Return the vocabulary padded to a multiple of `unit`, as in Megatron-LM, and a comment."""
    padded = -(-tokens // unit) * unit
    return padded, f"{tokens} tokens, padded" if padded > tokens else f"{tokens} tokens"


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _as_yaml(value: Any) -> str:
    if isinstance(value, str):
        is_plain = value.replace("_", "").replace("-", "").isalnum() and not value[0].isdigit()
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return value if is_plain and value not in ("true", "false", "null") else f'"{quoted}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    return "{}" if value == {} else as_scalar(value)


def missing_fields(
    data: Mapping[str, Any], section: type[BaseModel], prefix: str = ""
) -> Iterator[str]:
    """Yield the dotted name of each field without a default that the data of a section lack.

    Args:
        data: fields by name, with nested sections.
        section: the type of the section; `Scenario` for a whole scenario.
        prefix: begins each name, such as "model.".
    """
    for attribute, each in section.model_fields.items():
        key = str(each.validation_alias or attribute)
        types = (each.annotation, *typing.get_args(each.annotation))
        sections = [
            kind for kind in types if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        is_missing = key not in data and each.is_required()
        if sections and (is_missing or isinstance(data.get(key), dict)):
            yield from missing_fields(data.get(key, {}), sections[0], f"{prefix}{key}.")
        elif is_missing:
            yield f"{prefix}{key}"
