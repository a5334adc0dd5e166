"""The variables of a script, and what its words, formulas and patterns expand to.

A value that a script does not contain, or that is set in a way that is not read, is unknown, and so
is everything that is derived from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

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
_LONGEST_CHANGED = 1000
"""The longest text whose beginnings or ends are compared with a pattern."""
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NOT_READ = "sets in a way that is not read"
_HOLES = 0xE000
MOST_HOLES = 0xF8FF - _HOLES
_BLANKS = re.compile(r"[ \t\n]+|[^ \t\n]+")
_PLAIN = re.compile(r"\\\n|\\(?P<char>.)|[^\\]+|\\", re.DOTALL)
_QUOTED = re.compile(r'\\\n|\\(?P<char>[$`"\\])|[^\\]+|\\', re.DOTALL)
_DOCUMENT = re.compile(r"\\\n|\\(?P<char>[$`\\])|[^\\]+|\\", re.DOTALL)
_ALL = re.compile(r"(?s).+")
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


def hole(number: int) -> str:
    """Return the character that stands for an unknown part of a text that is parsed again."""
    return chr(_HOLES + number)


@dataclass(slots=True)
class Expansion:
    """The variables of a script at one of its commands, and the expansion of words with them.

    Args:
        lines: the lines of the script, for errors.
        source: the text that is read.
        answers: values of variables wherever the script leaves them unknown.
        is_batch_job: whether Slurm starts the script, and defines variables.
        env: the value of each name; parameters are "@".
        is_forgotten: whether all other names are unknown.
        is_lost: whether nothing that is assigned later is known, as if IFS had changed.
        lost: why all other names are unknown.
        readonly: names that cannot be assigned.
        attributed: names with an attribute that changes their values, as of `declare -i`.
        arrays: names that have been arrays, of which N=8 sets the first element alone.
        texts: names that were assigned a text that is no integer, and may still have it.
        touched: the names that were assigned.
        at: position of the current command.
    """

    lines: Lines
    source: Source
    answers: Mapping[str, str] = field(default_factory=dict)
    is_batch_job: bool = False
    env: dict[str, Value] = field(default_factory=lambda: {"@": ()})
    is_forgotten: bool = False
    is_lost: bool = False
    lost: str = ""
    readonly: set[str] = field(default_factory=set)
    attributed: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    at: int = 0
    num_expanded: int = 0
    num_forgotten: int = 0

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
        if self.is_lost or name in self.attributed or _SPECIAL.fullmatch(name):
            value = unknown_value(name, self.lost or self.reason(_NOT_READ))
        self.env[name] = value
        self.touched.add(name)

    def taint(self, names: Iterable[str], how: str = _NOT_READ) -> None:
        """Make names unknown."""
        for name in names:
            self.bind(name, unknown_value(name, self.reason(how)))

    def forget(self) -> None:
        """Make all names unknown that are assigned so far."""
        self.env, self.is_forgotten, self.lost = {}, True, self.reason("can change")
        self.num_forgotten += 1

    def lose(self) -> None:
        """Make all names unknown, those too that are assigned later."""
        self.forget()
        self.is_lost = True

    def lookup(self, name: str) -> Value:
        """Return the value of a name; what the user says of it if that is unknown."""
        value = self._value_of(name)
        is_unknown = any(s.unknown and not s.absent for each in value for s in each)
        if name in self.answers and is_unknown:
            return ((Segment(self.answers[name]),),)
        return value

    def _value_of(self, name: str) -> Value:
        if name in self.env:
            return self.env[name]
        if name == "@":
            return unknown_value("@", self.lost)
        is_parameter = name.isdigit() and name != "0"
        if is_parameter:
            parameters, number = self.lookup("@"), int(name[:9])
            if len(parameters) >= number or is_vague(parameters):
                return (self.element(parameters, number - 1, name),)
        is_slurm = self.is_batch_job and name.startswith("SLURM_")
        is_set_elsewhere = self.is_forgotten or is_slurm or _SPECIAL.fullmatch(name)
        ((segment,),) = unknown_value(name, self.lost if self.is_forgotten else "")
        return ((replace(segment, absent=is_parameter or not is_set_elsewhere),),)

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
        """Return the segment of an expansion that is unknown.

        Args:
            node: the expansion.
            quoted: whether it is quoted.
            several: whether it may be several words.
            name: the variable that decides it, or "".
        """
        text, place = self.source.written(node), self.source.place(node["Pos"])
        why = next((s for each in self.env.get(name, ()) for s in each if s.unknown), None)
        variable = name if name.isidentifier() else ""
        reason = why.reason if why else self.lost if variable and self.is_forgotten else ""
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
        result, current = list[Field](), list[Segment]()
        for segment in [*stream, None]:
            if segment is not None:
                current.append(segment)
            elif current:
                if any(s.text or s.quoted or s.unknown for s in current):
                    result.append(tuple(current))
                current = []
        return result

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
        self.count(sum(len(s.text) + 4 for s in stream if s))  # an empty text also takes memory
        return stream

    def count(self, num_characters: int) -> None:
        """Count characters of expansions.

        Raises:
            InputError: they are too many (E879).
        """
        self.num_expanded += num_characters
        if self.num_expanded > MAX_EXPANSIONS:
            message = f"the script expands to more than {MAX_EXPANSIONS:,} characters"
            raise self.lines.too_large(message, self.at)

    def _part(self, part: Node, quoted: bool, split: bool) -> Stream:
        """Expand a part of a word."""
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
            for part in re.finditer("[\ue000-\uf8ff]|[^\ue000-\uf8ff]+", char or match[0]):
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
        if extra - {"Length", "Slice", "Repl", "Exp"} or len(extra) > 1:
            several = split and (not quoted or bool(star) or "Names" in extra)
            text = self.source.slice(node)
            self.taint(NAME.findall(text) if "=" in text else ())
            return [*self.unknown(node, quoted, several)]
        place = self.source.place(node["Pos"])
        if name == "#":
            value = self.lookup("@")
            length = Segment(str(len(value)), place, quoted=quoted)
            return [length] if not is_vague(value) and not extra else unknown
        if star:
            fields = [*self.lookup(name)]
        elif index and (number := self.formula(index)) is not None and number >= 0:
            fields = [self.element(self.lookup(name), number, name)]
        else:
            fields = [tuple(s for s in unknown if s)] if index else [self.scalar(name)]
        vague = bool(star) and is_vague(tuple(fields))
        texts = [known(each) for each in fields]
        if node.get("Length"):
            first = texts[0] if texts else ""
            size = len(fields) if star else None if first is None else len(first)
            is_known = size is not None and not vague
            return [Segment(str(size), place, quoted=quoted)] if is_known else unknown
        if node.get("Slice"):
            start, size = (self._end(node["Slice"], key) for key in ("Offset", "Length"))
            is_known = None not in texts and not vague and name != "@"
            if start is None or size is None or min(start, size) < 0 or not is_known:
                return unknown
            cut = slice(start, start + size)
            fields = fields[cut] if star else [(Segment((texts[0] or "")[cut], place),)]
        operation = node.get("Exp", {}).get("Op", "")
        if operation.lstrip(":") in ("-", "=", "?", "+"):
            stream = self._default(node, fields, name, star, quoted, split)
            if stream is not None:
                return stream
        elif operation or node.get("Repl"):
            changed = [None if text is None else self._changed(text, node) for text in texts]
            if None in changed or vague:
                return unknown
            fields = [(Segment(text or "", place),) for text in changed]
        return self._emit(fields, star, quoted, split, place, name)

    def _end(self, part: Node, key: str) -> int | None:
        if key in part:
            return self.formula(part[key])
        return 0 if key == "Offset" else MAX_EXPANSIONS

    def _emit(
        self, fields: list[Field], star: str, quoted: bool, split: bool, place: int, name: str
    ) -> Stream:
        """Return the segments of values in the place of an expansion.

        Args:
            fields: the values.
            star: "@" or "*" if all elements of an array are expanded.
            quoted: whether the expansion is in double quotes.
            split: whether it may be several words.
            place: its position.
            name: its variable.
        """
        result: Stream = []
        is_whole = len(fields) == 1 and len(fields[0]) == 1 and not star and name.isidentifier()
        for number, each in enumerate(fields):
            if number:
                result.append(Segment(" ", place, quoted=True) if quoted and star == "*" else None)
            for s in each:
                many = s.several and bool(star) and not (quoted and star == "*")
                variable = s.variable or (name if s.unknown and is_whole else "")
                result.append(
                    replace(
                        s,
                        offset=s.offset or place,
                        quoted=quoted,
                        several=many,
                        variable=variable,
                    )
                )
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
            return self._emit([self.scalar(name)], "", quoted, split, place, name)
        used = self.stream(parts, quoted, split) if is_set == (kind == "+") else []
        empty = [Segment("", place, quoted=True)] * quoted
        return [*used, *empty] if quoted or not split else self._split(used)

    def _changed(self, text: str, node: Node) -> str | None:
        """Return the text after ${X%pattern}, ${X/a/b}, ${X^^} and their like."""
        if "Repl" in node:
            old, new = (known(self.joined(node["Repl"].get(key))) for key in ("Orig", "With"))
            if not old or new is None or re.search(r"[*?\[#%&\\]", old) or {*"&\\"} & {*new}:
                return None
            return text.replace(old, new, -1 if node["Repl"].get("All") else 1)
        operation, word = node["Exp"]["Op"], node["Exp"].get("Word")
        if operation in ("^^", ",,") and not word and text.isascii():
            return text.upper() if operation == "^^" else text.lower()
        pattern = self.pattern(word or {})
        if pattern is None or operation not in ("%", "%%", "#", "##"):
            return None
        if len(text) > _LONGEST_CHANGED:
            return None
        ends = range(len(text) + 1)
        for end in ends if operation in ("#", "%%") else reversed(ends):
            piece, rest = (text[end:], text[:end]) if "%" in operation else (text[:end], text[end:])
            if pattern.fullmatch(piece):
                return rest
        return text

    def pattern(self, word: Node) -> re.Pattern[str] | None:
        """Return a pattern of bash as one of Python; None if it is unknown or not simple.

        What stands before a "*" is matched where it is first, which is never wrong and takes no
        more than the product of both lengths.
        """
        result, stars = "", 0
        for s in self.joined(word):
            if s.unknown and not s.absent:
                return None
            for piece in re.findall(r"\[[!^]?[\w.-]+\]|.", "" if s.absent else s.text, re.DOTALL):
                if len(piece) > 1 and not s.quoted:
                    result += piece.replace("[!", "[^")
                elif piece in ("[", "\\") and not s.quoted:
                    return None
                elif piece == "*" and not s.quoted:
                    result += (")" if stars else "") + "(?>.*?"
                    stars += 1
                else:
                    result += "." if piece == "?" and not s.quoted else re.escape(piece)
        if stars:  # the last "*" takes as much as it needs
            before, _, after = result.rpartition("(?>.*?")
            result = f"{before}.*{after}"
        return re.compile(result, re.DOTALL)

    # -------------------------------------------------------------------------------- formulas

    def formula(self, node: Node | None) -> int | None:
        """Evaluate a formula; None if it is unknown."""
        match (node or {}).get("Type"):
            case "Word":
                return self._integer(self.joined(node))
            case "ParenArithm":
                return self.formula((node or {})["X"])
            case "UnaryArithm" if node and node["Op"] in _UNARY:
                x = self.formula(node["X"])
                return None if x is None else _UNARY[node["Op"]](x)
            case "BinaryArithm" if node and node["Op"] in _BINARY:
                x, y = self.formula(node["X"]), self.formula(node["Y"])
                if (y == 0 and node["Op"] in "/%") or (node["Op"] == "**" and y and y < 0):
                    self.lose()  # After an error, bash leaves out the rest of the command.
                    return None
                if x is None or y is None:
                    return None
                if node["Op"] in ("**", "<<", ">>") and not 0 <= y < 63:
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


_UNARY: dict[str, Callable[[int], int]] = {
    "-": lambda x: -x,
    "+": lambda x: x,
    "!": lambda x: int(not x),
    "~": lambda x: ~x,
}
_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
    "%": lambda x, y: abs(x) % abs(y) * (-1 if x < 0 else 1),
    "**": lambda x, y: x**y,
    "<<": lambda x, y: x << y,
    ">>": lambda x, y: x >> y,
    "<": lambda x, y: x < y,
    ">": lambda x, y: x > y,
    "<=": lambda x, y: x <= y,
    ">=": lambda x, y: x >= y,
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "&&": lambda x, y: bool(x and y),
    "||": lambda x, y: bool(x or y),
}
