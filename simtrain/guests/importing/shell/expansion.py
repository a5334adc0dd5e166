"""The variables of a script, and what its words, formulas and patterns expand to.

A value that a script does not contain, or that is set in a way that is not read, is unknown, and so
is everything that is derived from it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from glob import escape

from simtrain.base.values import dataclass, field, replace
from simtrain.guests.importing.shell.syntax import Lines, Node

MAX_EXPANSIONS = 400_000
"""The most characters that all expansions of a script may have together."""
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
INTEGER = re.compile(r"\s*[-+]?(0|[1-9]\d{0,17})\s*", re.ASCII)
_NOT_READ = "sets in a way that is not read"
_BLANKS = re.compile(r"[ \t\n]+|[^ \t\n]+")
_PLAIN = re.compile(r"\\\n|\\(?P<char>.)|[^\\]+|\\", re.DOTALL)
_QUOTED = re.compile(r'\\\n|\\(?P<char>[$`"\\])|[^\\]+|\\', re.DOTALL)
_ASSIGNS = re.compile(r"[^=!<>]=[^=]|<<=|>>=|\+\+|--")
"""Whether a formula or an expansion may assign, as $((N++)) and ${N:=8} do."""
_TEXT = re.compile(
    r"""(?P<blank>(?:[ \t\n]|\\\n)+) | '(?P<raw>[^']*)' | "(?P<double>(?:\\.|[^"\\])*)"
    | (?P<program>\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\) | `[^`]*`)
    | \$\{(?P<braced>[^}]*)\} | \$(?P<name>\w+|[@*#]) | \\(?P<char>.) | (?P<plain>[^\s'"\\$`]+|[$`])
    | (?P<quote>['"\\])""",
    re.VERBOSE | re.DOTALL,
)
# Set by bash itself or by a login, which a shell without environment does not show.
_SPECIAL = re.compile(
    r"BASH.*|LC_.*|PS[0-4]|(?:CD|MAN|PYTHON|LD_LIBRARY_)?PATH|S?RANDOM|SECONDS|LINENO|E?UID|PPID|"
    r"(?:OLD)?PWD|HOME|USER|LOGNAME|HOSTNAME|SHELL.*|SHLVL|TERM|LANG|IFS|REPLY|MAPFILE|OPTARG|"
    r"OPTIND|FUNCNAME|HOSTTYPE|MACHTYPE|OSTYPE|COLUMNS|LINES|TMPDIR|PIPESTATUS|[0?$!_-]"
)


@dataclass(frozen=True, slots=True)
class WordPart:
    """Characters of a text, or an unknown value.

    Args:
        text: the characters; of an unknown value, its source, such as "$N".
        offset: position in the file.
        is_unknown: whether the characters are unknown.
        quoted: whether the characters are quoted.
        several: whether an unknown value may be several words, or none.
        absent: whether the value is unknown only because nothing sets its variable: it is empty in
            tests and for defaults (`${N:-8}`).
        reason: why a value is unknown, such as "which line 12 sets in a loop".
        variable: the variable whose value would make it known, or "".
    """

    text: str
    offset: int = field(default=0, compare=False)
    is_unknown: bool = False
    quoted: bool = False
    several: bool = False
    absent: bool = False
    reason: str = field(default="", compare=False)
    variable: str = field(default="", compare=False)


Field = tuple[WordPart, ...]
"""A text."""
Value = tuple[Field, ...]
"""The elements of an array; a plain variable has one."""
Stream = list[WordPart | None]
"""Segments of words; None ends a word."""


@dataclass(frozen=True, slots=True)
class BashWord:
    """A word of a command after all expansions.

    Args:
        text: the characters; of an unknown value, its source, such as "$1".
        offset: position in the file.
        unknown: the first unknown value in it, or None.
        may_be_arguments: whether it can be several arguments, or none.
        reason: why it is unknown; "" for names that the script does not define.
        variable: the variable whose value would make it known, or "".
    """

    text: str
    offset: int
    unknown: str | None = None
    may_be_arguments: bool = False
    reason: str = ""
    variable: str = ""


def argument_of(segments: Field) -> BashWord:
    """Return a text as a word of a command."""
    text, offset = characters(segments), segments[0].offset if segments else 0
    unknown = next((s for s in segments if s.is_unknown), None)
    if unknown is None:
        return BashWord(text, offset)
    several = any(s.several for s in segments)
    return BashWord(text, offset, unknown.text, several, unknown.reason, unknown.variable)


def characters(segments: Iterable[WordPart]) -> str:
    """Return the characters of a text, with the sources of unknown values in their place."""
    return "".join(s.text for s in segments)


def known(segments: Iterable[WordPart], absent_is_empty: bool = False) -> str | None:
    """Return the characters of a text, or None if a part of it is unknown."""
    parts = [s for s in segments if not (absent_is_empty and s.absent)]
    return None if any(s.is_unknown for s in parts) else characters(parts)


def is_vague(value: Value) -> bool:
    """Return whether it is unknown how many elements a value has."""
    return any(s.several for each in value for s in each)


def unknown_value(name: str, reason: str = "") -> Value:
    """Return the value of a name of which nothing is known."""
    variable = name if name.isidentifier() else ""
    unknown = WordPart(f"${name}", 0, True, several=True, reason=reason, variable=variable)
    return ((unknown,),)


def common_value(name: str, values: list[Value], reason: str) -> Value:
    """Return what values have in common of which a name has one: those before `A+=(...)`.

    Args:
        name: the name.
        values: its values.
        reason: why the rest is unknown.
    """
    first, *others = values
    if all(other == first for other in others):
        return first
    is_text = all(len(value) == 1 for value in values)
    lists = [value[0] if is_text else value for value in values]
    size = 0
    while all(len(each) > size and each[size] == lists[0][size] for each in lists):
        size += 1
    rest = unknown_value(name, reason)
    if not is_text:
        return (*first[:size], *rest)
    tails = [characters(value[0][size:]) for value in values]
    if not size or not all(not tail or tail[0].isspace() for tail in tails):
        return rest
    return ((*first[0][:size], WordPart(" "), *rest[0]),)


def words_in(stream: Stream) -> list[Field]:
    """Return the words of segments, without those of which nothing is left."""
    words, current = list[Field](), list[WordPart]()
    for segment in [*stream, None]:
        if segment is not None:
            current.append(segment)
        elif current:
            if any(s.text or s.quoted for s in current):
                words.append(tuple(current))
            current = []
    return words


@dataclass(slots=True)
class Expansion:
    """The variables of a script at one of its commands, and the expansion of words with them.

    Args:
        lines: the lines of the script, for errors.
        source: the script.
        answers: values of variables wherever the script leaves them unknown.
        is_batch_job: whether Slurm starts the script, and defines variables.
        env: the value of each name; parameters are "@".
        lost: why all names are unknown, those too that are assigned later, or "".
        at: position of the current command.
    """

    lines: Lines
    source: str
    answers: Mapping[str, str] = field(default_factory=dict)
    is_batch_job: bool = False
    env: dict[str, Value] = field(default_factory=lambda: {"@": ()})
    lost: str = ""
    at: int = 0
    num_expanded: int = 0

    # -------------------------------------------------------------------------------------- names

    def reason(self, text: str) -> str:
        """Return why a value is unknown: what the current line does."""
        return f"which line {self.lines.number(self.at)} {text}"

    def bind(self, name: str, value: Value) -> None:
        """Assign a value to a name; another IFS splits all later words in another way."""
        if name == "IFS":
            self.lost, self.env = self.reason("can change"), {}
        is_lost = self.lost or _SPECIAL.fullmatch(name)
        reason = self.lost or self.reason(_NOT_READ)
        self.env[name] = unknown_value(name, reason) if is_lost else value

    def taint(self, names: Iterable[str], how: str = _NOT_READ) -> None:
        """Make names unknown."""
        for name in names:
            self.bind(name, unknown_value(name, self.reason(how)))

    def lookup(self, name: str) -> Value:
        """Return the value of a name; what the user says of it if that is unknown."""
        value = self.env.get(name)
        if value is None:
            is_parameter = name.isdigit() and name != "0"
            if is_parameter and (parameters := self.env.get("@")):
                return (self.element(parameters, int(name[:9]) - 1, name),)
            is_slurm = self.is_batch_job and name.startswith("SLURM_")
            is_set_elsewhere = self.lost or is_slurm or _SPECIAL.fullmatch(name) or name == "@"
            ((segment,),) = unknown_value(name, self.lost)
            value = ((replace(segment, absent=is_parameter or not is_set_elsewhere),),)
        is_unknown = any(s.is_unknown and not s.absent for each in value for s in each)
        return ((WordPart(self.answers[name]),),) if name in self.answers and is_unknown else value

    def element(self, value: Value, index: int, name: str) -> Field:
        """Return an element; it is unknown if any number of elements may precede it."""
        for each in value[: index + 1]:
            if vague := next((s for s in each if s.several), None):
                is_absent = all(s.absent for s in each)
                return (replace(vague, text=f"${name}", absent=is_absent),)
        return value[index] if 0 <= index < len(value) else ()

    def scalar(self, name: str) -> Field:
        """Return the text of a variable, which is the first element of an array."""
        return self.element(self.lookup(name), 0, name)

    # -------------------------------------------------------------------------------------- words

    def slice(self, node: Node) -> str:
        return self.source[node["Pos"] : node["End"]]

    def unknown(self, node: Node, quoted: bool, several: bool, name: str = "") -> Stream:
        """Return the segment of an unknown expansion; `name` is the variable that decides it."""
        why = next((s for each in self.env.get(name, ()) for s in each if s.is_unknown), None)
        variable = name if name.isidentifier() else ""
        reason = why.reason if why else self.lost if variable else ""
        reason = "which is the output of a program" if node.get("Type") == "CmdSubst" else reason
        if _ASSIGNS.search(text := self.slice(node)):
            self.taint(NAME.findall(text))
        return [WordPart(text, node["Pos"], True, quoted, several, False, reason, variable)]

    def fields(self, word: Node) -> list[Field]:
        """Return the words that a word of a command expands to."""
        parts = word.get("Parts", [])
        shape = "".join(self.slice(part) if part["Type"] == "Lit" else "x" for part in parts)
        if shape.startswith("~") or re.search(r"(?s)(?<!\\)\{.*(,|\.\.).*\}", shape):
            return words_in(self.unknown(word, False, True))
        return words_in(self.stream(parts, False, True))

    def joined(self, word: Node | None) -> Field:
        """Return the text of a word that is not split, as in an assignment."""
        parts = (word or {}).get("Parts", [])
        if word and any(p["Type"] == "Lit" and re.search("(^|:)~", p["Value"]) for p in parts):
            return tuple(s for s in self.unknown(word, True, False) if s)
        stream = self.stream(parts, False, False)
        return tuple(replace(s, several=False) if s else WordPart(" ") for s in stream)

    def stream(self, parts: list[Node], quoted: bool, split: bool) -> Stream:
        """Expand the parts of a word; `split` is whether blanks of unquoted values end words."""
        stream = [segment for part in parts for segment in self._part(part, quoted, split)]
        self.num_expanded += sum(len(s.text) + 4 for s in stream if s)
        if self.num_expanded > MAX_EXPANSIONS:
            message = f"the script expands to more than {MAX_EXPANSIONS:,} characters"
            raise self.lines.too_large(message, self.at)
        return stream

    def _part(self, part: Node, quoted: bool, split: bool) -> Stream:
        start, end = part["Pos"], part["End"]
        match part["Type"]:
            case "Lit":
                return plain_text(self.slice(part), start, quoted)
            case "SglQuoted" if not (part.get("Dollar") and "\\" in self.slice(part)):
                start += 1 + bool(part.get("Dollar"))
                return [WordPart(self.source[start : end - 1], start, quoted=True)]
            case "DblQuoted":
                inner = self.stream(part.get("Parts", []), True, split)
                return inner if part.get("Parts") else [WordPart("", start, quoted=True)]
            case "ParamExp":
                return self._variable(part, quoted, split)
            case "ArithmExp" if (number := self.formula(part.get("X"))) is not None:
                return [WordPart(str(number), start, quoted=quoted)]
        is_many = split and not quoted and part["Type"] in ("CmdSubst", "ExtGlob", "BraceExp")
        return self.unknown(part, quoted, is_many)

    def _variable(self, node: Node, quoted: bool, split: bool) -> Stream:
        """Expand $NAME or ${NAME...}."""
        name, index = node["Param"]["Value"], node.get("Index")
        key = self.slice(index) if index else name
        star = key if key in ("@", "*") else ""
        name = "@" if name == "*" else name
        several = split and (not quoted or star == "@")
        extra = node.keys() - {"Type", "Pos", "End", "Dollar", "Rbrace", "Short", "Param", "Index"}
        operation = node.get("Exp", {}).get("Op", "")
        if extra - {"Exp"} or operation.lstrip(":") not in ("", "-", "=", "+"):
            return self.unknown(node, quoted, several)
        if name == "#":
            value = self.lookup("@")
            if is_vague(value):
                return self.unknown(node, quoted, False)
            return [WordPart(str(len(value)), node["Pos"], quoted=quoted)]
        if star:
            fields = [*self.lookup(name)]
        elif index is None:
            fields = [self.scalar(name)]
        elif (number := self.formula(index)) is not None and number >= 0:
            fields = [self.element(self.lookup(name), number, name)]
        else:
            return self.unknown(node, quoted, several)
        if operation:
            is_set, word = _is_set(fields, operation), node["Exp"].get("Word", {})
            if is_set is None:
                self.taint([name] * operation.endswith("="))
                return self.unknown(node, quoted, several, name)
            if is_set == operation.endswith("+"):
                parts = word.get("Parts", [])
                empty: Stream = [WordPart("", node["Pos"], quoted=True)] * quoted
                used = [*self.stream(parts, quoted, split), *empty]
                if operation.endswith("="):
                    self.bind(name, (self.joined(word),))
                return used if quoted or not split else _split(used)
            if operation.endswith("+"):
                return [WordPart("", node["Pos"], quoted=True)] * quoted
        return self.emit(fields, star, quoted, split, node["Pos"], name)

    def emit(
        self, fields: list[Field], star: str, quoted: bool, split: bool, place: int, name: str
    ) -> Stream:
        """Return the segments of values in the place of an expansion of ${name[star]}."""
        result: Stream = []
        is_whole = len(fields) == 1 and len(fields[0]) == 1 and not star and name.isidentifier()
        is_joined = quoted and star == "*"
        for number, each in enumerate(fields):
            if number:
                result.append(WordPart(" ", place, quoted=True) if is_joined else None)
            for s in each:
                variable = s.variable or (name if s.is_unknown and is_whole else "")
                several, offset = s.several and bool(star) and not is_joined, s.offset or place
                new = replace(s, offset=offset, quoted=quoted, several=several, variable=variable)
                result.append(new)
            if quoted and not each:
                result.append(WordPart("", place, quoted=True))
        if is_joined and not fields:
            result.append(WordPart("", place, quoted=True))
        return result if quoted or not split else _split(result)

    def words_of_text(self, text: str, places: list[int]) -> list[Field]:
        """Return the words of a text in which only quotes and variables have a meaning.

        Args:
            text: arguments, or a text that a shell evaluates.
            places: the offset in the file of each of its characters.

        Raises:
            InputError: a quote has no end (E876).
        """
        return words_in(self._stream_of_text(text, places, False))

    def _stream_of_text(self, text: str, places: list[int], quoted: bool) -> Stream:
        stream: Stream = []
        for match in _TEXT.finditer(text):
            kind, place = str(match.lastgroup), places[match.start()]
            content = match[kind]
            inner = places[match.start(kind) :]
            if kind == "quote" and not quoted:
                raise self.lines.wrong(f"no second {content}", place)
            if kind == "blank" and not quoted:
                stream.append(None)
            elif kind == "double" and not quoted:
                inside = self._stream_of_text(content, inner, True)
                stream += [*inside, WordPart("", place, quoted=True)]
            elif kind == "raw" and not quoted:
                stream.append(WordPart(content, inner[0], quoted=True))
            elif kind == "program" or (kind == "braced" and not NAME.fullmatch(content)):
                reason = "which is the output of a program" if kind == "program" else ""
                several = not quoted
                stream.append(WordPart(match[0], place, True, quoted, several, reason=reason))
            elif kind in ("name", "braced"):
                star = "@" * (content in "@*")
                fields = [*self.lookup("@")] if star else [self.scalar(content)]
                stream += self.emit(fields, star, quoted, True, place, content)
            else:
                escaped = kind == "char" and (not quoted or content in '$`"\\')
                shown = content if escaped else match[0]
                stream.append(WordPart(shown, place, quoted=quoted or kind == "char"))
        return stream

    def pattern(self, word: Node) -> re.Pattern[str] | None:
        """Return a pattern of bash as one of Python; None if it is unknown or not simple."""
        result = ""
        for s in self.joined(word):
            if s.is_unknown and not s.absent:
                return None
            text = "" if s.absent else s.text
            if not s.quoted and re.search(r"[\\\[]", text):
                return None
            result += escape(text) if s.quoted else text
        return re.compile(translate(result))

    # -------------------------------------------------------------------------------- formulas

    def formula(self, node: Node | None) -> int | None:
        """Evaluate a formula; None if it is unknown."""
        match node:
            case {"Type": "Word"}:
                return self._integer(self.joined(node))
            case {"Type": "ParenArithm", "X": inner}:
                return self.formula(inner)
            case {"Type": "UnaryArithm", "Op": "-" | "+" as sign, "X": inner}:
                x = self.formula(inner)
                return -x if sign == "-" and x is not None else x
            case {"Type": "BinaryArithm", "Op": op, "X": left, "Y": right} if op in _BINARY:
                x, y = self.formula(left), self.formula(right)
                if x is None or y is None or (y == 0 and op in "/%"):
                    return None
                number = int(_BINARY[op](x, y))
                return number if abs(number) < 2**63 else None
        if node and _ASSIGNS.search(text := self.slice(node)):
            self.taint(NAME.findall(text))
        return None

    def _integer(self, segments: Field) -> int | None:
        """Return the value of a number, or of a variable with one, in a formula."""
        text = known(segments)
        if text is not None and NAME.fullmatch(text.strip()):
            text = known(self.scalar(text.strip()))
        return int(text) if text is not None and INTEGER.fullmatch(text) else None


def plain_text(text: str, start: int, quoted: bool) -> Stream:
    """Return the segments of written characters, without the backslashes of escapes."""
    pieces: Stream = []
    if (len(text) - len(text.rstrip("\\"))) % 2:  # before the end of a line
        text = text[:-1]
    for match in (_QUOTED if quoted else _PLAIN).finditer(text):
        if match[0] != "\\\n":
            char = match["char"]
            place = start + match.start() + (char is not None)
            is_quoted = quoted or char is not None
            pieces.append(WordPart(match[0] if char is None else char, place, quoted=is_quoted))
    return pieces


def _split(stream: Stream) -> Stream:
    """Split unquoted values at blanks."""
    result: Stream = []
    for s in stream:
        if s is None or s.quoted:
            result.append(s)
        elif s.is_unknown:
            result.append(replace(s, several=True))
        else:
            for piece in _BLANKS.finditer(s.text):
                new = replace(s, text=piece[0], offset=s.offset + piece.start())
                result.append(None if piece[0].isspace() else new)
    return result


def _is_set(fields: list[Field], operation: str) -> bool | None:
    """Return whether a variable counts as set for `:-` and its like; None if that is unknown."""
    segments = [s for each in fields for s in each]
    if any(s.text and not s.is_unknown for s in segments) or len(fields) > 1:
        return True
    if not fields or (segments and all(s.absent for s in segments)):
        return False
    return None if any(s.is_unknown for s in segments) else not operation.startswith(":")


_BINARY: dict[str, Callable[[int, int], int]] = {
    "/": lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
    "%": lambda x, y: abs(x) % abs(y) * (-1 if x < 0 else 1),
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt},
    **{">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq},
    "!=": operator.ne,
}
