"""A draft of an imported scenario: its fields, the source of each field, and its file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from simtrain.errors import InputError, Location, Problem
from simtrain.scenario import Scenario, check_scenario
from simtrain.scenario.words import spell_out_words
from simtrain.strict_yaml import (
    Document,
    Positions,
    apply_overrides,
    as_scalar,
    leaves,
    path_of,
    with_value,
)

DEFAULT = "default: not in the source"
"""The comment of a value that the source does not contain."""

_WIDTH = 100
_COMMENTS_AT = 34


@dataclass
class Draft:
    """A scenario during its import.

    Args:
        file: the imported file.
        what: its kind, such as "Megatron-LM's arguments".
        overrides: assignments of --set.
        data: the fields, as nested sections.
        comments: the comment of each field, by its path.
        places: the position of each field in the source, by its path.
        notes: one sentence for each setting that is not modelled, with its effect.
    """

    file: str
    what: str
    overrides: tuple[str, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    comments: dict[tuple[str | int, ...], str] = field(default_factory=dict)
    places: dict[tuple[str | int, ...], Location] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set(self, name: str, value: Any, comment: str, place: Location | None = None) -> None:
        """Set a field by its dotted name, with a comment on the source of the value."""
        path = _path(name)
        self.data = with_value(self.data, path, value, place)
        self.comments[path] = comment
        if place:
            for length in range(1, len(path) + 1):
                self.places.setdefault(path[:length], place)

    def append(self, name: str, comment: str) -> None:
        """Append text to the comment of a field."""
        self.comments[_path(name)] += f": {comment}"

    def override(self, name: str) -> int | None:
        """Return the integer that --set assigns to a field, or None."""
        values = [one.partition("=")[2] for one in self.overrides if path_of(one) == _path(name)]
        return int(values[-1]) if values and values[-1].strip().isdecimal() else None

    def note(self, source: str, text: str, place: Location | None = None) -> None:
        """Add a note about a setting that is not modelled: its place and its effect."""
        line = f", line {place.line}" if place and place.line else ""
        self.notes.append(f"{source}{line}: {text}")

    def finished(self, required: dict[str, str]) -> tuple[Scenario, str]:
        """Return the scenario after overrides and checks, and the text of its file.

        Args:
            required: fields without a default, each with its name in the source.

        Raises:
            InputError: missing or wrong values, or combinations that the framework refuses.
        """
        document = Document(self.data, Positions(self.places, self.places))
        for override in self.overrides:
            document = apply_overrides(spell_out_words(document), [override])
            path = path_of(override)
            within = [one for one in self.comments if one[: len(path)] == path]
            for one in within:
                del self.comments[one]
            self.comments[path] = "--set"
        document = spell_out_words(document)
        written = {".".join(map(str, path)) for path, _ in leaves(document.data)}
        missing = [
            Problem(
                "E873",
                f"{source} is missing",
                Location(self.file),
                fix=f"add {source}, or --set {name}=...",
            )
            for name, source in required.items()
            if name not in written
        ]
        if missing:
            raise InputError(missing)
        scenario = Scenario.from_document(document)
        check_scenario(scenario)
        return scenario, self._text(document.data)

    def _text(self, data: dict[str, Any]) -> str:
        lines = [f"# Imported by simtrain from {self.what}."]
        if self.notes:
            lines.append("# Settings that are not modelled, with their effect:")
            for note in self.notes:
                lines += textwrap.wrap(
                    note,
                    _WIDTH,
                    initial_indent="# - ",
                    subsequent_indent="#   ",
                    break_on_hyphens=False,
                )
        return "\n".join([*lines, *self._section(data, ())]) + "\n"

    def _section(self, data: dict[str, Any], path: tuple[str | int, ...]) -> Iterable[str]:
        for name, value in data.items():
            inside = (*path, name)
            indent = "  " * len(path)
            if isinstance(value, dict) and value:
                yield f"{indent}{name}:" + self._comment(inside, f"{indent}{name}:")
                yield from self._section(value, inside)
            else:
                line = f"{indent}{name}: {_as_yaml(value)}"
                yield line + self._comment(inside, line)

    def _comment(self, path: tuple[str | int, ...], line: str) -> str:
        if path not in self.comments:
            return ""
        return f"{' ' * max(2, _COMMENTS_AT - len(line))}# {self.comments[path]}"


def padded_vocabulary(tokens: int, unit: int) -> tuple[int, str]:
    """Return the vocabulary padded to a multiple of `unit`, as in Megatron-LM, and a comment."""
    padded = -(-tokens // unit) * unit
    return padded, f"{tokens} tokens, padded" if padded > tokens else f"{tokens} tokens"


def set_counts(draft: Draft) -> None:
    """Set parallelism and batch to defaults, for a source that only describes a model."""
    for name in ("tensor", "pipeline", "data"):
        draft.set(f"parallelism.{name}", draft.override(f"parallelism.{name}") or 1, DEFAULT)
    micro = draft.override("batch.micro") or 1
    draft.set("batch.micro", micro, DEFAULT)
    data = draft.data["parallelism"]["data"]
    draft.set("batch.global", micro * data, f"{DEFAULT}; micro x data")


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _as_yaml(value: Any) -> str:
    """Format a value as YAML."""
    if isinstance(value, str):
        is_plain = value.replace("_", "").replace("-", "").isalnum() and not value[0].isdigit()
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return value if is_plain and value not in ("true", "false", "null") else f'"{quoted}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    return "{}" if value == {} else as_scalar(value)
