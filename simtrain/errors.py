"""User errors in the style of rustc and ruff: code, location, reason, fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

_MAX_EXCERPT_WIDTH = 100


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
        source, offset = _window(_printable(self.source_line), self.column - 1)
        gutter = str(self.line)
        return f" {gutter} | {source}\n {' ' * len(gutter)} | {' ' * offset}^"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean NAME? ", to begin a fix, or "" if no name is similar."""
    similar = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {similar[0]}? " if similar else ""


def _printable(text: str) -> str:
    """Replace unprintable characters by spaces, one for one, to keep the caret aligned."""
    return "".join(char if char.isprintable() else " " for char in text)


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
    `simtrain explain`.
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


class DoesNotFitError(InputError):
    """The scenario is legal but does not fit in GPU memory."""

    exit_code: ClassVar[int] = 3
