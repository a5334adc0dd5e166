"""The variables of a script, and what its words, formulas and patterns expand to.

A value that a script does not contain, or that is set in a way that is not read, is unknown, and so
is everything that is derived from it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from glob import escape

from simtrain.importing.shell.syntax import UNMARKED, Lines, Node, Source
from simtrain.importing.shell.values import (
    Field,
    Segment,
    Stream,
    Value,
    characters,
    is_vague,
    known,
    unknown_value,
)

MAX_EXPANSIONS = 1_000_000
"""The most characters that all expansions of a script may have together."""
_DEFAULTS = ("", "-", "=", "?", "+")
"""The operators of ${X:-word} and its like, without the colon."""
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NOT_READ = "sets in a way that is not read"
_HOLES = re.compile("[\ue000-\uf8ff]|[^\ue000-\uf8ff]+")
"""Characters in a text that is parsed again; each of private use stands for an unknown part."""
_BLANKS = re.compile(r"[ \t\n]+|[^ \t\n]+")
_PLAIN = re.compile(r"\\\n|\\(?P<char>.)|[^\\]+|\\", re.DOTALL)
_QUOTED = re.compile(r'\\\n|\\(?P<char>[$`"\\])|[^\\]+|\\', re.DOTALL)
_DOCUMENT = re.compile(r"\\\n|\\(?P<char>[$`\\])|[^\\]+|\\", re.DOTALL)
_ALL = re.compile(r"(?s).+")
_CLASS = re.compile(r"\[!?[\w.-]+\]", re.ASCII)
_INTEGER = re.compile(r"\s*([-+]?)(0[xX][\da-fA-F]{1,16}|0[0-7]{0,22}|[1-9]\d{0,18})\s*", re.ASCII)
ASSIGNING = re.compile(r"=|\+\+|--")
"""Whether an expansion or a formula may assign."""
# Set by bash itself or by a login, which a shell without environment does not show.
_SPECIAL = re.compile(
    r"BASH.*|COMP_.*|EPOCH.*|LC_.*|PS[0-4]|(?:CD|MAN|PYTHON|LD_LIBRARY_)?PATH|PIPESTATUS|S?RANDOM|"
    r"SECONDS|LINENO|E?UID|PPID|(?:OLD)?PWD|HOME|USER|LOGNAME|HOSTNAME|SHELL|SHELLOPTS|SHLVL|TERM|"
    r"LANG|OPTIND|OPTERR|GROUPS|FUNCNAME|DIRSTACK|HISTCMD|HOSTTYPE|MACHTYPE|OSTYPE|COLUMNS|LINES|"
    r"COPROC.*|TMPDIR|[0?$!_-]"
)


@dataclass(slots=True)
class Expansion:
    """The variables of a script at one of its commands, and the expansion of words with them.

    Args:
        lines: the lines of the script, for errors.
        source: the text that is read.
        answers: values of variables wherever the script leaves them unknown.
        is_batch_job: whether Slurm starts the script, and defines variables.
        env: the value of each name; parameters are "@".
        lost: why all other names are unknown, or "".
        is_lost: whether nothing that is assigned later is known, as if IFS had changed.
        readonly: names that cannot be assigned.
        arrays: names that have been arrays, of which N=8 sets the first element alone.
        texts: names that were assigned a text that is no integer, and may still have it.
        touched: the names that were assigned; "*" if they were forgotten.
        at: position of the current command.
    """

    lines: Lines
    source: Source
    answers: Mapping[str, str] = field(default_factory=dict)
    is_batch_job: bool = False
    env: dict[str, Value] = field(default_factory=lambda: {"@": ()})
    lost: str = ""
    is_lost: bool = False
    readonly: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    at: int = 0
    num_expanded: int = 0

    # -------------------------------------------------------------------------------------- names

    def reason(self, text: str) -> str:
        """Return why a value is unknown: what the current line does."""
        return f"which line {self.lines.number(self.at)} {text}"

    def bind(self, name: str, value: Value) -> None:
        """Assign a value to a name."""
        if name in ("IFS", "POSIXLY_CORRECT") or name in self.readonly:
            self.lose()
        if any((text := known(each)) and not _INTEGER.fullmatch(text) for each in value):
            self.texts.add(name)
        if self.is_lost or _SPECIAL.fullmatch(name):
            value = unknown_value(name, self.lost or self.reason(_NOT_READ))
        self.env[name] = value
        self.touched.add(name)

    def taint(self, names: Iterable[str], how: str = _NOT_READ) -> None:
        """Make names unknown."""
        for name in names:
            self.bind(name, unknown_value(name, self.reason(how)))

    def forget(self) -> None:
        """Make all names unknown that are assigned so far."""
        self.env, self.lost = {}, self.reason("can change")
        self.touched.add("*")

    def lose(self) -> None:
        """Make all names unknown, those too that are assigned later."""
        self.forget()
        self.is_lost = True

    def lookup(self, name: str) -> Value:
        """Return the value of a name; what the user says of it if that is unknown."""
        value = self.env.get(name)
        if value is None:
            is_parameter = name.isdigit() and name != "0"
            parameters, number = self.env.get("@") or (), int(name[:9]) if is_parameter else 0
            if is_parameter and (len(parameters) >= number or is_vague(parameters)):
                return (self.element(parameters, number - 1, name),)
            is_slurm = self.is_batch_job and name.startswith("SLURM_")
            is_set_elsewhere = self.lost or is_slurm or _SPECIAL.fullmatch(name) or name == "@"
            ((segment,),) = unknown_value(name, self.lost)
            value = ((replace(segment, absent=is_parameter or not is_set_elsewhere),),)
        is_unknown = any(s.unknown and not s.absent for each in value for s in each)
        return ((Segment(self.answers[name]),),) if name in self.answers and is_unknown else value

    def element(self, value: Value, index: int, name: str) -> Field:
        """Return an element; it is unknown if any number of elements may precede it."""
        for each in value[: index + 1]:
            if vague := next((s for s in each if s.several), None):
                is_absent = all(s.absent for s in each)
                text = f"${name}"
                return (replace(vague, text=text, unknown=text, absent=is_absent),)
        return value[index] if index < len(value) else ()

    def scalar(self, name: str) -> Field:
        """Return the text of a variable, which is the first element of an array."""
        return self.element(self.lookup(name), 0, name)

    # -------------------------------------------------------------------------------------- words

    def unknown(self, node: Node, quoted: bool, several: bool, name: str = "") -> list[Segment]:
        """Return the segment of an unknown expansion; `name` is the variable that decides it."""
        text, place = self.source.written(node), self.source.place(node["Pos"])
        why = next((s for each in self.env.get(name, ()) for s in each if s.unknown), None)
        variable = name if name.isidentifier() else ""
        reason = why.reason if why else self.lost if variable else ""
        return [Segment(text, place, text, quoted, several, reason=reason, variable=variable)]

    def fields(self, word: Node) -> list[Field]:
        """Return the words that a word of a command expands to."""
        parts = word.get("Parts", [])
        shape = "".join(self.source.slice(part) if part["Type"] == "Lit" else "x" for part in parts)
        if re.search(r"(?s)\{.*(,|\.\.).*\}", re.sub(r"(?s)\\.", "x", shape)):
            return [tuple(self.unknown(word, False, True))]
        stream = self.stream(parts, False, True)
        if shape.startswith("~"):
            stream = [*self.unknown(word, True, any(s and s.several for s in stream))]
        return words_in(stream)

    def joined(self, word: Node | None, is_assigned: bool = False) -> Field:
        """Return the text of a word that is not split, as in an assignment."""
        parts = (word or {}).get("Parts", [])
        stream = self.stream(parts, False, False)
        home = r"(^|:)~" if is_assigned else "^~"
        if word and any(p["Type"] == "Lit" and re.search(home, p["Value"]) for p in parts):
            stream = [*self.unknown(word, True, False)]
        return tuple(replace(s, several=False) if s else Segment(" ") for s in stream)

    def document(self, redirection: Node) -> Field:
        """Return the text of a here-document."""
        body = redirection.get("Hdoc") or {}
        parts = body.get("Parts", [])
        is_raw = any(
            part["Type"] != "Lit" or "\\" in part["Value"] for part in redirection["Word"]["Parts"]
        )
        end, stream = characters(self.joined(redirection["Word"])), Stream()
        for part in parts:
            if part["Type"] == "Lit":
                text, index = self.source.slice(part), self.source.index(part["Pos"])
                if part is parts[-1] and not part["Value"].endswith(end):
                    text = text.removesuffix(end)  # shfmt counts the last line to it
                stream += self._plain(text, index, True, None if is_raw else _DOCUMENT)
            else:
                stream += self._part(part, True, False)
        segments = [s for s in stream if s]
        if redirection["Op"] == "<<-":
            segments = [replace(s, text=re.sub(r"(?m)^\t+", "", s.text)) for s in segments]
        return tuple(segments)

    def stream(self, parts: list[Node], quoted: bool, split: bool) -> Stream:
        """Expand the parts of a word; `split` is whether blanks of unquoted values end words."""
        pieces = [self._part(part, quoted, split) for part in parts]
        for number, (part, piece) in enumerate(zip(parts, pieces, strict=True)):
            # What stands beside ${A[@]} belongs to its first or last element, if there is one.
            is_list = part["Type"] == "DblQuoted" or "[" in self.source.slice(part)
            if len(parts) > 1 and is_list and None in piece and any(s and s.several for s in piece):
                pieces[number] = [*self.unknown(part, quoted, True)]
        stream = [segment for piece in pieces for segment in piece]
        self.num_expanded += sum(len(s.text) + 4 for s in stream if s)
        if self.num_expanded > MAX_EXPANSIONS:
            message = f"the script expands to more than {MAX_EXPANSIONS:,} characters"
            raise self.lines.too_large(message, self.at)
        return stream

    def _part(self, part: Node, quoted: bool, split: bool) -> Stream:
        place = self.source.place(part["Pos"])
        match part["Type"]:
            case "Lit":
                raw = self.source.slice(part)
                if (len(raw) - len(raw.rstrip("\\"))) % 2:  # before the end of a line
                    raw = raw[:-1]
                escapes = _QUOTED if quoted else _PLAIN
                return self._plain(raw, self.source.index(part["Pos"]), quoted, escapes)
            case "SglQuoted" if not part.get("Dollar") or "\\" not in part.get("Value", ""):
                start = self.source.index(part["Pos"]) + 1 + bool(part.get("Dollar"))
                text = self._plain(part.get("Value", ""), start, True, None)
                return [*text, Segment("", place, quoted=True)]
            case "DblQuoted":
                inner = part.get("Parts", [])
                empty = [] if inner else [Segment("", place, quoted=True)]
                return self.stream(inner, True, split) + empty
            case "ParamExp":
                return self._variable(part, quoted, split)
            case "ArithmExp" if (number := self.formula(part.get("X"))) is not None:
                return [Segment(str(number), place, quoted=quoted)]
        is_many = split and not quoted and part["Type"] in ("CmdSubst", "ExtGlob", "BraceExp")
        reason = "which is the output of a program" if part["Type"] == "CmdSubst" else ""
        return [replace(s, reason=reason) for s in self.unknown(part, quoted, is_many)]

    def _plain(
        self, text: str, index: int, quoted: bool, escapes: re.Pattern[str] | None
    ) -> Stream:
        """Return the segments of written characters, without the backslashes of escapes."""
        pieces: Stream = []
        for match in (escapes or _ALL).finditer(text):
            char = match["char"] if escapes else None
            if escapes and match[0] == "\\\n":
                continue
            start = index + match.start() + (char is not None)
            for part in _HOLES.finditer(char or match[0]):
                place = self.source.places[start + part.start()]
                if unknown := self.source.holes.get(part[0]):
                    pieces.append(replace(unknown, quoted=quoted, several=not quoted))
                else:
                    is_quoted = quoted or char is not None
                    pieces.append(Segment(part[0].translate(UNMARKED), place, quoted=is_quoted))
        return pieces

    def _split(self, stream: Stream) -> Stream:
        """Split unquoted values at blanks."""
        result: Stream = []
        for s in stream:
            if s is None or s.quoted:
                result.append(s)
            elif s.unknown:
                result.append(replace(s, several=True))
            else:
                for piece in _BLANKS.finditer(s.text):
                    new = replace(s, text=piece[0], offset=s.offset + piece.start())
                    result.append(None if piece[0].isspace() else new)
        return result

    # ----------------------------------------------------------------------------- ${NAME...}

    def _variable(self, node: Node, quoted: bool, split: bool) -> Stream:
        """Expand $NAME or ${NAME...}."""
        name, index = node["Param"]["Value"], node.get("Index")
        key = "".join(part.get("Value", "?") for part in (index or {}).get("Parts", []))
        star = "*" if "*" in (name, key) else "@" if "@" in (name, key) else ""
        name = "@" if name == "*" else name
        several = split and (not quoted or star == "@")
        unknown: Stream = [*self.unknown(node, quoted, several, "" if index else name)]
        extra = node.keys() - {"Type", "Pos", "End", "Dollar", "Rbrace", "Short", "Param", "Index"}
        operation = node.get("Exp", {}).get("Op", "")
        if extra - {"Exp"} or operation.lstrip(":") not in _DEFAULTS:
            several = split and (not quoted or bool(star) or "Names" in extra)
            text = self.source.slice(node)
            self.taint(NAME.findall(text) if "=" in text else ())
            return [*self.unknown(node, quoted, several)]
        place = self.source.place(node["Pos"])
        if name == "#":
            value = self.lookup("@")
            return unknown if is_vague(value) else [Segment(str(len(value)), place, quoted=quoted)]
        if star:
            fields = [*self.lookup(name)]
        elif index and (number := self.formula(index)) is not None and number >= 0:
            fields = [self.element(self.lookup(name), number, name)]
        else:
            fields = [tuple(s for s in unknown if s)] if index else [self.scalar(name)]
        if operation:
            stream = self._default(node, fields, name, star, quoted, split)
            if stream is not None:
                return stream
        return self.emit(fields, star, quoted, split, place, name)

    def emit(
        self, fields: list[Field], star: str, quoted: bool, split: bool, place: int, name: str
    ) -> Stream:
        """Return the segments of values in the place of an expansion of ${name[star]}."""
        result: Stream = []
        is_whole = len(fields) == 1 and len(fields[0]) == 1 and not star and name.isidentifier()
        for number, each in enumerate(fields):
            if number:
                result.append(Segment(" ", place, quoted=True) if quoted and star == "*" else None)
            for s in each:
                many = s.several and bool(star) and not (quoted and star == "*")
                variable = s.variable or (name if s.unknown and is_whole else "")
                at = s.offset or place
                new = replace(s, offset=at, quoted=quoted, several=many, variable=variable)
                result.append(new)
            if quoted and not each:
                result.append(Segment("", place, quoted=True))
        if quoted and star == "*":
            result.append(Segment("", place, quoted=True))
        return result if quoted or not split else self._split(result)

    def _default(
        self, node: Node, fields: list[Field], name: str, star: str, quoted: bool, split: bool
    ) -> Stream | None:
        """Expand ${X:-word} and its like; None if the value itself stands there."""
        operation, word = node["Exp"]["Op"], node["Exp"].get("Word", {})
        segments = [s for each in fields for s in each]
        is_set: bool | None
        if any(s.text and not s.unknown for s in segments) or len(fields) > 1:
            is_set = True
        elif not fields or (segments and all(s.absent for s in segments)):
            is_set = False
        else:
            is_set = None if segments else not operation.startswith(":")
        kind, parts = operation[-1], word.get("Parts", [])
        if is_set and kind != "+":
            return None
        text = self.source.slice(word) if parts else ""
        odd_quotes = quoted and re.search(r"['\\]", text)
        if is_set is None or kind == "?" or text.startswith("~") or odd_quotes or (star and quoted):
            several = split and (not quoted or bool(star))
            if kind == "=" or ASSIGNING.search(text):  # an operand that may be expanded may assign
                self.taint([name] if kind == "=" else ())
                self.taint(NAME.findall(text))
            return [*self.unknown(node, quoted, several, name)]
        place = self.source.place(node["Pos"])
        if kind == "=":
            assigned = tuple(s for s in self.stream(parts, quoted, False) if s)
            self.bind(name, (assigned,))
            return self.emit([self.scalar(name)], "", quoted, split, place, name)
        used = self.stream(parts, quoted, split) if is_set == (kind == "+") else []
        empty = [Segment("", place, quoted=True)] * quoted
        return [*used, *empty] if quoted or not split else self._split(used)

    def pattern(self, word: Node) -> re.Pattern[str] | None:
        """Return a pattern of bash as one of Python; None if it is unknown or not simple."""
        result = ""
        for s in self.joined(word):
            if s.unknown and not s.absent:
                return None
            text = "" if s.absent else s.text
            if not s.quoted and ("\\" in text or "[" in _CLASS.sub("", text)):
                return None
            result += escape(text) if s.quoted else text
        return re.compile(translate(result))

    # -------------------------------------------------------------------------------- formulas

    def formula(self, node: Node | None) -> int | None:
        """Evaluate a formula; None if it is unknown."""
        match (node or {}).get("Type"):
            case "Word":
                return self._integer(self.joined(node))
            case "ParenArithm":
                return self.formula((node or {})["X"])
            case "UnaryArithm" if node and node["Op"] in ("-", "+", "!"):
                x = self.formula(node["X"])
                signs = {"-": -1, "+": 1}
                return (
                    None
                    if x is None
                    else x * signs[node["Op"]]
                    if node["Op"] != "!"
                    else int(not x)
                )
            case "BinaryArithm" if node and node["Op"] in _BINARY:
                x, y = self.formula(node["X"]), self.formula(node["Y"])
                is_error = y == 0 and node["Op"] in "/%"
                if is_error:
                    self.lose()  # After an error, bash leaves out the rest of the command.
                if x is None or y is None or is_error:
                    return None
                number = int(_BINARY[node["Op"]](x, y))
                return number if -(2**63) <= number < 2**63 else None
        if node:
            text = self.source.slice(node)
            for name in NAME.findall(text):
                self._integer((Segment(name),))  # An error changes what follows.
            self.taint(NAME.findall(text) if ASSIGNING.search(text) else ())
        return None

    def _integer(self, segments: Field) -> int | None:
        """Return the value of a text in a formula."""
        text: str | None = None
        for is_value in (False, True):
            text = known(segments)
            if text is None:
                # It may be a formula itself, which can assign or fail.
                if any(s.variable in self.texts for s in segments):
                    self.lose()
                return None
            if is_value and not text:
                return None  # which is 0, but seldom meant
            if not NAME.fullmatch(text.strip()):
                break
            segments = self.scalar(text.strip())
        match = _INTEGER.fullmatch(text or "")
        if not match:
            self.lose()  # another formula, or an error
            return None
        digits = match[2]
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
        return int(match[1] + digits, base) if int(digits, base) < 2**63 else None


_BINARY: dict[str, Callable[[int, int], int]] = {
    "/": lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
    "%": lambda x, y: abs(x) % abs(y) * (-1 if x < 0 else 1),
    "&&": lambda x, y: bool(x and y),
    "||": lambda x, y: bool(x or y),
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt},
    **{">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq},
    "!=": operator.ne,
}


def words_in(stream: Stream) -> list[Field]:
    """Return the words of segments, without those of which nothing is left."""
    words, current = list[Field](), list[Segment]()
    for segment in [*stream, None]:
        if segment is not None:
            current.append(segment)
        elif current:
            if any(s.text or s.quoted or s.unknown for s in current):
                words.append(tuple(current))
            current = []
    return words
