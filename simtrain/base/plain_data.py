"""Values as plain data for JSON, by one function for all of them.

A dataclass becomes an object with a key for each field. If its keys are not its fields, the class
says so in `json_fields`: keys, and the attributes that they come from. Attributes of attributes
have dots, and are null if one on the way is None. `"**name"` puts the keys of an attribute among
the keys of the object. The documents describe the keys by the docstrings of these attributes.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, ClassVar

from simtrain.base.values import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text: its exact value, and the rounded text that a person reads.

    The value of a name with digits, such as of the op "h→4h", is its text.
    """

    value: float | str
    text: str


class Sentence(str):
    """Text that knows the numbers in it. Any function that takes text takes a sentence.

    Args:
        words: parts of the text in order. A `Number` adds its text and its exact value.
    """

    numbers: tuple[tuple[int, Number], ...]
    """Where the text of each number starts, and the number."""

    def __new__(cls, *words: str | Number) -> Sentence:
        """Join the words and note where numbers start."""
        text, numbers = "", []
        for word in words:
            if isinstance(word, Number):
                numbers.append((len(text), word))
                text += word.text
            else:
                inner = word.numbers if isinstance(word, Sentence) else ()
                numbers += [(len(text) + start, number) for start, number in inner]
                text += word
        sentence = super().__new__(cls, text)
        sentence.numbers = tuple(numbers)
        return sentence

    def numbers_json(self) -> list[dict[str, Any]]:
        """Return the numbers with the places of their text, in full precision."""
        return [{"start": start} | asdict(number) for start, number in self.numbers]


def joined_sentences(separator: str, sentences: Iterable[str]) -> Sentence:
    """Join texts as `str.join` does, and keep their numbers."""
    return Sentence(*[word for sentence in sentences for word in (separator, sentence)][1:])


def with_whole_numbers(text: str) -> Sentence:
    """Return a text whose whole numbers are exact as written: "5 of 31 passes"."""
    parts = re.split(r"(?<![\w.])([0-9]+)(?![\w.]*[0-9])", text)
    return Sentence(*(Number(int(part), part) if part.isdigit() else part for part in parts))


def name(text: str) -> Number:
    """Return a name that may have digits."""
    return Number(text, text)


def sentence_json(text: str) -> dict[str, Any]:
    """Return a text and its numbers as JSON data."""
    numbers = text.numbers_json() if isinstance(text, Sentence) else []
    return {"text": str(text), "numbers": numbers}


SCHEMA_VERSION = 2
"""Counts up when a key of a command's JSON is removed or changes its meaning."""
SPLICED = "**"
"""Prefix of attributes whose keys stand among those of the object."""


def keys(text: str) -> dict[str, str]:
    """Return `json_fields` from words such as "mfu", "cluster=scenario.cluster" or "**facts"."""
    words = (word.partition("=") for word in text.split())
    return {key: path or key.removeprefix(SPLICED) for key, _, path in words}


class PlainData:
    """A value that describes itself as plain data.

    Its class may have `json_fields`, and `json_omits_none`: keys that are left out if null.
    """

    __slots__ = ()
    json_fields: ClassVar[Mapping[str, str]]
    json_omits_none: ClassVar[frozenset[str]] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        return _object(self)


def plain_data(value: Any) -> Any:
    """Return a value as data of the types that JSON has, in full precision.

    Raises:
        TypeError: the value has no plain data.
        ValueError: a number is not finite.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no number {value}")
        return float(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Sentence):
        return {"text": str(value), "numbers": value.numbers_json()}
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(plain_data(key)): plain_data(item) for key, item in value.items()}
    if isinstance(value, PlainData) or dataclasses.is_dataclass(value):
        return _object(value)
    if hasattr(value, "model_dump"):  # pydantic takes as long to import as a list of names
        return value.model_dump(mode="json")
    if isinstance(value, Iterable):
        return [plain_data(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no plain data")


def _object(value: Any) -> dict[str, Any]:
    data: dict[str, Any] = {}
    left_out = value.json_omits_none if isinstance(value, PlainData) else frozenset()
    for key, path in json_fields(type(value)).items():
        item = plain_data(attribute(value, path))
        if key.startswith(SPLICED):
            data |= item or {}
        elif item is not None or key not in left_out:
            data[key] = item
    return data


def json_fields(cls: type) -> Mapping[str, str]:
    """Return the keys of a class's objects, and the attributes that they come from."""
    declared: Mapping[str, str] | None = getattr(cls, "json_fields", None)
    if declared is not None:
        return declared
    return {field.name: field.name for field in dataclasses.fields(cls)}


def attribute(value: Any, path: str) -> Any:
    """Return the attribute at a path with dots; None if one on the way is None."""
    for name in path.split("."):
        if value is None:
            return None
        value = getattr(value, name)
    return value
