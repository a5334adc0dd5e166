"""Interpret the commands of a shell script, without running it.

Supported are variables, arrays, quotes, continued lines, arithmetic, defaults (`${N:-8}`) and `if`
with tests of text and numbers, in a shell without environment and parameters. A value that depends
on anything else (files, other programs, loops) is unknown, and so is every value derived from it.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from simtrain.importing.megatron.shell_words import Command, Expansion, Literal, Word, commands_of

# Characters with their offsets in the file, so that an expanded word keeps its positions.
Text = list[tuple[str, int]]
_MARK = "\0"  # Encloses the name of an unknown value; no script contains it.
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARATIONS = {"export", "declare", "local", "readonly", "typeset"}
_BLOCK_STARTS = {"for", "while", "until", "select", "case", "function"}
_BLOCK_ENDS = {"fi", "done", "esac", "}"}


def string(text: Text) -> str:
    """Return the characters without offsets."""
    return "".join(char for char, _ in text)


def unknown_name(text: str) -> str | None:
    """Return the first unknown variable or command in a text, such as "$1", or None."""
    found = re.search(f"{_MARK}(.*?){_MARK}", text, re.DOTALL)
    return found[1] if found else None


def words_of_commands(script: str, file: str) -> Iterator[list[Text]]:
    """Yield the expanded words of each command that the script runs or may run.

    Raises:
        InputError: a quote or bracket is not closed.
    """
    shell = _Shell()
    for command in commands_of(script, file):
        if words := shell.run(command):
            yield words


@dataclass
class _Block:
    """An `if` or another block.

    Args:
        runs: whether the current branch runs; None if unknown.
        has_run: whether a branch has run; None if unknown.
    """

    runs: bool | None
    has_run: bool | None


@dataclass
class _Shell:
    variables: dict[str, list[Text]] = field(default_factory=dict)
    blocks: list[_Block] = field(default_factory=list)
    condition: list[tuple[bool | None, str]] | None = None

    @property
    def runs(self) -> bool | None:
        """Whether the current commands run; None if it depends on unknown values."""
        states = [block.runs for block in self.blocks]
        return False if False in states else None if None in states else True

    def run(self, command: Command) -> list[Text] | None:
        """Interpret a command; return its expanded words, or None for blocks and assignments."""
        words = command.words
        if command.defines_function:
            self.blocks.append(_Block(None, None))
            return None
        while words and (keyword := words[0].literal) is not None:
            if keyword in ("if", "elif"):
                if keyword == "if":
                    self.blocks.append(_Block(None, False))
                self.condition = []
            elif keyword == "then":
                self._decide()
            elif keyword == "else":
                self._branch(True)
            elif keyword in _BLOCK_ENDS:
                if self.blocks:
                    self.blocks.pop()
            elif keyword in _BLOCK_STARTS:
                self.blocks.append(_Block(None, None))
                return None
            elif keyword == "{":
                self.blocks.append(_Block(True, True))
            elif keyword != "do":
                break
            words = words[1:]
        if self.condition is not None:
            if words:
                self.condition.append((self._test(words), command.operator))
            return None
        return self._simple(words)

    def _decide(self) -> None:
        """Evaluate the condition of an `if`, and begin its branch."""
        value: bool | None = True
        joined = "&&"
        for one, following in self.condition or []:
            value = _both(value, one) if joined == "&&" else _either(value, one)
            joined = following if following in ("&&", "||") else "&&"
        self.condition = None
        self._branch(value)

    def _branch(self, condition: bool | None) -> None:
        if not self.blocks:
            return
        block = self.blocks[-1]
        block.runs = _both(condition, _not(block.has_run))
        block.has_run = _either(block.has_run, block.runs)

    def _simple(self, words: list[Word]) -> list[Text] | None:
        """Store the leading assignments of a command; return its other words, expanded."""
        if words and words[0].literal in _DECLARATIONS:
            words = [word for word in words[1:] if not (word.literal or "").startswith("-")]
        while words and (found := _ASSIGNMENT.match(words[0].start)):
            self._assign(found[1], bool(found[2]), words[0].without(len(found[0])))
            words = words[1:]
        if self.runs is False:
            return None
        return [text for word in words for text in self.expand(word)]

    def _assign(self, name: str, appends: bool, word: Word) -> None:
        if self.runs is False:
            return
        if self.runs is None:
            self.variables[name] = [_unknown(f"${name}", word.offset)]
            return
        if word.elements is not None:
            new = [text for element in word.elements for text in self.expand(element)]
            self.variables[name] = [*self.variables.get(name, []), *new] if appends else new
            return
        value = self.joined(word)
        if appends:
            value = [one for text in self.variables.get(name, []) for one in text] + value
        self.variables[name] = [value]

    def joined(self, word: Word) -> Text:
        """Expand a word to one text, as in an assignment or a test."""
        texts = self.expand(Word(word.pieces, word.offset), splits=False)
        return [one for text in texts for one in text]

    def expand(self, word: Word, splits: bool = True) -> list[Text]:
        """Expand a word to words: split unquoted variables, and expand arrays to their elements."""
        done: list[Text] = []
        current: Text | None = None
        for piece in word.pieces:
            if isinstance(piece, Literal):
                current = (current or []) + piece.text
                continue
            values = self._values(piece)
            if splits and not piece.quoted:
                values = [part for value in values for part in split(value)]
            elif piece.quoted and not piece.several:
                values = [_joined(values, piece.offset)]
            for index, value in enumerate(values):
                if index and current is not None:
                    done.append(current)
                    current = None
                current = (current or []) + value
        # "${A[@]}" of an empty array expands to nothing.
        is_none = not current and any(
            isinstance(piece, Expansion) and piece.several for piece in word.pieces
        )
        return done if current is None or is_none else [*done, current]

    def _values(self, piece: Expansion) -> list[Text]:
        if piece.kind == "arithmetic":
            return [self._arithmetic(piece)]
        if piece.kind == "command":
            return [_unknown(f"$({piece.name})", piece.offset)]
        if piece.name in ("@", "*"):
            return []
        value = self.variables.get(piece.name)
        is_empty = value is None or not any(value)
        if piece.default is not None and is_empty:
            return [self.joined(piece.default)]
        if value is None or piece.is_unreadable:
            return [_unknown(f"${piece.name}{piece.elements}", piece.offset)]
        return value

    def _arithmetic(self, piece: Expansion) -> Text:
        def value_of(found: re.Match[str]) -> str:
            return "".join(map(string, self.variables.get(found[1], [[("?", 0)]])))

        formula = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", value_of, piece.name)
        try:
            number = _evaluate(ast.parse(formula.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, TypeError):
            return _unknown(f"$(({piece.name}))", piece.offset)
        return [(char, piece.offset) for char in str(number)]

    def _test(self, words: list[Word]) -> bool | None:
        """Return whether a command of a condition succeeds; None if unknown."""
        if words and words[0].literal == "!":
            return _not(self._test(words[1:]))
        if not words or words[0].literal not in ("[", "[[", "test"):
            return None
        inside = words[1:] if words[0].literal == "test" else words[1:-1]
        values: list[str] = []
        for word in inside:
            text = string(self.joined(word))
            # In a shell without environment, unset variables are empty.
            is_unset = re.fullmatch(rf"{_MARK}\$\w+{_MARK}", text)
            values.append("" if is_unset and text[2:-1] not in self.variables else text)
        return _test_of(values)


def split(text: Text) -> list[Text]:
    """Split a text at white space."""
    words: list[Text] = []
    starts, in_unknown = True, False
    for char, offset in text:
        in_unknown ^= char == _MARK
        if char.isspace() and not in_unknown:
            starts = True
            continue
        if starts:
            words.append([])
            starts = False
        words[-1].append((char, offset))
    return words


def _joined(texts: list[Text], offset: int) -> Text:
    """Join texts with blanks, as in "${A[*]}"."""
    joined = [one for text in texts for one in [(" ", offset), *text]]
    return joined[1:]


def _unknown(name: str, offset: int) -> Text:
    return [(char, offset) for char in f"{_MARK}{name}{_MARK}"]


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _both(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else None if None in (one, other) else True


def _either(one: bool | None, other: bool | None) -> bool | None:
    return _not(_both(_not(one), _not(other)))


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def _test_of(values: list[str]) -> bool | None:
    """Evaluate a test with -z, -n, =, !=, -eq and similar, !, && and ||; None if unknown."""
    for joint, join in (("||", _either), ("&&", _both), ("-o", _either), ("-a", _both)):
        if joint in values[1:-1]:
            at = values.index(joint, 1)
            return join(_test_of(values[:at]), _test_of(values[at + 1 :]))
    if values[:1] == ["!"] and len(values) > 1:
        return _not(_test_of(values[1:]))
    if any(unknown_name(value) for value in values):
        return None
    match values:
        case [only]:
            return bool(only)
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [left, "=" | "==", right]:
            return fnmatch.fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatch.fnmatchcase(left, right)
        case [left, compare, right] if compare in _COMPARISONS:
            if re.fullmatch(r"-?\d+", left) and re.fullmatch(r"-?\d+", right):
                return _COMPARISONS[compare](int(left), int(right))
    return None
