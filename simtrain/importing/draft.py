"""An imported scenario in the making: its fields, where each came from, and its text."""

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

DEFAULT = "default: the source does not say"
"""The comment of a value that nobody wrote."""

_WIDTH = 100
_COMMENTS_AT = 34


@dataclass
class Draft:
    """The fields that were found so far.

    file: the file that is imported.
    what: its kind, such as "Megatron-LM's arguments".
    overrides: as --set gives them.
    notes: what the source has that is not modelled, and what it would change, a sentence each.
    """

    file: str
    what: str
    overrides: tuple[str, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    comments: dict[tuple[str | int, ...], str] = field(default_factory=dict)
    places: dict[tuple[str | int, ...], Location] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set(self, name: str, value: Any, comment: str, place: Location | None = None) -> None:
        """Set a field by its dotted name; the comment says where its value comes from."""
        path = _path(name)
        self.data = with_value(self.data, path, value, place)
        self.comments[path] = comment
        if place:
            for length in range(1, len(path) + 1):
                self.places.setdefault(path[:length], place)

    def append(self, name: str, comment: str) -> None:
        """Add to the comment of a field."""
        self.comments[_path(name)] += f": {comment}"

    def override(self, name: str) -> int | None:
        """The number that --set gives a field, from which other values follow."""
        values = [one.partition("=")[2] for one in self.overrides if path_of(one) == _path(name)]
        return int(values[-1]) if values and values[-1].strip().isdecimal() else None

    def note(self, source: str, text: str, place: Location | None = None) -> None:
        """Note what is not modelled: where it stands, and what it would change."""
        line = f", line {place.line}" if place and place.line else ""
        self.notes.append(f"{source}{line}: {text}")

    def finished(self, required: dict[str, str]) -> tuple[Scenario, str]:
        """The scenario with overrides, checked by every rule, and its file.

        Args:
            required: fields that have no default, and what the source would give them with.

        Raises:
            InputError: a missing or wrong value, or a combination that the framework refuses.
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
                fix=f"give {source}, or --set {name}=...",
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
            lines.append("# Not modelled, and what it changes:")
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
    """The vocabulary as Megatron-LM pads it, to a multiple of `unit`, and a comment."""
    padded = -(-tokens // unit) * unit
    return padded, f"{tokens} tokens, padded" if padded > tokens else f"{tokens} tokens"


def set_counts(draft: Draft) -> None:
    """Set the split and the batch where a source has a model alone."""
    for name in ("tensor", "pipeline", "data"):
        draft.set(f"parallelism.{name}", draft.override(f"parallelism.{name}") or 1, DEFAULT)
    micro = draft.override("batch.micro") or 1
    draft.set("batch.micro", micro, DEFAULT)
    data = draft.data["parallelism"]["data"]
    draft.set("batch.global", micro * data, f"{DEFAULT}; micro x data")


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _as_yaml(value: Any) -> str:
    """A value as YAML reads it again."""
    if isinstance(value, str):
        is_plain = value.replace("_", "").replace("-", "").isalnum() and not value[0].isdigit()
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return value if is_plain and value not in ("true", "false", "null") else f'"{quoted}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    return "{}" if value == {} else as_scalar(value)
