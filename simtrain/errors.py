"""User errors in the style of rustc and ruff: code, location, reason, fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar, Self

_MAX_EXCERPT_WIDTH = 100
_MAX_WORD, _MAX_PART = 300, 2000
# Control characters except tab and line feed, halves of surrogate pairs, the characters that change
# the direction of text, and the two that XML does not allow.
_CONTROL = re.compile(
    "[\0-\b\v-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_LONG_WORD = re.compile(rf"\S{{{_MAX_WORD},}}")


class SimtrainError(Exception):
    """Base class of all errors of simtrain; `exit_code` is the command line's exit code."""

    exit_code: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Location:
    """A position in a file, counted from 1; `line` and `column` are None for other inputs."""

    file: str
    line: int | None = None
    column: int | None = None
    source_line: str = ""

    def __str__(self) -> str:
        parts = (self.file, self.line, self.column)
        return ":".join(str(part) for part in parts if part is not None)

    def excerpt(self) -> str:
        """The source line with a caret under the column; empty without a line."""
        if self.line is None or self.column is None or not self.source_line:
            return ""
        source, offset = _window(printable(self.source_line, tab=" "), self.column - 1)
        gutter = str(self.line)
        return f" {gutter} | {source}\n {' ' * len(gutter)} | {' ' * offset}^"


def did_you_mean(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return "did you mean NAME? ", to begin a fix, or "" if no similarity is at least `least`."""
    by_lower_case = {name.lower(): name for name in known}
    similar = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=least)
    return f"did you mean {by_lower_case[similar[0]]}? " if similar else ""


def printable(text: str, tab: str = "\t") -> str:
    """Replace characters that control a terminal by U+FFFD, one for one, and tabs by `tab`.

    Names and values come from files that others wrote: an escape sequence in them could hide text.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text).replace("\t", tab)


def _shortened(text: str) -> str:
    text = _LONG_WORD.sub(lambda match: _without_middle(match[0], _MAX_WORD), text)
    return _without_middle(text, _MAX_PART)


def _without_middle(text: str, most: int) -> str:
    half = most // 2 - 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def _window(source: str, offset: int) -> tuple[str, int]:
    """Cut a long line around `offset`; return the excerpt and the offset within it."""
    if len(source) <= _MAX_EXCERPT_WIDTH:
        return source, offset
    start = max(0, offset - _MAX_EXCERPT_WIDTH // 2)
    end = start + _MAX_EXCERPT_WIDTH
    head, tail = "..." * (start > 0), "..." * (end < len(source))
    return head + source[start:end] + tail, offset - start + len(head)


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in the input: what is wrong, why, and what to write instead.

    The code gives the kind: E1xx unreadable input, E2xx an invalid value, E3xx and E4xx a
    combination that the training framework or the model of it refuses, E601 does not fit in memory,
    E7xx a missing package or device, E8xx sweeps and searches, E9xx a wrong command line. See
    `simtrain show`.
    """

    code: str
    message: str
    location: Location | None = None
    reason: str | None = None
    fix: str | None = None

    def __str__(self) -> str:
        place = f"{_shortened(str(self.location))}: " if self.location else ""
        lines = [f"{place}{self.code} {_shortened(self.message)}"]
        if self.location and (excerpt := self.location.excerpt()):
            lines.append(excerpt)
        if self.reason:
            lines.append(f"  reason: {_shortened(self.reason)}")
        if self.fix:
            lines.append(f"  fix: {_shortened(self.fix)}")
        return printable("\n".join(lines))


class InputError(SimtrainError):
    """Invalid input; `problems` lists every error found, at least one."""

    exit_code: ClassVar[int] = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        assert self.problems, "an InputError says what is wrong"
        super().__init__(self.problems)

    @classmethod
    def of(
        cls,
        code: str,
        message: str,
        location: Location | None = None,
        fix: str | None = None,
        reason: str | None = None,
    ) -> Self:
        """Create the error for a single problem."""
        return cls([Problem(code, message, location, reason, fix)])

    def __str__(self) -> str:
        return "\n\n".join(str(problem) for problem in self.problems)


def wrong_type(value: object, expected: str, fix: str) -> InputError:
    """Return the error of a Python argument that is not of the `expected` type (E114)."""
    if isinstance(value, (str, PurePath)):
        message = f'"{value}" is a name, not a {expected}'
    else:
        message = f"an object of type {type(value).__name__} is not a {expected}"
    return InputError.of("E114", message, fix=fix)


class DoesNotFitError(InputError):
    """The scenario is legal but does not fit in GPU memory."""

    exit_code: ClassVar[int] = 3
