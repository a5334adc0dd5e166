"""The commands and words of a script, as `script_parser` finds them and `script_reader` reads them.

Each has the characters or the position that a message or an unknown value needs.
"""

from __future__ import annotations

from dataclasses import dataclass

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
"""Pattern of the names of variables."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """Literal characters, and the position of the first in the source."""

    text: str
    offset: int
    quoted: bool


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """An expansion of a variable.

    Args:
        source: the characters of the expansion.
        offset: position in the source.
        quoted: whether the expansion is in double quotes.
        name: the variable, a number or one of @ and *.
        index: "" for the variable itself; @ or * for all elements of an array.
        operator: "" or an operator such as ":-"; None for a form that is not read.
        operand: the word after the operator.
    """

    source: str
    offset: int
    quoted: bool
    name: str
    index: str = ""
    operator: str | None = ""
    operand: tuple[Part, ...] = ()

    @property
    def is_all(self) -> bool:
        """Whether it stands for all elements of an array, or for all parameters."""
        return bool(self.index) or self.name in ("@", "*")


@dataclass(frozen=True, slots=True, eq=False)
class Arithmetic:
    """`$((...))`, with the parts of its formula."""

    source: str
    offset: int
    quoted: bool
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Foreign:
    """A value that a script does not contain, such as the output of a command."""

    source: str
    offset: int
    quoted: bool


Part = Literal | Variable | Arithmetic | Foreign


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """A word: its parts, its characters in the source, and the elements if it assigns an array."""

    parts: tuple[Part, ...]
    source: str
    offset: int
    elements: tuple[Word, ...] | None = None

    @property
    def start(self) -> str:
        """The unquoted literal characters at the start of the word."""
        first = self.parts[0] if self.parts else None
        return first.text if isinstance(first, Literal) and not first.quoted else ""

    @property
    def plain(self) -> str:
        """The unquoted literal characters of the word."""
        literals = (part for part in self.parts if isinstance(part, Literal))
        return "".join(part.text for part in literals if not part.quoted)

    @property
    def literal(self) -> str | None:
        """The text of a word without quotes and expansions; None for other words."""
        return self.start if len(self.parts) == 1 and self.start else None


@dataclass(slots=True, eq=False)
class HereDocument:
    """The input of a command, in the lines after it.

    Args:
        delimiter: the line that ends it.
        is_raw: whether it has no expansions.
        strips_tabs: whether tabs at the beginning of lines are no part of it.
        body: its lines.
        offset: position of the body in the source.
    """

    delimiter: str
    is_raw: bool
    strips_tabs: bool
    body: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Simple:
    """A simple command: its words with leading assignments, and its redirections.

    Args:
        words: the words.
        source: the characters of the command.
        redirections: the texts of its redirections.
        target: the file that its output replaces, if it does.
        document: the here-document that it reads, if any.
    """

    words: tuple[Word, ...]
    source: str
    redirections: tuple[str, ...] = ()
    target: Word | None = None
    document: HereDocument | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Test:
    """`[[ ... ]]`: the words and operators between the brackets."""

    words: tuple[Word, ...]
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class CommandList:
    """Commands one after the other, with the texts of the redirections of a compound command."""

    commands: tuple[Node, ...]
    redirections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class AndOr:
    """Commands joined by `&&` and `||`, which have the same precedence."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Not:
    """A command after `!`."""

    command: Node


@dataclass(frozen=True, slots=True, eq=False)
class Subshells:
    """Commands that run in shells of their own: ( ), jobs in the background, a pipeline."""

    commands: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class If:
    """The conditions and bodies of `if` and `elif`, and the body of `else`."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """`case`: the patterns and the body of each branch."""

    word: Word
    branches: tuple[tuple[tuple[Word, ...], Node], ...]
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop, of which the reader decides at most that its body never runs.

    Args:
        body: the commands that repeat.
        condition: the commands of `while`; None for other loops.
        assigned: the text that has the names which the loop itself assigns.
        words: the words of `for`; None for other loops.
    """

    body: Node
    condition: Node | None = None
    assigned: str = ""
    words: tuple[Word, ...] | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ShellFunction:
    """The definition of a function."""

    name: str
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """A command that is not read, such as `((...))`: it can assign any name in its text."""

    source: str
    offset: int = 0


Node = (
    Simple
    | Test
    | CommandList
    | AndOr
    | Not
    | Subshells
    | If
    | Loop
    | Case
    | ShellFunction
    | Opaque
)
