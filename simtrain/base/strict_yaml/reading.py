"""Read YAML into documents with located errors, and write it.

libyaml parses; this module gives scalars their types by the core schema of YAML 1.2: `no`, `on` and
`1:30` are text, `312e12` and `0o17` are numbers, regardless of a %YAML directive. JSON is YAML too.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import yaml

from simtrain.base.input_file import LINE_BREAK, read_text
from simtrain.base.values import dataclass, field
from simtrain.errors import InputError, Location, Problem

# A loaded document: plain data with the position of each key and value.

# ("parallelism", "tensor"), or () for the whole document; integers index lists.
Path = tuple[str | int, ...]


def dotted(path: Path) -> str:
    """Format a path as in messages and overrides: parallelism.tensor."""
    return ".".join(str(part) for part in path)


def as_scalar(value: object) -> str:
    """Format a plain value as YAML, without quotes: 8, true, null, 1f1b, [mlp, moe]."""
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_scalar, value))}]"
    if isinstance(value, int) and value.bit_length() > 10_000:  # Python refuses to print it
        return f"an integer of {value.bit_length():,} bits"

    return str(value).lower() if isinstance(value, bool) else str(value)


class Place(NamedTuple):
    """Positions of a value and of its key; the items of a list have no key."""

    value: Location
    key: Location | None


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of a document's keys and values, by path; defaults have none."""

    places: Mapping[Path, Place] = field(default_factory=dict)

    def of_key(self, path: Path) -> Location | None:
        """Position of the key at `path`, or of its closest enclosing section in the file."""
        enclosing = (self.places.get(path[:length]) for length in range(len(path), -1, -1))
        return next((place.key for place in enclosing if place and place.key), None)

    def of_value(self, path: Path) -> Location | None:
        """Position of the value at `path`, or of its closest enclosing section's key."""
        return self.places[path].value if path in self.places else self.of_key(path)

    def moved(self, paths: Iterable[Path], location: Location) -> Positions:
        moved = set(paths)
        places = {
            where: place
            for where, place in self.places.items()
            if not any(where[:depth] in moved for depth in range(len(where) + 1))
        }
        return Positions(places | dict.fromkeys(moved, Place(location, location)))


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """Plain data (dict, list, str, int, float, bool, None) and its positions."""

    data: dict[str, Any]
    positions: Positions


def section(document: YamlDocument, path: Path) -> YamlDocument:
    """Return the mapping at `path` as a document; empty if the path is not set."""
    data: Any = document.data
    for part in path:
        data = data.get(part, {})
    depth, places = len(path), document.positions.places.items()
    inside = {where[depth:]: place for where, place in places if where[:depth] == path}
    return YamlDocument(data, Positions(inside))


def with_value(
    data: Mapping[str, Any], path: Path, value: Any, location: Location | None
) -> dict[str, Any]:
    """Copy nested data with one value set; unchanged sections are shared.

    Raises:
        InputError: the path leads through a plain value; the error is located at `location`.
    """
    changed = inside = dict[Any, Any](data)
    for depth, part in enumerate(path[:-1], start=1):
        old = inside.get(part)
        if not (old is None or isinstance(old, dict)):
            raise _not_a_section(path[:depth], old, location)
        inside[part] = inside = dict(old or {})
    inside[path[-1]] = value
    return changed


def paths_in(value: Any, path: Path) -> Iterator[Path]:
    """Yield the path of a value and of everything inside it."""
    yield path
    items = value.items() if isinstance(value, dict) else ()
    for part, inside in enumerate(value) if isinstance(value, list) else items:
        yield from paths_in(inside, (*path, part))


def leaves(data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield all values that are not sections, with their paths."""
    if not isinstance(data, dict):
        yield path, data
        return
    for name, value in data.items():
        yield from leaves(value, (*path, name))


def overlay(base: YamlDocument, top: YamlDocument) -> YamlDocument:
    """Merge `top` into `base`: mappings merge, any other value replaces.

    Raises:
        InputError: `top` has a section where `base` has a plain value.
    """
    places = dict(base.positions.places)

    def merged(old: Any, new: Any, path: Path) -> Any:
        """Return `old` with the values of `new`, and record their places."""
        if isinstance(new, dict) and isinstance(old, dict):
            laid = {
                name: merged(old.get(name), value, (*path, name)) for name, value in new.items()
            }
            return old | laid
        if isinstance(new, dict) and old is not None:
            raise _not_a_section(path, old, top.positions.of_value(path))
        move_places(path, top.positions.places, places)
        return new

    return YamlDocument(merged(base.data, top.data, ()), Positions(places))


def move_places(
    path: Path, source: Mapping[Path, Place], target: dict[Path, Place], inside: Path = ()
) -> None:
    """Replace the places of `path` and below in `target` by those in `source`, put `inside` it."""
    depth = len(path)
    for where in [where for where in target if where[:depth] == path]:
        del target[where]
    for where, place in source.items():
        if where[:depth] == path:
            target[*path, *inside, *where[depth:]] = place


def _not_a_section(path: Path, value: Any, location: Location | None) -> InputError:
    name = dotted(path)
    message = f"{name} is the value {value!r}, not a section"
    return InputError.of("E112", message, location, f"set {name} itself")


Locate = Callable[[int, int], Location]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser, or the one in Python, with the same events, if PyYAML was built without it."""
_TAG = "tag:yaml.org,2002:"
_MOST_DIGITS = 400
_MOST_NESTED = 100
_NOT_YAML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SURROGATES = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
"""A character beyond 16 bits as JSON writes it, which YAML does not know."""


def load_document(path: str | pathlib.Path) -> YamlDocument:
    """Read a YAML file whose root is a mapping.

    Raises:
        InputError: the file is missing, unreadable, not UTF-8, empty or broken; it has several
            documents, duplicate keys, anchors or tags; or its root is not a mapping.
    """
    return parse_document(read_text(pathlib.Path(path)), str(path))


def parse_document(text: str, file: str) -> YamlDocument:
    """Parse YAML text whose root is a mapping; `file` is its name in errors.

    Raises:
        InputError: as `load_document`.
    """
    document = _parsed(text, file)
    return YamlDocument(copy.deepcopy(document.data), document.positions)


# Scripts load one scenario with many overrides.
@functools.lru_cache(maxsize=64)
def _parsed(text: str, file: str) -> YamlDocument:
    lines = LINE_BREAK.split(text)

    def locate(line: int, column: int) -> Location:
        source_line = lines[line] if line < len(lines) else ""
        return Location(file, line + 1, column + 1, source_line)

    data, positions = read_value(text, locate)
    if not positions.places:
        fix = "write at least one section"
        raise InputError.of("E105", "the file is empty", Location(file), fix)
    if not isinstance(data, dict):
        message = "the file does not contain a mapping of sections"
        fix = 'write "section:" lines with indented "name: value" lines under them'
        raise InputError.of("E108", message, positions.of_value(()), fix)
    return YamlDocument(data, positions)


def read_value(text: str, locate: Locate) -> tuple[Any, Positions]:
    """Return the data of YAML text and its positions; an empty text is None without positions.

    Args:
        text: the text.
        locate: returns the location of a line and column, counted from 0.

    Raises:
        InputError: broken YAML, several documents, duplicate keys, keys that are not text, anchors,
            tags, too long numbers, or too deep nesting.
    """
    if wrong := _NOT_YAML.search(text):
        before = LINE_BREAK.split(text[: wrong.start()])
        place = locate(len(before) - 1, len(before[-1]))
        message = f"the character U+{ord(wrong[0]):04X} is not allowed in YAML"
        raise InputError.of("E106", message, place, "remove the character")
    text = _SURROGATES.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), text)
    reader = _Reader(yaml.parse(text, Loader=_LOADER), locate)
    try:
        return reader.document(), Positions(reader.places)
    except yaml.MarkedYAMLError as error:
        raise InputError([_broken(error, locate)]) from error


class _Reader:
    """Reads the events of a parser once, and collects data, positions and problems.

    Events have no depth of their own, so that no nesting overflows the stack of C.
    """

    def __init__(self, events: Iterator[Any], locate: Locate) -> None:
        self._events = events
        self._locate = locate
        self._depth = 0
        self.places: dict[Path, Place] = {}
        self.problems: dict[Problem, None] = {}

    def document(self) -> Any:
        """Return the value of the only document.

        Raises:
            InputError: every problem of its nodes; or a second document.
        """
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        # The key of the whole document is its first line.
        data = self._node(next(self._events), (), self._locate(0, 0))
        next(self._events)
        if not isinstance(after := next(self._events), yaml.StreamEndEvent):
            reason, fix = "a file has one document", "move it to another file"
            place = self._at(after)
            raise InputError.of("E104", "a second document starts here", place, fix, reason)
        if self.problems:
            raise InputError(self.problems)
        return data

    def _at(self, event: Any) -> Location:
        return self._locate(event.start_mark.line, event.start_mark.column)

    def _node(self, event: Any, path: Path, key: Location | None = None) -> Any:
        """Return the value that begins with an event, and record its place and problems."""
        is_empty = isinstance(event, yaml.ScalarEvent) and event.value == "" and event.implicit[0]
        # An empty value is on a later line; use the position of its key.
        self.places[path] = Place(key if key and is_empty else self._at(event), key)
        if event.anchor is not None:
            # Refused, because nested aliases can expand without bound.
            self._skip(event)
            message, fix = "anchors and aliases are not supported", "write the value out"
            return self._refuse(event, "E111", message, fix)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        is_list = isinstance(event, yaml.SequenceStartEvent)
        if event.tag not in (None, "!", f"{_TAG}{'seq' if is_list else 'map'}"):
            self._skip(event)
            return self._refuse_tag(event)
        self._enter(event)
        data = self._list(path) if is_list else self._mapping(path)
        self._depth -= 1
        return data

    def _skip(self, event: Any) -> None:
        depth = self._depth
        while True:
            if isinstance(event, yaml.CollectionStartEvent):
                self._enter(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._depth -= 1
            if self._depth == depth:
                return
            event = next(self._events)

    def _enter(self, event: Any) -> None:
        self._depth += 1
        if self._depth > _MOST_NESTED:
            message = "nested too deeply to read"
            raise InputError.of("E106", message, self._at(event), "flatten it")

    def _list(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return items

    def _mapping(self, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            name = self._key(event)
            where = (*path, name)
            if name is None:
                self._skip(next(self._events))
            elif name in data:
                message = f"{dotted(where)} is set twice, first at {self.places[where].key}"
                self._refuse(event, "E107", message, "keep one of the two")
                self._skip(next(self._events))
            else:
                data[name] = self._node(next(self._events), where, self._at(event))
        return data

    def _key(self, event: Any) -> Any:
        is_plain = isinstance(event, yaml.ScalarEvent) and event.anchor is None
        if is_plain and _kind_of_event(event) == "str":
            return event.value
        self._skip(event)
        written = event.value if isinstance(event, yaml.ScalarEvent) else "a list or a mapping"
        return self._refuse(event, "E109", f"the key {written} is not a name", "write a plain word")

    def _scalar(self, event: Any) -> Any:
        kind = _kind_of_event(event)
        # Refuse an explicit tag, such as !!bool, that does not match the text.
        if kind not in ("str", _kind_of(event.value)):
            return self._refuse_tag(event)
        try:
            return _constructed(kind, event.value)
        except ValueError as error:
            shown = event.value if len(event.value) <= 40 else event.value[:40] + "..."
            return self._refuse(event, "E110", f"{shown} {error}", "write a number that fits")

    def _refuse_tag(self, event: Any) -> None:
        tag = event.tag.replace(_TAG, "!!")
        self._refuse(event, "E111", f"the tag {tag} is not supported here", "remove the tag")

    def _refuse(self, event: Any, code: str, message: str, fix: str) -> None:
        self.problems[Problem(code, message, self._at(event), fix=fix)] = None


def _broken(error: yaml.MarkedYAMLError, locate: Locate) -> Problem:
    """Return the problem at the error, or at the bracket or quote that is never closed."""
    marks = [mark for mark in (error.problem_mark, error.context_mark) if mark is not None]
    places = [locate(mark.line, mark.column) for mark in marks] or [locate(0, 0)]
    place = next((place for place in places if place.source_line), places[-1])
    what = ", ".join(str(part) for part in (error.context, error.problem) if part)
    fix = "check the indentation, quotes, colons and brackets up to the caret"
    before_caret = place.source_line[: place.column or 0]
    if "\t" in before_caret and not before_caret.strip():
        fix = "indent with spaces: YAML does not allow tabs there"
    return Problem("E106", f"broken YAML: {what}", place, fix=fix)


# ------------------------------------------------------------------------------------- scalars


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
_BEGIN_NAMES = frozenset("abcdeghijklmopqrsuvwxyz")  # not null, true and false
_FORMS = re.compile("|".join(f"(?P<{kind}>{form})" for kind, (form, _) in _PLAIN_SCALARS.items()))


def _kind_of(text: str) -> str:
    # Most texts are names of fields, or sentences.
    form = _FORMS.fullmatch(text) if text[:1] not in _BEGIN_NAMES else None
    return form.lastgroup or "str" if form else "str"


def _kind_of_event(event: Any) -> str:
    """Return the type of a scalar: that of its tag, or of its text if it is not quoted."""
    if event.tag is not None:
        return "str" if event.tag == "!" else str(event.tag).removeprefix(_TAG)
    return _kind_of(event.value) if event.implicit[0] else "str"


def _constructed(kind: str, text: str) -> Any:
    if kind == "str":
        return text
    if kind in ("int", "float") and len(text) > _MOST_DIGITS:
        raise ValueError(f"is a number of more than {_MOST_DIGITS} digits")
    return _PLAIN_SCALARS[kind][1](text)


# ----------------------------------------------------------------------------------- overrides


def apply_overrides(document: YamlDocument, overrides: Iterable[str]) -> YamlDocument:
    """Apply each `path=value` in order and return the document; missing sections are created.

    The value is parsed as YAML ("4", "true", "{tensor: 4}", "400 Gb/s"). Its position is the
    override itself.

    Raises:
        InputError: no "=", an empty part in the path, a value that is not YAML, or a path that
            leads through a plain value.
    """
    return reduce(overlay, map(_document_of, overrides), document)


def _document_of(override: str) -> YamlDocument:
    place, path = _place_of(override), path_of(override)
    value = parse_value(override.partition("=")[2], place)
    paths = [*(path[:depth] for depth in range(1, len(path))), *paths_in(value, path)]
    places = dict.fromkeys(paths, Place(place, place))
    return YamlDocument(with_value({}, path, value, place), Positions(places))


def parse_value(text: str, place: Location) -> Any:
    """Parse a value on the command line as YAML; an empty one is null, as in a file.

    Raises:
        InputError: it is not YAML, at `place`.
    """
    return read_value(text, lambda line, column: place)[0]


def _place_of(override: str) -> Location:
    return Location(f"--set {override}")


def path_of(override: str) -> tuple[str, ...]:
    """Parse the path of an override.

    Raises:
        InputError: the override has no "=", or its path has an empty part.
    """
    left, equals, _ = override.partition("=")
    path = tuple(part.strip() for part in left.split("."))
    if not equals or not all(path):
        message = 'has no "="' if not equals else f'the path "{left.strip()}" has an empty part'
        fix = 'write section.field=value, for example "--set parallelism.tensor=4"'
        raise InputError([Problem("E112", message, _place_of(override), fix=fix)])
    return path


# ------------------------------------------------------------------------------------- writing


class _Writer(yaml.SafeDumper):  # type: ignore[misc]
    """Writes scalars so that they are read by the core schema of YAML 1.2, and indents lists."""

    yaml_implicit_resolvers: ClassVar[Any] = {
        None: [
            (_TAG + kind, re.compile(f"(?:{form})$")) for kind, (form, _) in _PLAIN_SCALARS.items()
        ]
    }

    in_a_line: Callable[[Any], bool]
    quoted: Callable[[str], bool]

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_data(self, data: Any) -> Any:
        node = super().represent_data(data)
        if isinstance(node, yaml.CollectionNode):
            node.flow_style = self.in_a_line(data)
        elif isinstance(data, float):
            node.value = node.value if math.isinf(data) or math.isnan(data) else repr(data)
        elif isinstance(data, str) and self.quoted(data):
            node.style = '"'
        return node


def yaml_text(
    data: Any,
    in_a_line: Callable[[Any], bool] = lambda value: False,
    quoted: Callable[[str], bool] = lambda text: False,
) -> str:
    """Return data as YAML, which is read as the same data.

    Args:
        data: mappings, lists and plain values.
        in_a_line: whether a mapping or list stands in brackets on one line.
        quoted: whether a text has double quotes, also if it needs none.
    """
    methods = {"in_a_line": staticmethod(in_a_line), "quoted": staticmethod(quoted)}
    writer = type("Writer", (_Writer,), methods)
    text: str = yaml.dump(data, Dumper=writer, sort_keys=False, allow_unicode=True, width=10_000)
    return text
