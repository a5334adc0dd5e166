"""Functions that find every number that a page shows or reads aloud, and check its source."""

import json
import re
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from typing import Any

from simtrain.base.strict_yaml import as_scalar
from simtrain.render.html.elements import Html, plain_text
from tests.helpers.packed_arrays import unpacked
from tests.render.html.pages import EMPTY

NOT_FIGURES = ("bf16", "fp16", "tf32", "fp32", "mxfp8", "fp8_block", "fp8", "SHA-256")
"""Names whose digits are not figures: data types and a hash function."""
NOT_READ = ("script", "style", "code.place")
"""Elements without figures: scripts, styles, and the places of numbers in the data."""
TICKS = ("tick", "ordinal", "setting")
"""Classes of labels of axes, numbers of rows and names of settings."""
HEARD = ("title", "alt", "placeholder", "aria-label", "aria-valuetext", "aria-description")
"""Attributes that browsers show or screen readers read aloud."""
_MARKS = ("data-at", "data-text", "data-key")
_FOUR_DIGITS = {
    **{"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9},
    **{"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
}
_UNITS = {
    **_FOUR_DIGITS,
    **{"": 1, "×": 1, "%": 0.01},
    **{"GB/s": 1e9, "TB/s": 1e12, "TFLOP/s": 1e12, "FLOP": 1, "FLOP/s": 1, "k": 1e3, "M": 1e6},
}


@dataclass
class MarkedText:
    """Text of an element whose attributes state its source."""

    about: dict[str, str]
    text: str = ""

    @property
    def pointers(self) -> list[str]:
        """Return the JSON pointers of the data from which the text is computed."""
        names = (*_MARKS, "data-of", "data-minus")
        return [self.about[name] for name in names if name in self.about]

    def expected(self, data: Any) -> Any:
        """Return the number or text that the data contain there."""
        value = value_at(data, self.pointers[0])
        if "data-of" in self.about:
            whole = value_at(data, self.about["data-of"])
            return value / whole if whole else 0.0
        return (
            value - value_at(data, self.about["data-minus"])
            if "data-minus" in self.about
            else value
        )


@dataclass
class Reader(HTMLParser):
    """Parser that collects texts with a source, and numbers without one."""

    shown: list[MarkedText] = field(default_factory=list)
    unmarked: list[str] = field(default_factory=list)
    _open: list[tuple[str, dict[str, str], MarkedText | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = {name: value or "" for name, value in attrs}
        for name in HEARD:
            self._attribute(tag, name, about)
        mark = MarkedText(about) if any(name in about for name in _MARKS) else None
        if mark:
            self.shown.append(mark)
        if tag not in EMPTY:
            self._open.append((tag, about, mark))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for tag, about, mark in reversed(self._open):
            if f"{tag}.{about.get('class')}" in NOT_READ or tag in NOT_READ:
                return
            if about.get("class") in TICKS:
                return
            if mark:
                mark.text += data
                return
        if _has_figure(data):
            self.unmarked.append(f"{'/'.join(tag for tag, _, _ in self._open[-3:])}: {data}")

    def _attribute(self, tag: str, name: str, about: dict[str, str]) -> None:
        if name not in about or not _has_figure(about[name]):
            return
        words = about.get(f"data-{name}")
        if words is None or plain_text(Html(words)) != about[name]:
            self.unmarked.append(f"{tag} {name}: {about[name]}")
            return
        inner = Reader()
        inner.feed(words)
        self.shown += inner.shown
        self.unmarked += inner.unmarked


def _has_figure(text: str) -> bool:
    for name in NOT_FIGURES:
        text = re.sub(rf"\b{name}\b", "", text)
    return any(letter.isdigit() for letter in text)


def read(text: str) -> Reader:
    """Read a page, or its HTML after scripts have changed it."""
    reader = Reader()
    # A page has its title twice, as <title> and as its first heading, which states its source.
    reader.feed(re.sub(r"<title>.*?</title>", "", text, count=1))
    reader.close()
    return reader


def wrong_numbers(reader: Reader, data: Any) -> list[str]:
    """Return a line for each number that has no source or differs from the data."""
    wrong = [f"no source: {one}" for one in reader.unmarked]
    for one in reader.shown:
        try:
            expected = one.expected(data)
        except (KeyError, IndexError, TypeError, ValueError):
            wrong.append(f"not in the data: {one}")
            continue
        if not _is_equal(one, expected):
            wrong.append(f"not {expected!r}: {one}")
    return wrong


def _is_equal(one: MarkedText, expected: Any) -> bool:
    if "data-key" in one.about:
        return unescaped(one.about["data-key"].rpartition("/")[2]) == one.text
    if "data-text" in one.about:
        return as_scalar(expected) == one.text
    value = one.about.get("value") or one.about["data-value"]
    assert isinstance(expected, int | float), one
    return float(value) == expected and is_rounded(one.text, expected)


def is_rounded(text: str, value: float) -> bool:
    """Return whether a text is a value, correctly rounded."""
    found = re.fullmatch(r"([+−-]?)([\d,]+(?:\.(\d+))?)(?:e([+-]\d+))?\s*([A-Za-zµ×%/]*).*", text)
    if not found:
        return (text == "none" and abs(value) < 1e-9) or text == str(value).lower()
    sign, digits, decimals, power, unit = found.groups()
    last = _UNITS[unit] * 10.0 ** (int(power or 0) - len(decimals or ""))
    shown = float(digits.replace(",", "") + f"e{power or 0}") * _UNITS[unit]
    exact = value if sign else abs(value)
    shown = -shown if sign in ("-", "−") else shown
    # Times and bytes have four significant digits, without trailing zeros.
    most = 5e-4 * abs(exact) if unit in _FOUR_DIGITS and abs(exact) >= 1e-12 else 0.5 * last
    return shown == exact or abs(shown - exact) <= min(most, 0.5 * last) * (1 + 1e-9)


def value_at(data: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer, also inside a packed array."""
    for key in map(unescaped, pointer.split("/")[1:]):
        if isinstance(data, dict) and "zlib" in data and key.isdigit():
            data = unpacked(data).tolist()
        data = data[int(key)] if isinstance(data, list) else data[key]
    return data


def source_of(pointer: str, data: Any) -> tuple[dict[str, Any], str]:
    """Return the source that a page states for a number, and the number's place in the JSON of the
    source's command.
    """
    for source in data["number_sources"]:
        if found := re.fullmatch(source["places"], pointer):
            return source, source["prefix"] + found.groups()[-1]
    raise AssertionError(f"no source: {pointer}")


def unescaped(key: str) -> str:
    """Unescape a key of a JSON pointer."""
    return key.replace("~1", "/").replace("~0", "~")


def data_of(text: str) -> Any:
    """Return the data that a page embeds for its scripts."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(unescape(found) if "&quot;" in found else found)
