"""The variables of a script, and what its words expand to.

A value that a script does not contain, or that is set in a way that is not read, is unknown, and so
is everything that is derived from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from simtrain.errors import InputError
from simtrain.importing.shell.conditions import INTEGER, Operand
from simtrain.importing.shell.integer_formula import evaluate
from simtrain.importing.shell.lines import Lines
from simtrain.importing.shell.script_parser import Parser
from simtrain.importing.shell.syntax_tree import (
    NAME,
    Arithmetic,
    Foreign,
    HereDocument,
    Literal,
    Part,
    Variable,
    Word,
)
from simtrain.importing.shell.texts import (
    SplitFields,
    State,
    Text,
    TextSegment,
    UnknownText,
    Value,
    characters,
    has_flags,
    is_empty,
    is_pattern,
    known_text,
    may_be_arguments,
)

MAX_EXPANSIONS = 1_000_000
"""The most characters that all expansions of a script may have together."""
IDENTIFIER = re.compile(NAME)
ASSIGNMENT = re.compile(rf"({NAME})(\+?)=")
# An element of an array such as [0]*3+[1]*58 sets no index, unlike [0]=3.
_INDEX = re.compile(r"\[(?![^]\[]*\](?!\+?=))")
ASSIGNING = re.compile(r"=|\+\+|--")
"""Whether an expansion or a formula may assign."""
_NO_PARAMETERS = Value((), True)
# Set by bash itself or by a login, which a shell without environment does not show.
_SPECIAL = re.compile(
    r"BASH.*|COMP_.*|EPOCH.*|LC_.*|PS[0-4]|(?:CD|MAN|PYTHON|LD_LIBRARY_)?PATH|PIPESTATUS|S?RANDOM|"
    r"SECONDS|LINENO|E?UID|PPID|PWD|OLDPWD|HOME|USER|LOGNAME|HOSTNAME|SHELL|SHELLOPTS|SHLVL|TERM|"
    r"LANG|OPTIND|OPTERR|GROUPS|FUNCNAME|DIRSTACK|HISTCMD|HOSTTYPE|MACHTYPE|OSTYPE|COLUMNS|LINES|"
    r"COPROC.*|TMPDIR|_"
)


@dataclass(frozen=True, slots=True)
class Argument:
    """A word of a command after all expansions.

    Args:
        text: the characters; of an unknown value, its name, such as "$1".
        offset: position in the source.
        unknown: the first unknown value in it, or None.
        reason: why it is unknown, such as "which line 12 sets in a loop"; "" for names that the
            script does not define.
        may_be_arguments: whether it can be several arguments, or none.
        variable: the variable whose value would make it known, or "".
        is_pattern: whether bash would replace it by the names of files that match it.
        is_function: whether it calls a function of the script.
    """

    text: str
    offset: int
    unknown: str | None = None
    may_be_arguments: bool = False
    reason: str = ""
    variable: str = ""
    is_pattern: bool = False
    is_function: bool = False


Values = dict[str, Value | UnknownText]
VariablesState = tuple[Values, bool, int]


@dataclass(slots=True)
class Variables:
    """The variables of a script at one of its commands.

    Args:
        lines: the lines of the script, for errors.
        answers: values of variables wherever the script leaves them unknown.
        has_patterns: whether *, ? and brackets match the names of files.
        is_batch_job: whether Slurm starts the script, and defines variables.
        values: what is assigned so far, by name. Parameters are "@".
        is_forgotten: whether all other names are unknown.
        replaced: the values that assignments replaced, in order, with the values they are among.
        is_lost: whether nothing that is assigned later is known, as if IFS had changed.
        doubts: why assignments are unknown now, such as "in a loop", innermost last.
        readonly: names that cannot be assigned.
        arrays: names that have been arrays, of which N=8 sets the first element alone.
        formulas: names that were assigned a text which is no integer, and may still have it.
        reasons: why names are unknown; that of "" is the reason for all other names.
        offset: position of the current command.
    """

    lines: Lines
    answers: Mapping[str, Value] = field(default_factory=dict)
    has_patterns: bool = True
    is_batch_job: bool = False
    values: dict[str, Value | UnknownText] = field(default_factory=lambda: {"@": _NO_PARAMETERS})
    is_forgotten: bool = False
    replaced: list[tuple[Values, str, Value | UnknownText | None]] = field(default_factory=list)
    is_lost: bool = False
    doubts: list[str] = field(default_factory=list)
    readonly: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)
    formulas: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    offset: int = 0
    num_expanded: int = 0

    def assigned(self, name: str) -> Value | UnknownText | None:
        """Return what a name is assigned; None if nothing sets it."""
        return self.values.get(name, UnknownText() if self.is_forgotten else None)

    def bind(self, name: str, value: Value | UnknownText) -> None:
        """Assign a value; it is unknown if the assignment may not happen."""
        is_readonly = name in self.readonly and isinstance(value, Value)
        if name in ("IFS", "POSIXLY_CORRECT") or is_readonly:
            self.lose()
        texts = value.elements if isinstance(value, Value) else ()
        if not all(INTEGER.fullmatch(characters(text)) for text in texts):
            self.formulas.add(name)
        if self.doubts:
            value = UnknownText(may_be_arguments(value) or may_be_arguments(self.assigned(name)))
        elif is_readonly or _SPECIAL.fullmatch(name):
            value = UnknownText(may_be_arguments(value))
        self.put(name, value)
        if isinstance(value, UnknownText):
            doubt = self.doubts[-1] if self.doubts else "in a way that is not read"
            self._explain(name, f"sets {doubt}")

    def put(self, name: str, value: Value | UnknownText) -> None:
        """Set the value of a name, and remember the one before."""
        self.replaced.append((self.values, name, self.values.get(name)))
        self.values[name] = value

    def state(self) -> VariablesState:
        """Return what `restore` takes to come back to the values of now."""
        return self.values, self.is_forgotten, len(self.replaced)

    def restore(self, state: VariablesState) -> None:
        """Undo all assignments since a state; copies of all values would take too long."""
        self.values, self.is_forgotten, num_replaced = state
        for values, name, value in reversed(self.replaced[num_replaced:]):
            if value is None:
                del values[name]
            else:
                values[name] = value
        del self.replaced[num_replaced:]

    def assign(self, word: Word) -> None:
        """Read a word such as N=8, N+=8 or N=(8 9)."""
        name, appends = ASSIGNMENT.findall(word.start)[0]
        old = self.assigned(name) if appends else None
        if word.elements is not None:
            self.arrays.add(name)
            elements = tuple(self.fields(word.elements))
            has_index = any(_INDEX.match(element.start) for element in word.elements)
            before = old.elements if isinstance(old, Value) else ()
            is_known = not has_index and not isinstance(old, UnknownText)
            self.bind(name, Value((*before, *elements), True) if is_known else UnknownText(True))
            return
        text = self.joined(word, skip=len(f"{name}{appends}="))
        if name in self.arrays:
            self.bind(name, UnknownText(True))  # The text is that of the first element alone.
        elif isinstance(old, UnknownText):
            self.bind(name, UnknownText(old.may_be_arguments or has_flags(text)))
        else:
            self.bind(name, Value(((*chain(*(old.elements if old else ())), *text),)))

    def taint(self, text: str, is_several: bool = False) -> None:
        """Make every name in a text unknown."""
        for name in sorted({*IDENTIFIER.findall(text)}):
            self.bind(name, UnknownText(is_several))

    def forget(self) -> None:
        """Make all names unknown that are assigned so far."""
        self.values, self.is_forgotten = {}, True
        self.reasons.clear()
        self._explain("", "can change")

    def lose(self) -> None:
        """Make all names unknown, including those that are assigned later."""
        self.is_lost = True
        self._explain("", "can change")

    def _explain(self, name: str, text: str) -> None:
        """Note why a name is unknown from here on; the name "" stands for all others."""
        self.reasons[name] = f"which line {self.lines.location(self.offset).line} {text}"

    def argument(self, text: Text) -> Argument:
        """Return a text as a word of a command."""
        unknown = next((segment for segment in text if not segment.is_known), None)
        offset = text[0].offset if text else 0
        is_several = any(segment.state is State.ARGUMENTS for segment in text)
        written = characters(text)
        if unknown is None:
            return Argument(written, offset, is_pattern=is_pattern(text))
        name = unknown.text.removeprefix("$").removesuffix("[@]")
        is_any = (self.is_lost or self.is_forgotten) and name.isidentifier()
        reason = self.reasons.get(name, self.reasons.get("", "") if is_any else "")
        return Argument(written, offset, unknown.text, is_several, reason, unknown.variable)

    def arguments(self, words: Iterable[Word]) -> list[Argument]:
        """Return words after all expansions."""
        return [self.argument(text) for text in self.fields(words)]

    def operand(self, word: Word) -> Operand:
        """Return a word of a test after all expansions."""
        text = known_text(self.joined(word), is_empty=True)
        names = (part.name for part in word.parts if isinstance(part, Variable))
        is_formula = bool(text) and not INTEGER.fullmatch(text or "")
        is_formula |= text is None and not self.formulas.isdisjoint(names)
        return Operand(text, word.literal, self._glob(word), is_formula)

    def _glob(self, word: Word) -> str | None:
        """Return the pattern of a word for fnmatch; None for patterns that are not read."""
        glob = ""
        for part in word.parts:
            joined = known_text(self.text([part]), is_empty=True)
            if joined is None:
                return None
            is_plain = part.quoted or not re.search(r"[*?\[(\\~]", joined)
            if not is_plain and not (isinstance(part, Literal) and set(joined).isdisjoint("[(\\~")):
                return None
            glob += re.sub(r"([*?[])", r"[\1]", joined) if is_plain else joined
        return glob

    def fields(self, words: Iterable[Word], is_quiet: bool = False) -> list[Text]:
        """Expand words to texts: unquoted values are split, arrays give their elements.

        Args:
            words: the words.
            is_quiet: whether names without a value expand to nothing, in place of an unknown text.
        """
        return [text for word in words for text in self._fields_of(word, is_quiet)]

    def _fields_of(self, word: Word, is_quiet: bool) -> list[Text]:
        fields = SplitFields(True, is_quiet, self.has_patterns)
        self._expand(word.parts, fields, quoted=False)
        plain = word.plain
        has_braces = "}" in plain.partition("{")[2] and plain != "{}"
        if has_braces or _has_tilde(word):
            return [(TextSegment(word.source, word.offset, State.ARGUMENTS),)]
        return fields.finish()

    def joined(self, word: Word, skip: int = 0) -> Text:
        """Expand a word to one text, as in an assignment or a test.

        Args:
            word: the word.
            skip: the number of characters to leave out at its start.
        """
        if _has_tilde(word):
            return (TextSegment(word.source[skip:], word.offset, State.UNKNOWN),)
        first, *rest = word.parts or (Literal("", word.offset, True),)
        if skip and isinstance(first, Literal):
            first = Literal(first.text[skip:], first.offset + skip, first.quoted)
        return self.text([first, *rest])

    def document(self, document: HereDocument) -> Text:
        """Return the text of a here-document."""
        body = document.body
        if document.strips_tabs:
            body = re.sub(r"^\t+", "", body, flags=re.MULTILINE)
        if document.is_raw:
            return (TextSegment(body, document.offset),)
        return self.text(Parser(body, self.lines, ((0, document.offset),)).document())

    def text(self, parts: Iterable[Part]) -> Text:
        """Expand parts to one text."""
        fields = SplitFields(False, False, False)
        self._expand(parts, fields, quoted=True)
        return tuple(segment for text in fields.finish() for segment in text)

    def _expand(
        self, parts: Iterable[Part], fields: SplitFields, quoted: bool, in_operand: bool = False
    ) -> None:
        for part in parts:
            is_quoted = quoted or part.quoted
            match part:
                case Literal():
                    segment = TextSegment(part.text, part.offset)
                    if in_operand and not part.quoted and part.text.startswith("~"):
                        segment = TextSegment(part.text, part.offset, State.UNKNOWN)
                    fields.add(segment, is_quoted, splits=in_operand)
                    self._count(part.text)
                case Variable():
                    self._expand_variable(part, fields, is_quoted)
                case Arithmetic():
                    fields.add(self._arithmetic(part), is_quoted)
                case Foreign():
                    fields.add(TextSegment(part.source, part.offset, State.UNKNOWN), is_quoted)

    def _expand_variable(self, part: Variable, fields: SplitFields, quoted: bool) -> None:
        value = self._value_of(part.name)
        is_several = part.is_all or (not quoted and may_be_arguments(value))
        state = State.ARGUMENTS if is_several else State.UNKNOWN
        variable = "" if part.is_all or not part.name.isidentifier() else part.name
        unknown = TextSegment(
            f"${part.name}" + "[@]" * bool(part.index), part.offset, state, variable
        )
        if part.source in ("$#", "${#}"):
            return fields.add(self._num_parameters(part), quoted)
        elements = self._elements_of(part, value)
        is_set = self._is_set(part, elements) if elements is not None else None
        if elements is None or is_set is None:
            # An operand that may be expanded may assign.
            if part.operator != "" and ASSIGNING.search(part.source.partition(part.name)[2]):
                self.taint(part.source)
            return fields.add(unknown, quoted)
        operator = part.operator[-1:] if part.operator else ""
        if operator == "+" and not is_set:
            return fields.add(TextSegment("", part.offset), quoted)
        if operator == "=" and not is_set:
            elements = [self.text(part.operand)]
            self.bind(part.name, Value((elements[0],)))
        elif operator and operator != "?" and is_set is (operator == "+"):
            return self._expand(part.operand, fields, quoted, in_operand=True)
        if not elements and value is None:
            return fields.add(replace(unknown, state=State.ABSENT), quoted)
        for segment in chain(*elements):
            self._count(segment.text)
        match elements:
            case [(TextSegment(state=State.UNKNOWN, variable="") as segment,)] if variable:
                elements = [(replace(segment, variable=variable),)]
        is_apart = "@" in (part.index, part.name)
        return fields.add_elements(elements, quoted, is_apart, part.is_all, part.offset)

    def _is_set(self, part: Variable, elements: list[Text]) -> bool | None:
        """Return whether a variable is set (and not empty, if its operator has a colon)."""
        if not part.operator:
            return bool(elements)
        if len(elements) > 1 and not all(map(known_text, elements)):
            return None
        if part.operator.startswith(":"):
            empty = {is_empty(text) for text in elements} or {True}
            return None if None in empty else empty == {False}
        return bool(elements)

    def _value_of(self, name: str) -> Value | UnknownText | None:
        """Return the value of a name; what the user says of it if that is unknown."""
        value = self._value_in_script(name)
        if self.is_lost:
            value = UnknownText(may_be_arguments(value))
        is_known = isinstance(value, Value) and all(
            known_text(text, is_empty=True) is not None for text in value.elements
        )
        return value if is_known else self.answers.get(name, value)

    def _value_in_script(self, name: str) -> Value | UnknownText | None:
        parameters = self.assigned("@")
        if name in ("@", "*"):
            return parameters
        if name.isdecimal() and name != "0":
            return None if parameters == _NO_PARAMETERS else UnknownText(True)
        if not name.isidentifier():
            return UnknownText(name != "0")
        value = self.assigned(name)
        is_set_elsewhere = self.is_batch_job and name.startswith("SLURM_")
        if value is None and (is_set_elsewhere or _SPECIAL.fullmatch(name)):
            return UnknownText()
        return value

    def _elements_of(self, part: Variable, value: Value | UnknownText | None) -> list[Text] | None:
        """Return the elements that an expansion selects; None if they are unknown."""
        if part.operator is None or isinstance(value, UnknownText):
            return None
        # The first element of an array is seldom meant.
        is_first = value is not None and value.is_array and not part.is_all
        return None if is_first else [*value.elements] if value else []

    def _num_parameters(self, part: Variable) -> TextSegment:
        if self.assigned("@") == _NO_PARAMETERS and not self.is_lost:
            return TextSegment("0", part.offset)
        return TextSegment("$#", part.offset, State.UNKNOWN)

    def _arithmetic(self, part: Arithmetic) -> TextSegment:
        text = self.text(part.parts)
        formula = known_text(text)
        number = None if formula is None else evaluate(formula, self.integer)
        if number is not None:
            return TextSegment(str(number), part.offset)
        values = {name: self.integer(name) for name in IDENTIFIER.findall(characters(text))}
        numbers = {name: 1 if value is None else value for name, value in values.items()}
        if ASSIGNING.search(characters(text)):
            self.taint(characters(text))
        elif formula is not None and evaluate(formula, numbers.get) is None:
            self.lose()  # After an error, bash leaves out the rest of the command around it.
        return TextSegment(part.source, part.offset, State.UNKNOWN)

    def integer(self, name: str) -> int | None:
        """Return the value of a variable in a formula."""
        value = self._value_of(name)
        text = None
        if isinstance(value, Value):
            text = known_text(value.elements[0]) if value.elements else None
        if text is not None and INTEGER.fullmatch(text):
            return int(text)
        if text or (name in self.formulas and not isinstance(value, Value)):
            self.lose()  # It is a formula itself, which can assign or fail.
        return None

    def _count(self, text: str) -> None:
        self.num_expanded += len(text) + 4  # An empty text also takes memory.
        if self.num_expanded > MAX_EXPANSIONS:
            message = f"the script expands to more than {MAX_EXPANSIONS:,} characters"
            raise too_large(message, self.lines, self.offset)


def _has_tilde(word: Word) -> bool:
    """Return whether a part of the word is a home folder."""
    literals = [part.text for part in word.parts if isinstance(part, Literal) and not part.quoted]
    return word.start.startswith("~") or any(re.search("[=:]~", text) for text in literals)


def too_large(message: str, lines: Lines, offset: int) -> InputError:
    """Return the error of a script beyond a limit."""
    fix = "shorten it, or import the arguments alone as one text"
    return InputError.of("E879", message, lines.location(offset), fix)
