"""The core schema of YAML 1.2: types of unquoted scalars, and conversion of nodes to plain data.

`no`, `on` and `1:30` are text, `312e12` and `0o17` are numbers, regardless of a %YAML directive.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from simtrain.base.strict_yaml.document import Path, Place, Positions, dotted
from simtrain.errors import InputError, Location, Problem

Locate = Callable[[int, int], Location]

_TAG = "tag:yaml.org,2002:"
_MAX_DIGITS = 400
# "\\ud800" in quotes: Python accepts it as text, but it cannot be encoded.
SURROGATE = re.compile("[\ud800-\udfff]")


class CoreResolver(VersionedResolver):
    """ruamel's resolver, restricted to the core schema of YAML 1.2."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node without an explicit tag."""
        if kind is ScalarNode:
            plain = implicit[0]
            return _tag(_kind_of(value) if plain else "str")
        return super().resolve(kind, value, implicit)


@functools.cache
def _tag(kind: str) -> Tag:
    return Tag(suffix=_TAG + kind)


def _integer(text: str) -> int:
    # Base 0 would read 017 as an error; in YAML 1.2 it is seventeen.
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _float(text: str) -> float:
    is_named = text.lstrip("+-").startswith(".") and text[-1].isalpha()
    number = float(text.replace(".", "", 1) if is_named else text)
    if math.isinf(number) and not is_named:
        raise ValueError("is too large for a 64-bit floating-point number")
    return number


# https://yaml.org/spec/1.2.2/#103-core-schema, in order of precedence.
_PLAIN_SCALARS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "null": (r"null|Null|NULL|~|", lambda _: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", _integer),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        _float,
    ),
}


_FORMS = re.compile("|".join(f"(?P<{kind}>{form})" for kind, (form, _) in _PLAIN_SCALARS.items()))


def _kind_of(text: str) -> str:
    form = _FORMS.fullmatch(text)
    return form.lastgroup or "str" if form else "str"


def _constructed(kind: str, text: str) -> Any:
    if kind == "str":
        return text
    if kind in ("int", "float") and len(text) > _MAX_DIGITS:
        raise ValueError(f"is a number of more than {_MAX_DIGITS} digits")
    return _PLAIN_SCALARS[kind][1](text)


def scalar_of(text: str) -> Any:
    """Return the value of an unquoted scalar.

    Raises:
        ValueError: a number is too long or too large; the text says so, without the number.
    """
    return _constructed(_kind_of(text), text)


class _Builder:
    """Walks a node tree once and collects data, positions and problems."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self.places: dict[Path, Place] = {}
        self.problems: dict[Problem, None] = {}

    def at(self, node: Node) -> Location:
        """Return the place of a node in the file."""
        return self._locate(node.start_mark.line, node.start_mark.column)

    def build(self, node: Node, path: Path, key: Location | None = None) -> Any:
        """Return the value of a node, and record its place and problems."""
        is_empty = node.start_mark.index == node.end_mark.index
        # ruamel places an empty value on the next line; use the position of its key.
        self.places[path] = Place(key if key and is_empty else self.at(node), key)
        if node.anchor is not None:
            # Refused, because nested aliases can expand without bound.
            return self._refuse(
                node, "E111", "anchors and aliases are not supported", "write the value out"
            )
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if isinstance(node, SequenceNode) and node.ctag == _TAG + "seq":
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        if isinstance(node, MappingNode) and node.ctag == _TAG + "map":
            return self._mapping(node, path)
        return self._refuse_tag(node)

    def _scalar(self, node: ScalarNode) -> Any:
        if SURROGATE.search(node.value):
            message, fix = (
                "half of a surrogate pair",
                "the character itself, or \\U and eight digits",
            )
            return self._refuse(node, "E106", f"{message} is not a character", f"write {fix}")
        kind = str(node.ctag).removeprefix(_TAG)
        # Refuse an explicit tag, such as !!bool, that does not match the text.
        if kind not in ("str", _kind_of(node.value)):
            return self._refuse_tag(node)
        try:
            return _constructed(kind, node.value)
        except ValueError as error:
            shown = node.value if len(node.value) <= 40 else node.value[:40] + "..."
            return self._refuse(node, "E110", f"{shown} {error}", "write a number that fits")

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = self._key(key_node)
            if name is None:
                continue
            where = (*path, name)
            if name in data:
                message = f"{dotted(where)} is set twice, first at {self.places[where].key}"
                self._refuse(key_node, "E107", message, "keep one of the two")
                continue
            data[name] = self.build(value_node, where, self.at(key_node))
        return data

    def _key(self, node: Node) -> Any:
        if isinstance(node, ScalarNode) and node.ctag == _TAG + "str" and node.anchor is None:
            return self._scalar(node)
        written = node.value if isinstance(node, ScalarNode) else "a list or a mapping"
        self._refuse(node, "E109", f"the key {written} is not a name", "write a plain word")
        return None

    def _refuse_tag(self, node: Node) -> None:
        tag = str(node.ctag).replace(_TAG, "!!")
        return self._refuse(node, "E111", f"the tag {tag} is not supported here", "remove the tag")

    def _refuse(self, node: Node, code: str, message: str, fix: str) -> None:
        self.problems[Problem(code, message, self.at(node), fix=fix)] = None


def build(node: Node, locate: Locate) -> tuple[Any, Positions]:
    """Convert a composed node tree to plain data and positions.

    Raises:
        InputError: duplicate keys, keys that are not text, anchors, tags, or too long numbers.
    """
    builder = _Builder(locate)
    # The key of the whole document is its first line.
    data = builder.build(node, (), locate(0, 0))
    if builder.problems:
        raise InputError(builder.problems)
    return data, Positions(builder.places)
