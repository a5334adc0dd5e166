"""A loaded document: plain data with the position of each key and value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from simtrain.errors import InputError, Location, Problem

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
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of a document's keys and values, by path."""

    keys: Mapping[Path, Location] = field(default_factory=dict)
    values: Mapping[Path, Location] = field(default_factory=dict)

    def of_key(self, path: Path) -> Location | None:
        """Position of the key at `path`, or of its closest enclosing section in the file."""
        enclosing = (path[:length] for length in range(len(path), -1, -1))
        return next((self.keys[part] for part in enclosing if part in self.keys), None)

    def of_value(self, path: Path) -> Location | None:
        """Position of the value at `path`, or of its closest enclosing section's key."""
        return self.values.get(path) or self.of_key(path)

    def moved(self, paths: Iterable[Path], place: Location) -> Positions:
        """Return a copy with `paths` at `place` and without positions below them."""
        keys, values = dict(self.keys), dict(self.values)
        for path in paths:
            for table in (keys, values):
                _move(path, {path: place}, table)
        return Positions(keys, values)

    def __contains__(self, path: Path) -> bool:
        """Whether `path` is set in the document, as opposed to a default."""
        return path in self.values


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and its positions."""

    data: dict[str, Any]
    positions: Positions


def section(document: Document, path: Path) -> Document:
    """Return the mapping at `path` as a document; empty if the path is not set."""
    data: Any = document.data
    for part in path:
        data = data.get(part, {})
    keys, values = (
        {where[len(path) :]: at for where, at in table.items() if where[: len(path)] == path}
        for table in (document.positions.keys, document.positions.values)
    )
    return Document(data, Positions(keys, values))


def document_with(path: Path, value: Any, place: Location | None) -> Document:
    """Build a document with only `value` at `path`; everything has the position `place`."""
    enclosing = [path[:depth] for depth in range(1, len(path))]
    table = dict.fromkeys([*enclosing, *paths_in(value, path)], place) if place else {}
    return Document(with_value({}, path, value, place), Positions(table, table))


def with_value(
    data: Mapping[str, Any], path: Path, value: Any, place: Location | None
) -> dict[str, Any]:
    """Copy nested data with one value set; unchanged sections are shared.

    Raises:
        InputError: the path leads through a plain value; the error is located at `place`.
    """
    changed = inside = dict[Any, Any](data)
    for depth, part in enumerate(path[:-1], start=1):
        old = inside.get(part)
        if not (old is None or isinstance(old, dict)):
            raise InputError([_not_a_section(path[:depth], old, place)])
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


def overlay(base: Document, top: Document) -> Document:
    """Merge `top` into `base`: mappings merge, any other value replaces.

    Raises:
        InputError: `top` has a section where `base` has a plain value.
    """
    keys, values = dict(base.positions.keys), dict(base.positions.values)

    def merged(old: Any, new: Any, path: Path) -> Any:
        """Return `old` with the values of `new`, and record their places."""
        if isinstance(new, dict) and isinstance(old, dict):
            laid = {
                name: merged(old.get(name), value, (*path, name)) for name, value in new.items()
            }
            return old | laid
        if isinstance(new, dict) and old is not None:
            raise InputError([_not_a_section(path, old, top.positions.of_value(path))])
        _move(path, top.positions.keys, keys)
        _move(path, top.positions.values, values)
        return new

    return Document(merged(base.data, top.data, ()), Positions(keys, values))


def _move(path: Path, source: Mapping[Path, Location], target: dict[Path, Location]) -> None:
    """Replace the positions of `path` and below in `target` by those in `source`."""
    depth = len(path)
    for where in [where for where in target if where[:depth] == path]:
        del target[where]
    target.update({where: at for where, at in source.items() if where[:depth] == path})


def _not_a_section(path: Path, value: Any, place: Location | None) -> Problem:
    return Problem(
        "E112",
        f"{dotted(path)} is the value {value!r}, not a section",
        place,
        fix=f"set {dotted(path)} itself",
    )
