"""Parse a bash script into the commands and words of `syntax_tree`.

The parser refuses what it does not read as bash does, in place of guessing. It is ours because the
packages that parse bash do not suit: tree-sitter's grammar, made for editors, reads some scripts
differently from bash without an error (`A=a\\` continued by `b` assigns "a").
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from simtrain.errors import InputError
from simtrain.importing.shell.lines import Lines, capture_remedy
from simtrain.importing.shell.syntax_tree import (
    NAME,
    AndOr,
    Arithmetic,
    Block,
    Case,
    Foreign,
    Function,
    HereDocument,
    If,
    Literal,
    Loop,
    Node,
    Not,
    Opaque,
    Part,
    Simple,
    Subshells,
    Test,
    Variable,
    Word,
)

MAX_DEPTH = 60
"""The largest nesting of blocks, brackets and expansions; hand-written scripts have under ten."""

_BLANK = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")
_OPERATOR = re.compile(r"&&|\|\||\|&|;;&|;;|;&|[;|&()\n]")
_REDIRECTION = re.compile(
    rf"(?:\d+|\{{{NAME}\}})?(?:<<<|<<-?|<>|>\||&>>|&>|[<>]&|>>|[<>](?!\())", re.ASCII
)
_ENDS_WORD = " \t\n;|&()<>"
_KEYWORD = re.compile(r"[a-z]+(?=[ \t\n;&|()<>]|\Z)|[{}!](?=[ \t\n;&|()]|\Z)|\[\[(?=[ \t\n])")
_CLOSING = {"then", "else", "elif", "fi", "do", "done", "esac", "}"}
_PARAMETER = re.compile(rf"({NAME})|[0-9@*#?$!-]")
_BRACES = re.compile(rf"({NAME}|[1-9]\d{{0,3}}|[@*])(?:\[([@*])\])?(:?[-=+?]|(?=\}}))")
_ARRAY = re.compile(rf"{NAME}\+?=\Z")
_FUNCTION = re.compile(r"[ \t]*\([ \t]*\)")
_ASSIGNING_EXPANSION = re.compile(rf"\$\{{{NAME}(?:\[[^]\n]{{,99}}\])?:?=|\$\(\(")
_ANSI = re.compile(r"\$'(?:[^'\\]|\\.)*+'", re.DOTALL)
_DELIMITER = re.compile(r"""(?:[^\s;|&()<>'"\\$`]|\\.|'[^'\n]*'|"[^"\n$`\\]*")+""")
_PLACEHOLDER = 0xF0000  # A private character for each value of an evaluated text that is unknown.


@dataclass(slots=True)
class Parser:
    """Parser of a script, or of a text that a script evaluates.

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

    def parse(self) -> Block:
        """Return the commands of the script.

        Raises:
            InputError: a quote, bracket or block does not end, or the syntax is not supported.
        """
        self.is_script = True
        block = self._block()
        if self.at < len(self.script):
            raise self._unexpected()
        return block

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

    # ------------------------------------------------------------------------------------ commands

    def _block(self, *ends: str) -> Block:
        """Parse commands up to one of the keywords or operators `ends`, or to the end."""
        start, commands = self.at, list[Node]()
        self._nest(start)
        while True:
            self._skip_lines()
            if self._ends(ends):
                break
            if self.at >= len(self.script):
                if ends:
                    raise self._error("the block that starts here is not closed", start)
                break
            offset, command = self._origin(), self._list()
            operator = self._take(";", "&", "\n")
            commands.append(Subshells((command,)) if operator == "&" else command)
            if not operator and not self._ends(ends) and self.at < len(self.script):
                raise self._unexpected()
            # A here-document can have expansions that assign.
            commands += [Opaque(body, offset) for body in self.bodies]
            self.bodies.clear()
        self.depth -= 1
        return Block(tuple(commands))

    def _ends(self, ends: tuple[str, ...]) -> bool:
        return self._keyword() in ends or self._operator() in ends

    def _list(self) -> Node:
        first, rest = self._pipeline(), list[tuple[str, Node]]()
        while operator := self._take("&&", "||"):
            self._skip_lines()
            rest.append((operator, self._pipeline()))
        return AndOr(first, tuple(rest)) if rest else first

    def _pipeline(self) -> Node:
        is_negated = False
        while (keyword := self._keyword()) in ("!", "time"):
            is_negated ^= keyword == "!"
            self._skip_keyword()
            if keyword == "time" and self.script.startswith("-p ", self.at):
                self.at += 3
        members = [self._command()]
        while self._take("|", "|&"):
            self._skip_lines()
            members.append(self._command())
        command = members[0] if len(members) == 1 else Subshells(tuple(members))
        return Not(command) if is_negated else command

    def _command(self) -> Node:
        self._skip_blanks()
        offset, keyword = self._origin(), self._keyword()
        readers: dict[str | None, Callable[[], Node]] = {
            "if": self._if,
            "while": self._while,
            "until": self._until,
            "for": self._for,
            "select": self._for,
            "case": self._case,
            "function": self._function,
            "{": self._group,
            "[[": self._test,
        }
        if keyword in _CLOSING:
            raise self._unexpected()
        if keyword in readers:
            self._skip_keyword()
            command = readers[keyword]()
        elif self._operator() == "(":
            command = self._parenthesis()
        else:
            return self._simple()
        if isinstance(command, If | Loop | Case | Opaque):
            command = replace(command, offset=offset)
        redirections = self._redirections()
        return Block((command,), redirections) if redirections else command

    def _simple(self) -> Node:
        start, words, redirections = self.at, list[Word](), list[str]()
        outer = self.documents, self.targets
        self.documents, self.targets = [], []
        while True:
            redirections += self._redirections()
            if self.at >= len(self.script) or self._operator() is not None:
                break
            words.append(self._word())
            definition = _FUNCTION.match(self.script, self.at)
            if definition and len(words) == 1 and words[0].literal and not redirections:
                self.at = definition.end()
                return self._body(words[0].literal)
        if (not words and not redirections) or self._operator() == "(":
            raise self._unexpected()
        target, document = next(iter(self.targets), None), next(iter(self.documents), None)
        self.documents, self.targets = outer
        source = self.script[start : self.at]
        return Simple(tuple(words), source, tuple(redirections), target, document)

    def _redirections(self) -> tuple[str, ...]:
        """Parse redirections; return their texts."""
        texts = []
        self._skip_blanks()
        while match := _REDIRECTION.match(self.script, self.at):
            self.at = match.end()
            self._skip_blanks()
            operator = match[0].lstrip("0123456789")
            if operator in ("<<", "<<-"):
                delimiter = _DELIMITER.match(self.script, self.at)
                if not delimiter:
                    raise self._unexpected()
                self.at = delimiter.end()
                is_raw = any(char in delimiter[0] for char in "\\'\"")
                word = re.sub(r"""\\(.)|['"]""", r"\1", delimiter[0])
                document = HereDocument(word, is_raw, operator == "<<-")
                self.pending.append(document)
                self.documents.append(document)
            else:
                target = self._word()
                if match[0] in (">", "1>", ">|"):
                    self.targets.append(target)
            texts.append(self.script[match.start() : self.at])
            self._skip_blanks()
        return tuple(texts)

    def _if(self) -> If:
        branches, otherwise = [], None
        while True:
            condition = self._block("then")
            self._skip_keyword()
            branches.append((condition, self._block("elif", "else", "fi")))
            keyword = self._skip_keyword()
            if keyword == "else":
                otherwise = self._block("fi")
                self._skip_keyword()
            if keyword != "elif":
                return If(tuple(branches), otherwise)

    def _while(self) -> Loop:
        condition = self._block("do")
        return Loop(self._do(), condition)

    def _until(self) -> Loop:
        condition = self._block("do")
        return Loop(self._do(), Not(condition))

    def _do(self) -> Block:
        self._skip_lines()
        if self._keyword() != "do":
            raise self._unexpected()
        self._skip_keyword()
        body = self._block("done")
        self._skip_keyword()
        return body

    def _for(self) -> Loop:
        if self.script.startswith("((", self.at):
            header = self._parenthesis()
            if not isinstance(header, Opaque):
                raise self._unexpected()
            self._take(";")
            return Loop(self._do(), assigned=header.source)
        variable, words = self._word().source, list[Word]()
        self._skip_lines()
        has_words = self._keyword() == "in"
        if has_words:
            self._skip_keyword()
            while self._operator() is None and self.at < len(self.script):
                words.append(self._word())
        self._take(";")
        return Loop(self._do(), assigned=variable, words=tuple(words) if has_words else None)

    def _case(self) -> Case:
        start = self.at
        word = self._word()
        branches: list[tuple[tuple[Word, ...], Node]] = []
        self._skip_lines()
        if self._keyword() != "in":
            raise self._unexpected()
        self._skip_keyword()
        while True:
            self._skip_lines()
            if self.at >= len(self.script):
                raise self._error("the case that starts here is not closed", start)
            if self._keyword() == "esac":
                self._skip_keyword()
                return Case(word, tuple(branches))
            self._take("(")
            patterns = [self._word()]
            while self._take("|"):
                patterns.append(self._word())
            if not self._take(")"):
                raise self._unexpected()
            branches.append((tuple(patterns), self._block(";;", "esac")))
            self._take(";;")

    def _function(self) -> Function:
        name = self._word().literal
        if not name:
            raise self._unexpected()
        if definition := _FUNCTION.match(self.script, self.at):
            self.at = definition.end()
        return self._body(name)

    def _body(self, name: str) -> Function:
        self._skip_lines()
        self._nest(self.at)
        function = Function(name, self._command())
        self.depth -= 1
        return function

    def _group(self) -> Block:
        body = self._block("}")
        self._skip_keyword()
        return body

    def _parenthesis(self) -> Node:
        """Parse `((...))` or a subshell."""
        start = self.at
        if self.script.startswith("((", start) and self._formula(start + 2) is not None:
            return Opaque(self.script[start : self.at])
        self.at = start + 1
        body = self._block(")")
        self.at += 1
        return Subshells((body,))

    def _test(self) -> Test:
        """Parse the words and operators up to `]]`."""
        start, words = self.at, list[Word]()
        self._skip_lines()
        while not self.script.startswith("]]", self.at):
            if self.at >= len(self.script):
                raise self._error("the [[ that starts here is not closed", start)
            at, offset = self.at, self._origin()
            # Operators without blanks around them, and parentheses, are characters of a word here.
            parts = self._parts(" \t\n", False)
            words.append(Word(tuple(parts), self.script[at : self.at], offset))
            self._skip_lines()
        plain = "".join(word.plain for word in words)
        if plain.count("(") != plain.count(")"):
            raise self._error("the parentheses of this [[ do not match", start)
        source = self.script[start : self.at]
        self.at += 2
        return Test(tuple(words), source)

    # --------------------------------------------------------------------------------------- words

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
            elif ord(char) >= _PLACEHOLDER:
                self.at += 1
                number = ord(char) - _PLACEHOLDER
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
        if match and match[0] == "&" and _REDIRECTION.match(self.script, self.at):
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
    return re.compile(f"[^{re.escape(special)}{chr(_PLACEHOLDER)}-\U0010ffff]+")


def evaluated_text(pieces: Sequence[tuple[str, int, bool]], lines: Lines) -> Parser:
    """Return the parser of a text that a script evaluates.

    Args:
        pieces: text (or the name of an unknown value), offset, and whether it is known.
        lines: the lines of the source.
    """
    text, origins, unknown = "", [], list[str]()
    for piece, offset, is_known in pieces:
        origins.append((len(text), offset))
        if is_known:
            text += piece
        else:
            text += chr(_PLACEHOLDER + len(unknown))
            unknown.append(piece)
    return Parser(text, lines, origins or [(0, 0)], unknown)
