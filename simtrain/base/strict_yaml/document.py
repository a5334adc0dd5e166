"""A loaded document: plain data with the position of each key and value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simtrain.errors import InputError, Location

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
        """Return a copy with `paths` at `location` and without positions below them."""
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


def document_with(path: Path, value: Any, location: Location | None) -> YamlDocument:
    """Build a document with only `value` at `path`; everything has the position `location`."""
    paths = [*(path[:depth] for depth in range(1, len(path))), *paths_in(value, path)]
    places = dict.fromkeys(paths, Place(location, location)) if location else {}
    return YamlDocument(with_value({}, path, value, location), Positions(places))


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
