"""Parse a bash script into the commands and words of `syntax_tree`.

The parser refuses what it does not read as bash does, in place of guessing. It is ours because the
packages that parse bash do not suit: tree-sitter's grammar, made for editors, reads some scripts
differently from bash without an error (`A=a\\` continued by `b` assigns "a").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simtrain.importing.shell.lines import Lines
from simtrain.importing.shell.syntax_tree import (
    AndOr,
    Case,
    CommandList,
    HereDocument,
    If,
    Loop,
    Node,
    Not,
    Opaque,
    ShellFunction,
    Simple,
    Subshells,
    Test,
    Word,
)
from simtrain.importing.shell.word_parser import PLACEHOLDER, REDIRECTION, WordParser

_CLOSING = {"then", "else", "elif", "fi", "do", "done", "esac", "}"}
_FUNCTION = re.compile(r"[ \t]*\([ \t]*\)")
_DELIMITER = re.compile(r"""(?:[^\s;|&()<>'"\\$`]|\\.|'[^'\n]*'|"[^"\n$`\\]*")+""")


@dataclass(slots=True)
class Parser(WordParser):
    """Parser of a script, or of a text that a script evaluates."""

    def parse(self) -> CommandList:
        """Return the commands of the script.

        Raises:
            InputError: a quote, bracket or block does not end, or the syntax is not supported.
        """
        self.is_script = True
        block = self._block()
        if self.at < len(self.script):
            raise self._unexpected()
        return block

    # ------------------------------------------------------------------------------------ commands

    def _block(self, *ends: str) -> CommandList:
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
        return CommandList(tuple(commands))

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
        return CommandList((command,), redirections) if redirections else command

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
        while match := REDIRECTION.match(self.script, self.at):
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

    def _do(self) -> CommandList:
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

    def _function(self) -> ShellFunction:
        name = self._word().literal
        if not name:
            raise self._unexpected()
        if definition := _FUNCTION.match(self.script, self.at):
            self.at = definition.end()
        return self._body(name)

    def _body(self, name: str) -> ShellFunction:
        self._skip_lines()
        self._nest(self.at)
        function = ShellFunction(name, self._command())
        self.depth -= 1
        return function

    def _group(self) -> CommandList:
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
            text += chr(PLACEHOLDER + len(unknown))
            unknown.append(piece)
    return Parser(text, lines, origins or [(0, 0)], unknown)
