"""Text with numbers that states the exact value of each number beside its rounded digits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


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
