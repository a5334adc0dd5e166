"""Errors a user can cause, told the way rustc and ruff tell them: code, place, reason, fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

_MAX_EXCERPT_WIDTH = 100


class SimtrainError(Exception):
    """The base of every error that simtrain raises on purpose.

    `exit_code` is what the command line returns to the shell.
    """

    exit_code: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file; `line` and `column` count from 1 and are None where there is no file."""

    file: str
    line: int | None = None
    column: int | None = None
    source_line: str = ""

    def __str__(self) -> str:
        parts = (self.file, self.line, self.column)
        return ":".join(str(part) for part in parts if part is not None)

    def excerpt(self) -> str:
        """The source line with a caret under the column; empty where there is no line."""
        if self.line is None or self.column is None or not self.source_line:
            return ""
        source, offset = _window(_printable(self.source_line), self.column - 1)
        gutter = str(self.line)
        return f" {gutter} | {source}\n {' ' * len(gutter)} | {' ' * offset}^"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that begins a fix: "did you mean NAME? ", or nothing if no name is similar."""
    similar = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {similar[0]}? " if similar else ""


def _printable(text: str) -> str:
    """The text with one visible character for each of its own, so that a caret lands right."""
    return "".join(char if char.isprintable() else " " for char in text)


def _window(source: str, offset: int) -> tuple[str, int]:
    """The part of a long line around `offset`, and the offset within that part."""
    if len(source) <= _MAX_EXCERPT_WIDTH:
        return source, offset
    start = max(0, offset - _MAX_EXCERPT_WIDTH // 2)
    end = start + _MAX_EXCERPT_WIDTH
    head, tail = "..." * (start > 0), "..." * (end < len(source))
    return head + source[start:end] + tail, offset - start + len(head)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the input, why it is wrong, and what to write instead.

    `code` names the kind: E1xx unreadable input, E2xx a value that no scenario or profile can
    have, E3xx a combination that the training framework refuses, E601 one that does not fit, E701
    an optional package that is missing, E7xx what else measuring needs and the machine lacks.
    """

    code: str
    message: str
    location: Location | None = None
    reason: str | None = None
    fix: str | None = None

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        lines = [f"{place}{self.code} {self.message}"]
        if self.location and (excerpt := self.location.excerpt()):
            lines.append(excerpt)
        if self.reason:
            lines.append(f"  reason: {self.reason}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class InputError(SimtrainError):
    """The input cannot be used; `problems` holds everything found wrong with it, never none."""

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
        """The error of a single problem."""
        return cls([Problem(code, message, location, reason, fix)])

    def __str__(self) -> str:
        return "\n\n".join(str(problem) for problem in self.problems)


class DoesNotFitError(InputError):
    """The scenario is legal, but does not fit in the memory of its GPUs."""

    exit_code: ClassVar[int] = 3
