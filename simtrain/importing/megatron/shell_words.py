"""Parse a shell script into commands and words, which `shell` expands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal as OneOf

from simtrain.errors import InputError, Location

_OPERATOR = re.compile(r"&&|\|\||;;|[;|&()\n]")
_BETWEEN_WORDS = re.compile(r"(?:\\\n|[ \t\r]|#[^\n]*)*")
_ENDS_WORD = set(" \t\n;|&()<>")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?!$-]")
_OPENING_BRACE = re.compile(r"\s*\{")
_REDIRECTION = re.compile(r"(?:\d*[<>]+|&>+)&?[ \t]*")
_BRACES = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*])(\[[@*]\])?(?:(:?[-=])(.*)|(.*))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Literal:
    """Literal characters, with their offsets."""

    text: list[tuple[str, int]]
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Expansion:
    """An expansion of a variable, an arithmetic formula or a command.

    Args:
        kind: what is expanded.
        name: the variable, the formula or the command.
        offset: position in the script.
        quoted: whether the expansion is in double quotes.
        several: whether a quoted array expands to separate words (`"${A[@]}"`).
        default: the word after `:-`, `-`, `:=` or `=`.
        is_unreadable: whether the form of `${...}` is not supported, such as `${A%x}`.
        elements: "[@]" for all elements of an array.
    """

    kind: OneOf["variable", "arithmetic", "command"]
    name: str
    offset: int
    quoted: bool
    several: bool = False
    default: Word | None = None
    is_unreadable: bool = False
    elements: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """A word: its pieces, and the elements if it assigns an array."""

    pieces: list[Literal | Expansion]
    offset: int
    elements: list[Word] | None = None

    @property
    def literal(self) -> str | None:
        """The text of a word without quotes and expansions; None for other words."""
        if any(isinstance(piece, Expansion) or piece.quoted for piece in self.pieces):
            return None
        return self.start

    @property
    def start(self) -> str:
        """The unquoted literal characters at the start of the word."""
        first = self.pieces[0] if self.pieces else None
        if not isinstance(first, Literal) or first.quoted:
            return ""
        return "".join(char for char, _ in first.text)

    def without(self, length: int) -> Word:
        """Remove the first characters of the first piece."""
        first, *rest = self.pieces
        kept = [Literal(first.text[length:])] if isinstance(first, Literal) else [first]
        return Word([*kept, *rest], self.offset, self.elements)


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: its words, and the operator after it."""

    words: list[Word]
    operator: str
    defines_function: bool = False


def commands_of(script: str, file: str) -> Iterator[Command]:
    """Yield the commands of a script in the order of the text.

    Raises:
        InputError: a quote or bracket is not closed.
    """
    return _Reader(script, file).commands()


def location_of(script: str, file: str, offset: int) -> Location:
    """Return the line and column of an offset in the script."""
    line = script.count("\n", 0, offset)
    column = offset - (script.rfind("\n", 0, offset) + 1)
    return Location(file, line + 1, column + 1, script.split("\n")[line])


class _Reader:
    def __init__(self, script: str, file: str, start: int = 0) -> None:
        self.script, self.file, self.at = script, file, start

    def commands(self) -> Iterator[Command]:
        """Yield the commands of the script, each with the operator that ends it."""
        words: list[Word] = []
        in_test = False
        while (token := self._next(in_test)) is not None:
            if isinstance(token, Word):
                words.append(token)
                in_test = token.literal == "[[" or (in_test and token.literal != "]]")
            elif token == "(" and len(words) == 1 and self.script[self.at : self.at + 1] == ")":
                self.at += 1
                yield Command([], "\n", defines_function=True)
                words = []
                self._skip(_OPENING_BRACE)
            else:
                yield Command(words, token)
                words = []
        yield Command(words, "\n")

    def _next(self, in_test: bool = False) -> Word | str | None:
        """Return the next word or operator; None at the end."""
        self._skip(_BETWEEN_WORDS)
        while not in_test and self._skip(_REDIRECTION):
            if self.at < len(self.script) and self.script[self.at] not in _ENDS_WORD:
                self._word(_ENDS_WORD)  # The file name.
            self._skip(_BETWEEN_WORDS)
        if self.at == len(self.script):
            return None
        if found := _OPERATOR.match(self.script, self.at):
            self.at = found.end()
            if in_test and found[0] in ("&&", "||"):
                return Word([Literal(self._chars(*found.span()))], found.start())
            return found[0]
        return self._word(_ENDS_WORD - set("<>()") if in_test else _ENDS_WORD)

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Skip a pattern; return whether it matches."""
        found = pattern.match(self.script, self.at)
        if found:
            self.at = found.end()
        return found is not None

    def _word(self, ends: set[str]) -> Word:
        script, start = self.script, self.at
        pieces: list[Literal | Expansion] = []
        while self.at < len(script) and script[self.at] not in ends:
            char = script[self.at]
            if char == "'":
                end = self._find("'", self.at + 1)
                _add(pieces, Literal(self._chars(self.at + 1, end), quoted=True))
                self.at = end + 1
            elif char == '"':
                self._double_quoted(pieces)
            elif char == "\\":
                if script[self.at + 1 : self.at + 2] != "\n":
                    _add(pieces, Literal(self._chars(self.at + 1, self.at + 2), quoted=True))
                self.at += 2
            elif char in "$`":
                _add(pieces, self._expansion(quoted=False))
            else:
                _add(pieces, Literal([(char, self.at)]))
                self.at += 1
        elements = None
        if script[self.at : self.at + 1] == "(" and script[self.at - 1] == "=":
            elements = self._elements()
        return Word(pieces, start, elements)

    def _elements(self) -> list[Word]:
        opening = self.at
        self.at += 1
        elements: list[Word] = []
        while (token := self._next()) != ")":
            if token is None:
                raise self._unended("(", opening)
            if isinstance(token, Word):
                elements.append(token)
        return elements

    def _double_quoted(self, pieces: list[Literal | Expansion]) -> None:
        """Add the pieces of a text in double quotes."""
        opening = self.at
        self.at += 1
        # An empty piece, because "" is a word.
        _add(pieces, Literal([], quoted=True))
        while self.at < len(self.script) and (char := self.script[self.at]) != '"':
            if char in "$`":
                _add(pieces, self._expansion(quoted=True))
                continue
            if char == "\\":
                self.at += 1
                if self.script[self.at : self.at + 1] == "\n":
                    self.at += 1
                    continue
            _add(pieces, Literal(self._chars(self.at, self.at + 1), quoted=True))
            self.at += 1
        if self.at >= len(self.script):
            raise self._unended('"', opening)
        self.at += 1

    def _expansion(self, quoted: bool) -> Literal | Expansion:
        script, start = self.script, self.at
        if script[start] == "`":
            end = self._find("`", start + 1)
            self.at = end + 1
            return Expansion("command", script[start + 1 : end], start, quoted)
        if script.startswith("$((", start):
            end = self._find("))", start + 3)
            self.at = end + 2
            return Expansion("arithmetic", script[start + 3 : end], start, quoted)
        if script.startswith("$(", start):
            end = self._closing("(", ")", start + 1)
            self.at = end + 1
            return Expansion("command", script[start + 2 : end], start, quoted)
        if script.startswith("${", start):
            end = self._closing("{", "}", start + 1)
            self.at = end + 1
            return self._braces(start, end, quoted)
        if found := _NAME.match(script, start + 1):
            self.at = found.end()
            return Expansion("variable", found[0], start, quoted, several=found[0] == "@")
        self.at += 1
        return Literal([("$", start)], quoted)

    def _braces(self, start: int, end: int, quoted: bool) -> Expansion:
        found = _BRACES.fullmatch(self.script, start + 2, end)
        if not found:
            name = self.script[start + 2 : end]
            return Expansion("variable", name, start, quoted, is_unreadable=True)
        default = None
        if found[3]:
            inside = _Reader(self.script[:end], self.file, found.start(4))
            default = inside._word(set())
        several = quoted and found[2] == "[@]"
        elements = "[@]" if found[2] else ""
        return Expansion(
            "variable", found[1], start, quoted, several, default, bool(found[5]), elements
        )

    def _chars(self, start: int, end: int) -> list[tuple[str, int]]:
        return [(char, start + index) for index, char in enumerate(self.script[start:end])]

    def _find(self, what: str, start: int) -> int:
        end = self.script.find(what, start)
        if end < 0:
            raise self._unended(self.script[self.at], self.at)
        return end

    def _closing(self, opening: str, closing: str, start: int) -> int:
        depth = 0
        for at in range(start, len(self.script)):
            depth += {opening: 1, closing: -1}.get(self.script[at], 0)
            if depth == 0:
                return at
        raise self._unended(opening, start)

    def _unended(self, what: str, offset: int) -> InputError:
        place = location_of(self.script, self.file, offset)
        fix = "close it, or import the arguments alone as one text"
        return InputError.of("E876", f"the {what} that starts here is not closed", place, fix)


def _add(pieces: list[Literal | Expansion], piece: Literal | Expansion) -> None:
    """Add a piece to those of a word; adjacent literal pieces become one."""
    last = pieces[-1] if pieces else None
    if isinstance(piece, Literal) and isinstance(last, Literal) and piece.quoted == last.quoted:
        last.text.extend(piece.text)
    else:
        pieces.append(piece)
