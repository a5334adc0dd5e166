"""Parts that other installed packages add: schedules, importers, commands and more.

A package names its parts in its `pyproject.toml`, as plug-ins of pytest are named:

    [project.entry-points."simtrain.schedules"]
    eager_1f1b = "my_package:EagerOneFOneB"

Each kind of part has a module of its own, which imports the room that it extends and none after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any, TypeVar, cast

from simtrain.errors import InputError, Location

Part = TypeVar("Part")


# One call for all kinds: each reads the metadata of every installed package.
_entry_points = functools.cache(entry_points)


def _points(kind: str) -> list[EntryPoint]:
    points = _entry_points().select(group=f"simtrain.{kind}")
    return sorted(points, key=lambda point: (point.name, point.value))


class Parts(Mapping[str, Part]):
    """Parts of a kind by name: those of simtrain itself, then those that installed packages add.

    Plug-ins are imported at the first look-up, not with the registry: their modules import the
    room that they extend.

    Args:
        kind: of entry points, such as "schedules".
        base: the class of such parts. An entry point names an instance, or a class without
            parameters.
        house: the parts of simtrain.
        last: parts of simtrain that come after all others.
        name_of: returns the name of a part; no two parts share one.

    Look-ups raise InputError if a plug-in cannot be imported, is of another class, or has the name
    of another part (E740).
    """

    def __init__(
        self,
        kind: str,
        base: type,
        house: Iterable[Part],
        last: Iterable[Part] = (),
        name_of: Callable[[Any], str] = attrgetter("name"),
    ) -> None:
        self._kind, self._base, self._name_of = kind, base, name_of
        self._house, self._last = tuple(house), tuple(last)

    @functools.cached_property
    def _parts(self) -> dict[str, Part]:
        parts = {self._name_of(part): part for part in self._house}
        last = {self._name_of(part): part for part in self._last}
        for point in _points(self._kind):
            part = self._plugged_in(point)
            if (name := self._name_of(part)) in parts.keys() | last.keys():
                raise _unusable(point, f'there is a part named "{name}" already')
            parts[name] = part
        return parts | last

    def _plugged_in(self, point: EntryPoint) -> Part:
        try:
            part: Any = point.load()
        except (ImportError, AttributeError, TypeError) as error:
            raise _unusable(point, str(error)) from error
        part = part() if isinstance(part, type) else part
        if not isinstance(part, self._base):
            raise _unusable(point, f"it is no {self._base.__module__}.{self._base.__name__}")
        return cast(Part, part)

    def __getitem__(self, name: str) -> Part:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def command_sources(house: Iterable[str]) -> dict[str, str]:
    """Return "module:function" of the commands that installed packages add, by name.

    Raises:
        InputError: a command has the name of a command of simtrain (E740).
    """
    taken = {*house}
    for point in _points("commands"):
        if point.name in taken:
            raise _unusable(point, f'there is a command named "{point.name}" already')
        taken.add(point.name)
    return {point.name: point.value for point in _points("commands")}


def _unusable(point: EntryPoint, reason: str) -> InputError:
    package = point.dist.name if point.dist else point.module
    message = f"{point.group}: {point.name} = {point.value} cannot be used: {reason}"
    fix = f"mend the package {package}, or remove it: pip uninstall {package}"
    return InputError.of("E740", message, Location(f"package {package}"), fix)
