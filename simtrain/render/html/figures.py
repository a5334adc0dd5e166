"""Numbers on a page. Each is read from the page's data and states its place there.

`test_numbers` reads whole pages and refuses digits that are not written by this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from simtrain.base.strict_yaml import as_scalar
from simtrain.render.html.elements import Html, element, joined
from simtrain.units import format_bytes, format_seconds

Key = str | int


@dataclass(frozen=True, slots=True)
class Figures:
    """A part of a page's data, or one number in it.

    A number on the page is a `<data>` element with the value in full precision, the place of the
    value in the data (a JSON pointer, RFC 6901), and the rounded text that a person reads. A page
    shows only numbers that its data contain.

    Args:
        data: all data of the page, of the types that JSON has.
        path: keys from the root of the data to this part.
    """

    data: Any
    path: tuple[Key, ...] = ()

    def at(self, *keys: Key) -> Figures:
        """Return the part below this one at the given keys."""
        return Figures(self.data, (*self.path, *keys))

    def each(self) -> Iterator[Figures]:
        """Yield the items of this list, or the values of this object."""
        value = self.value
        return map(self.at, value if isinstance(value, dict) else range(len(value)))

    @property
    def key(self) -> Html:
        """The key of this part in the object that contains it.

        If it has digits, a `<span>` element states its place.
        """
        return _spelled(str(self.path[-1]), data_key=self.pointer)

    @property
    def value(self) -> Any:
        """Data of this part."""
        value = self.data
        for key in self.path:
            value = value[key]
        return value

    @property
    def pointer(self) -> str:
        """Place of this part in the data, as a JSON pointer."""
        keys = (str(key).replace("~", "~0").replace("/", "~1") for key in self.path)
        return "".join(f"/{key}" for key in keys)

    def number(self, text: Callable[[Any], str]) -> Html:
        """Return a `<data>` element of this number, shown as `text` formats it."""
        return element("data", text(self.value), value=repr(self.value), data_at=self.pointer)

    def svg_number(self, text: Callable[[Any], str]) -> Html:
        """Return the same for the text of a picture, which has no `<data>` elements."""
        shown, value = text(self.value), repr(self.value)
        return element("tspan", shown, data_value=value, data_at=self.pointer)

    @property
    def words(self) -> Html:
        """The text of this part, letter by letter, or a setting as YAML writes it.

        If it has digits, a `<span>` element states its place.
        """
        return _spelled(as_scalar(self.value), data_text=self.pointer)

    @property
    def setting(self) -> Html:
        """The value of a setting as YAML writes it."""
        is_number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        return self.number(as_scalar) if is_number else self.words

    def sentence(self, name: str) -> Html:
        """Return the text at a key, with the numbers that `sentences.Sentence` lists for it."""
        numbers_key = "numbers" if name == "text" else f"{name}_numbers"
        text, numbers = self.value[name], self.value.get(numbers_key, [])
        words: list[str] = []
        end = 0
        for place, number in enumerate(numbers):
            words.append(text[end : number["start"]])
            end = number["start"] + len(number["text"])
            exact = self.at(numbers_key, place, "value")
            is_name = isinstance(number["value"], str)
            words.append(exact.words if is_name else exact.number(lambda _: number["text"]))  # noqa: B023
        return joined(*words, text[end:])

    @property
    def seconds(self) -> Html:
        """The number as a duration: "37.83 s"."""
        return self.number(format_seconds)

    @property
    def bytes(self) -> Html:
        """The number as bytes, in a binary unit."""
        return self.number(format_bytes)

    @property
    def percent(self) -> Html:
        """The number, a fraction of 1, as a percentage."""
        return self.number(lambda share: f"{share:.1%}")

    @property
    def count(self) -> Html:
        """The number as an integer with thousands separators."""
        return self.number(lambda number: f"{number:,.0f}")

    def share_of(self, whole: Figures, text: Callable[[float], str] = "{:.1%}".format) -> Html:
        """Return this number divided by another one, by default as a percentage."""
        share = self.value / whole.value if whole.value else 0.0
        return element(
            "data",
            text(share),
            value=repr(share),
            data_at=self.pointer,
            data_of=whole.pointer,
        )


def _spelled(text: str, **place: str) -> Html:
    """Return text, in an element with its place if it has digits."""
    has_digits = any(letter.isdigit() for letter in text)
    return element("span", text, **place) if has_digits else joined(text)
