"""Parse the words of a bash script: quotes, expansions and operators, with their places."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from simtrain.errors import InputError
from simtrain.importing.shell.lines import Lines, capture_remedy
from simtrain.importing.shell.syntax_tree import (
    NAME,
    Arithmetic,
    CommandList,
    Foreign,
    HereDocument,
    Literal,
    Part,
    Variable,
    Word,
)

MAX_DEPTH = 60
"""The largest nesting of blocks, brackets and expansions; hand-written scripts have under ten."""
REDIRECTION = re.compile(
    rf"(?:\d+|\{{{NAME}\}})?(?:<<<|<<-?|<>|>\||&>>|&>|[<>]&|>>|[<>](?!\())", re.ASCII
)
_BLANK = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")
_OPERATOR = re.compile(r"&&|\|\||\|&|;;&|;;|;&|[;|&()\n]")
_ENDS_WORD = " \t\n;|&()<>"
_KEYWORD = re.compile(r"[a-z]+(?=[ \t\n;&|()<>]|\Z)|[{}!](?=[ \t\n;&|()]|\Z)|\[\[(?=[ \t\n])")
_PARAMETER = re.compile(rf"({NAME})|[0-9@*#?$!-]")
_BRACES = re.compile(rf"({NAME}|[1-9]\d{{0,3}}|[@*])(?:\[([@*])\])?(:?[-=+?]|(?=\}}))")
_ARRAY = re.compile(rf"{NAME}\+?=\Z")
_ASSIGNING_EXPANSION = re.compile(rf"\$\{{{NAME}(?:\[[^]\n]{{,99}}\])?:?=|\$\(\(")
_ANSI = re.compile(r"\$'(?:[^'\\]|\\.)*+'", re.DOTALL)
PLACEHOLDER = 0xF0000  # A private character for each value of an evaluated text that is unknown.


@dataclass(slots=True)
class WordParser(ABC):
    """Parser of words; `script_parser.Parser` adds commands, which $(...) has in a word.

    Args:
        script: the text.
        lines: the lines of the source, for errors.
        origins: the start of each piece of an evaluated text, and its offset in the source.
        unknown: the names of unknown values in an evaluated text, by their placeholder.
        is_script: whether the text is one of commands, which a shell could run.
    """

    script: str
    lines: Lines
    origins: Sequence[tuple[int, int]] = ((0, 0),)
    unknown: Sequence[str] = ()
    is_script: bool = False
    at: int = 0
    depth: int = 0
    # The here-documents whose bodies begin after the current line.
    pending: list[HereDocument] = field(default_factory=list)
    # Those of the current command, and the files that its output replaces.
    documents: list[HereDocument] = field(default_factory=list)
    targets: list[Word] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)

    def words(self) -> list[Word]:
        """Return the words between blanks, without a meaning of operators such as ; and |."""
        words = []
        while self.at < len(self.script):
            start, offset = self.at, self._origin()
            if parts := self._parts(" \t\n", False):
                words.append(Word(tuple(parts), self.script[start : self.at], offset))
            self.at += 1
        return words

    def document(self) -> list[Part]:
        """Return the text and the expansions of a here-document."""
        return self._parts("", True)

    @abstractmethod
    def _block(self, *ends: str) -> CommandList:
        """Parse commands up to one of the keywords or operators `ends`, or to the end."""

    def _word(self) -> Word:
        """Parse a word, and the blanks after it."""
        self._skip_blanks()
        start, offset, elements = self.at, self._origin(), None
        parts = self._parts(_ENDS_WORD, False)
        while self.at < len(self.script):
            following = self.script[self.at]
            begun = self.script[start : self.at]
            if following in "<>" and self.script.startswith("(", self.at + 1):
                parts.append(self._process())
            elif following == "(" and _ARRAY.match(begun):
                elements = self._elements()
                break
            else:
                break
            parts += self._parts(_ENDS_WORD, False)
        if self.at == start:
            raise self._unexpected()
        word = Word(tuple(parts), self.script[start : self.at], offset, elements)
        self._skip_blanks()
        return word

    def _elements(self) -> tuple[Word, ...]:
        opening, elements = self.at, list[Word]()
        self.at += 1
        while True:
            self._skip_lines()
            if self.at >= len(self.script):
                raise self._unended("(", opening)
            if self.script[self.at] == ")":
                self.at += 1
                return tuple(elements)
            elements.append(self._word())

    def _parts(self, ends: str, quoted: bool) -> list[Part]:
        """Parse parts up to one of the characters `ends`, or to the end of the script."""
        script, parts, plain = self.script, list[Part](), _plain(ends, quoted)
        self._nest(self.at)
        while self.at < len(script) and script[self.at] not in ends:
            char, start, origin = script[self.at], self.at, self._origin()
            if match := plain.match(script, start):
                self.at = match.end()
                parts.append(Literal(match[0], origin, quoted))
            elif char == "'" and not quoted:
                self.at = self._find("'", start + 1)
                parts.append(Literal(script[start + 1 : self.at], origin + 1, True))
                self.at += 1
            elif char == '"' and quoted and not ends:
                parts.append(Literal(char, origin, True))  # in a here-document
                self.at += 1
            elif char == '"':
                self.at += 1
                # An empty part, because "" is a word.
                parts += self._parts('"', True) or [Literal("", origin, True)]
                if self.at >= len(script):
                    raise self._unended('"', start)
                self.at += 1
            elif char == "\\":
                following = script[start + 1 : start + 2]
                is_escape = not quoted or (following and following in '$`"\\\n' + ends)
                self.at += 2 if is_escape else 1
                if following != "\n":
                    parts.append(Literal(following if is_escape else char, origin, True))
            elif ord(char) >= PLACEHOLDER:
                self.at += 1
                number = ord(char) - PLACEHOLDER
                name = self.unknown[number] if number < len(self.unknown) else char
                parts.append(Foreign(name, origin, quoted))
            else:
                parts.append(self._expansion(quoted))
        self.depth -= 1
        return parts

    def _expansion(self, quoted: bool) -> Part:
        """Parse an expansion that starts with $ or `."""
        script, start, offset = self.script, self.at, self._origin()
        if script[start] == "`":
            end = self._find("`", start + 1)
            while script[end - 1] == "\\":
                end = self._find("`", end + 1)
            self.at = end + 1
            return Foreign(f"$({script[start + 1 : end]})", offset, quoted)
        if script.startswith("$((", start):
            parts = self._formula(start + 3)
            if parts is not None:
                return Arithmetic(script[start : self.at], offset, quoted, parts)
        if script.startswith("$(", start):
            self.at = start + 2
            self._block(")")
            self.at += 1
            return Foreign(script[start : self.at], offset, quoted)
        if script.startswith("${", start):
            return self._braces(start, offset, quoted)
        if script.startswith("$[", start):
            raise self._error("$[...] is not read", start)
        if not quoted and script.startswith('$"', start):
            raise self._error('$"..." is not read', start)
        if not quoted and (ansi := _ANSI.match(script, start)):
            self.at = ansi.end()
            return Foreign(ansi[0], offset, quoted)
        if match := _PARAMETER.match(script, start + 1):
            self.at = match.end()
            if match[1] and re.match(r"(?:\\\n)+\w", script[self.at : self.at + 9]):
                raise self._error("a name that continues on the next line is not read", start)
            return Variable(script[start : self.at], offset, quoted, match[0])
        self.at += 1
        return Literal("$", offset, True)

    def _braces(self, start: int, offset: int, quoted: bool) -> Variable:
        script = self.script
        match = _BRACES.match(script, start + 2)
        name, index, operator = (match[1], match[2] or "", match[3]) if match else ("", "", None)
        self.at = match.end() if match else start + 2
        # Single quotes are quotes in patterns, such as "${A%'x'}", but not in "${A:-'x'}".
        operand = self._parts("}", quoted and operator is not None)
        if self.at >= len(script):
            raise self._unended("${", start)
        self.at += 1
        source = script[start : self.at]
        if not match:
            name = next(iter(re.findall(NAME, source)), source)
        return Variable(source, offset, quoted, name, index, operator, tuple(operand))

    def _formula(self, start: int) -> tuple[Part, ...] | None:
        """Parse a formula up to its `))`; return None if its parentheses end otherwise."""
        self.at = start
        parts, depth = list[Part](), 0
        while True:
            parts += self._parts("()", True)
            if self.at >= len(self.script):
                raise self._unended("((", start - 2)
            char = self.script[self.at]
            if char == ")" and depth == 0:
                if not self.script.startswith("))", self.at):
                    return None
                self.at += 2
                return tuple(parts)
            depth += 1 if char == "(" else -1
            parts.append(Literal(char, self._origin(), True))
            self.at += 1

    def _process(self) -> Foreign:
        """Parse <(...) or >(...)."""
        start, offset = self.at, self._origin()
        self.at += 2
        self._block(")")
        self.at += 1
        return Foreign(self.script[start : self.at], offset, False)

    # -------------------------------------------------------------------------------------- tokens

    def _skip_blanks(self) -> None:
        if match := _BLANK.match(self.script, self.at):
            self.at = match.end()

    def _skip_lines(self) -> None:
        self._skip_blanks()
        while self._take("\n"):
            pass

    def _operator(self) -> str | None:
        match = _OPERATOR.match(self.script, self.at)
        if match and match[0] == "&" and REDIRECTION.match(self.script, self.at):
            return None
        return match[0] if match else None

    def _take(self, *operators: str) -> str | None:
        """Skip one of the operators and the blanks after it; return it, or None."""
        operator = self._operator()
        if operator not in operators or operator is None:
            return None
        self.at += len(operator)
        if operator == "\n":
            self._skip_here_documents()
        self._skip_blanks()
        return operator

    def _keyword(self) -> str | None:
        match = _KEYWORD.match(self.script, self.at)
        return match[0] if match else None

    def _skip_keyword(self) -> str:
        keyword = self._keyword() or ""
        self.at += len(keyword)
        self._skip_blanks()
        return keyword

    def _skip_here_documents(self) -> None:
        """Skip the bodies of here-documents, which begin at the current line."""
        for document in self.pending:
            start, is_continued = self.at, False
            delimiter, is_raw = document.delimiter, document.is_raw
            while True:
                if self.at >= len(self.script):
                    message = f"the here-document up to {delimiter} does not end"
                    raise self._error(message, max(start - 1, 0))
                end = self.script.find("\n", self.at)
                end = len(self.script) if end < 0 else end
                line, at = self.script[self.at : end], self.at
                self.at = min(end + 1, len(self.script))
                if (
                    not is_continued
                    and (line.lstrip("\t") if document.strips_tabs else line) == delimiter
                ):
                    document.body, document.offset = self.script[start:at], self._origin(start)
                    break
                backslashes = len(line) - len(line.rstrip("\\"))
                is_continued = not is_raw and backslashes % 2 == 1
            body = self.script[start : self.at]
            if not is_raw and _ASSIGNING_EXPANSION.search(body):
                self.bodies.append(body)
        self.pending.clear()

    def _find(self, text: str, start: int) -> int:
        end = self.script.find(text, start)
        if end < 0:
            raise self._unended(self.script[self.at], self.at)
        return end

    def _origin(self, at: int | None = None) -> int:
        """Return the position in the source of a position in the script."""
        at = self.at if at is None else at
        number = bisect_right(self.origins, at, key=lambda origin: origin[0]) - 1
        start, offset = self.origins[number]
        return offset + at - start

    def _nest(self, start: int) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            message = f"blocks and brackets are nested more than {MAX_DEPTH} deep"
            raise self._error(message, start, "E879")

    def _unended(self, what: str, at: int) -> InputError:
        self.at = len(self.script)
        return self._error(f"the {what} that starts here is not closed", at)

    def _unexpected(self) -> InputError:
        text = self.script[self.at : self.at + 20].split("\n")[0] or "the end of the line"
        return self._error(f"{text} is not expected here", self.at)

    def _error(self, message: str, at: int, code: str = "E876") -> InputError:
        fix = "correct it, or import the arguments alone as one text"
        if self.is_script:
            fix = f"{fix}; or {capture_remedy(self.lines.file)}"
        return InputError.of(code, message, self.lines.location(self._origin(at)), fix)


@cache
def _plain(ends: str, quoted: bool) -> re.Pattern[str]:
    """Return the pattern of characters without meaning in a part."""
    special = ends + '\\$`"' + ("" if quoted else "'")
    return re.compile(f"[^{re.escape(special)}{chr(PLACEHOLDER)}-\U0010ffff]+")
