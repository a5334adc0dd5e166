"""Texts whose parts may be unknown, and the values of variables that consist of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

# Lists and layouts of Megatron-LM, such as [0]*3+[1]*58 and Et*3|t*4L, match the names of no files.
_NO_FILE = re.compile(r".*[()|]|(?=.*\])[][\d,+*]*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Segment:
    """Characters of a text, or an unknown value.

    Args:
        text: the characters; of an unknown value, its source.
        offset: position in the file.
        unknown: the source of an unknown value, such as "$N"; "" if the characters are known.
        quoted: whether the characters are quoted.
        several: whether an unknown value may be several words, or none.
        absent: whether the value is unknown only because nothing sets its variable: it is empty in
            tests and for defaults (`${N:-8}`).
        reason: why a value is unknown, such as "which line 12 sets in a loop".
        variable: the variable whose value would make it known, or "".
    """

    text: str
    offset: int = field(default=0, compare=False)
    unknown: str = ""
    quoted: bool = False
    several: bool = False
    absent: bool = False
    reason: str = field(default="", compare=False)
    variable: str = field(default="", compare=False)


Field = tuple[Segment, ...]
"""A text."""
Value = tuple[Field, ...]
"""The elements of an array; a plain variable has one."""
Stream = list[Segment | None]
"""Segments of words; None ends a word."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A word of a command after all expansions.

    Args:
        text: the characters; of an unknown value, its source, such as "$1".
        offset: position in the file.
        unknown: the first unknown value in it, or None.
        reason: why it is unknown; "" for names that the script does not define.
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


def argument_of(segments: Field, has_patterns: bool = True) -> Argument:
    """Return a text as a word of a command."""
    text = characters(segments)
    unknown = next((s for s in segments if s.unknown), None)
    offset = segments[0].offset if segments else 0
    if unknown is None:
        glob = has_patterns and any(re.search(r"[*?\[]", s.text) for s in segments if not s.quoted)
        return Argument(text, offset, is_pattern=glob and not _NO_FILE.match(text))
    several = any(s.several for s in segments)
    return Argument(text, offset, unknown.unknown, several, unknown.reason, unknown.variable)


def characters(segments: Iterable[Segment]) -> str:
    """Return the characters of a text, with the sources of unknown values in their place."""
    return "".join(s.text for s in segments)


def known(segments: Iterable[Segment], absent_is_empty: bool = False) -> str | None:
    """Return the characters of a text, or None if a part of it is unknown."""
    parts = [s for s in segments if not (absent_is_empty and s.absent)]
    return None if any(s.unknown for s in parts) else characters(parts)


def is_vague(value: Value) -> bool:
    """Return whether it is unknown how many elements a value has."""
    return any(s.several for each in value for s in each)


def unknown_value(name: str, reason: str = "") -> Value:
    """Return the value of a name of which nothing is known."""
    variable = name if name.isidentifier() else ""
    text = f"${name}"
    return ((Segment(text, 0, text, several=True, reason=reason, variable=variable),),)


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
    is_text = all(len(value) == 1 and not is_vague(value) for value in values)
    lists = [value[0] if is_text else value for value in values]
    size = 0
    while all(len(each) > size and each[size] == lists[0][size] for each in lists):
        size += 1
    rest = unknown_value(name, reason)
    if not is_text:
        return (*first[:size], *rest)
    tails = [characters(value[0][size:]) for value in values]
    is_blank = all(not tail or tail[0].isspace() for tail in tails)
    is_known = not any(s.unknown for value in values for s in value[0][size : size + 1])
    blank = [Segment(" ")] * (is_blank and is_known)
    return ((*first[0][:size], *blank, replace(rest[0][0], several=False)),)
