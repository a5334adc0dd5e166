"""Texts whose parts may be unknown, the values of variables, and how bash splits words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain

_GLOB = re.compile(r"[*?]|\[.*\]", re.DOTALL)
# Lists and layouts of Megatron-LM, such as [0]*3+[1]*58 and Et*3|t*4L, match the names of no files.
_NO_FILE = re.compile(r".*[()|]|(?=.*\])[][\d,+*]*\Z", re.DOTALL)
_BLANKS = re.compile(r"([ \t\n]+)")


class State(Enum):
    """What is known of a piece of text; an absent one is unset in a shell without environment."""

    KNOWN = 0
    ABSENT = 1
    UNKNOWN = 2
    ARGUMENTS = 3
    """Unknown, and possibly several arguments."""
    PATTERN = 4
    """Known as long as no file has a name that matches the pattern: bash keeps it then."""


@dataclass(frozen=True, slots=True)
class TextSegment:
    """A piece of text with its position, or the name of an unknown value.

    `variable` is the variable that has the unknown value, if it has no other text.
    """

    text: str
    offset: int = field(compare=False)
    state: State = State.KNOWN
    variable: str = field(default="", compare=False)

    @property
    def is_known(self) -> bool:
        """Whether the characters are known."""
        return self.state in (State.KNOWN, State.PATTERN)


Text = tuple[TextSegment, ...]


def characters(text: Text) -> str:
    """Return the characters of a text, with the names of unknown values in their place."""
    return "".join(segment.text for segment in text)


def known_text(text: Text, is_empty: bool = False) -> str | None:
    """Return the characters of a text, or None if a part is unknown.

    Args:
        text: the text.
        is_empty: whether values that are absent count as empty, in place of unknown.
    """
    if is_empty:
        text = tuple(segment for segment in text if segment.state is not State.ABSENT)
    return None if any(not segment.is_known for segment in text) else characters(text)


def is_pattern(text: Text) -> bool:
    """Return whether the names of files could take the place of a text."""
    return any(segment.state is State.PATTERN for segment in text)


def is_empty(text: Text) -> bool | None:
    """Return whether a text is empty in a shell without environment; None if unknown."""
    if any(segment.text for segment in text if segment.is_known):
        return False
    states = {segment.state for segment in text if segment.text}
    return None if states - {State.KNOWN, State.PATTERN, State.ABSENT} else True


def has_flags(text: Text) -> bool:
    """Return whether a text may have flags of a program, such as --bf16."""
    is_several = any(segment.state is State.ARGUMENTS for segment in text)
    return is_several or " -" in f" {characters(text)}"


def first_unknown(texts: Iterable[Text]) -> str:
    """Return the first variable of texts that is unknown, such as $HOSTNAME, or ""."""
    segments = (segment for segment in chain(*texts) if segment.variable and not segment.is_known)
    return next((f"${segment.variable}" for segment in segments), "")


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a variable: one text, or the elements of an array; none if it is unset."""

    elements: tuple[Text, ...]
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class UnknownText:
    """A value that is unknown, and whether it may be several arguments."""

    may_be_arguments: bool = False


def may_be_arguments(value: Value | UnknownText | None) -> bool:
    """Return whether a value without quotes may be several arguments, or none."""
    match value:
        case UnknownText(is_several):
            return is_several
        case Value(elements, is_array):
            return is_array or any(map(has_flags, elements))
    return False


@dataclass(slots=True)
class SplitFields:
    """The texts that a word expands to.

    Args:
        splits: whether unquoted values are split at blanks.
        is_quiet: whether absent values are left out.
        has_patterns: whether *, ? and brackets match the names of files.
    """

    splits: bool
    is_quiet: bool
    has_patterns: bool
    texts: list[Text] = field(default_factory=list)
    current: list[TextSegment] | None = None
    unquoted: str = ""

    def add(self, segment: TextSegment, quoted: bool, splits: bool = True) -> None:
        """Add a segment to the current text; split it if it is not quoted."""
        if self.is_quiet and segment.state is State.ABSENT:
            segment = TextSegment("", segment.offset)
        if quoted or not segment.is_known:
            if quoted or segment.text:
                self.current = [] if self.current is None else self.current
                self.current += [segment] * bool(segment.text)
            return
        start = segment.offset
        for piece in _BLANKS.split(segment.text) if splits else [segment.text]:
            if splits and piece[:1] in (" ", "\t", "\n"):
                self.end()
            elif piece:
                self.current = [] if self.current is None else self.current
                self.current.append(replace(segment, text=piece, offset=start))
                self.unquoted += piece
            start += len(piece)

    def add_elements(
        self, elements: list[Text], quoted: bool, is_apart: bool, is_all: bool, offset: int
    ) -> None:
        """Add the elements of an array, or the one text of a variable.

        Args:
            elements: the texts.
            quoted: whether the expansion is in double quotes.
            is_apart: whether quoted elements are texts of their own, as of "${A[@]}".
            is_all: whether the expansion is of all elements.
            offset: position of the expansion.
        """
        if quoted and not (is_all and is_apart and not elements):
            self.current = [] if self.current is None else self.current
        for number, text in enumerate(elements):
            if number and self.splits and (is_apart or not quoted):
                self.end()
                self.current = [] if quoted else None
            elif number:
                self.add(TextSegment(" ", offset), True)
            for segment in text:
                self.add(segment, quoted)

    def end(self) -> None:
        """End the current text."""
        if self.current is not None:
            text = tuple(self.current)
            is_glob = self.has_patterns and _GLOB.search(self.unquoted)
            if is_glob and not _NO_FILE.match(characters(text)):
                are_known = all(segment.is_known for segment in text)
                state = State.PATTERN if are_known else State.ARGUMENTS
                text = (TextSegment(characters(text), text[0].offset, state),)
            self.texts.append(text)
        self.current, self.unquoted = None, ""

    def finish(self) -> list[Text]:
        """End the last text and return all."""
        self.end()
        return self.texts
