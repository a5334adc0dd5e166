"""Parts that other installed packages add: schedules, importers, commands and more.

A package names its parts in its `pyproject.toml`, as plug-ins of pytest are named:

    [project.entry-points."simtrain.schedules"]
    eager_1f1b = "my_package:EagerOneFOneB"

Each kind of part has a module of its own, which imports the room that it extends and none after it.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import Any, TypeVar, cast

from simtrain.base.values import dataclass
from simtrain.errors import InputError, Location

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class _Point:
    """A part that an installed package names: `value` is "module:attribute"."""

    group: str
    name: str
    value: str
    package: str

    def load(self) -> Any:
        module, _, attribute = self.value.partition(":")
        return attrgetter(attribute)(import_module(module))


@functools.cache
def _installed() -> list[_Point]:
    """Read what all installed packages name; `importlib.metadata` takes 0.02 s for the same."""
    files: dict[str, str] = {}

    for folder in sys.path:
        with suppress(OSError):
            for entry in os.scandir(folder or os.curdir):
                if entry.name.endswith((".dist-info", ".egg-info")):
                    file = os.path.join(entry.path, "entry_points.txt")
                    files.setdefault(entry.name.partition("-")[0], file)

    return [point for package, file in files.items() for point in _points_of(package, file)]


def _points_of(package: str, file: str) -> Iterator[_Point]:
    text, group = "", ""
    with suppress(OSError), open(file, encoding="utf-8") as lines:
        text = lines.read()

    for line in text.splitlines() if "[simtrain." in text else ():
        name, equals, value = (part.strip() for part in line.partition("="))
        if line.startswith("["):
            group = line.strip("[] ")
        elif equals and group.startswith("simtrain."):
            yield _Point(group, name, value, package)


def _points(kind: str) -> list[_Point]:
    points = [point for point in _installed() if point.group == f"simtrain.{kind}"]
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

    def _plugged_in(self, point: _Point) -> Part:
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


def _unusable(point: _Point, reason: str) -> InputError:
    package = point.package.replace("_", "-")
    message = f"{point.group}: {point.name} = {point.value} cannot be used: {reason}"
    fix = f"mend the package {package}, or remove it: pip uninstall {package}"
    return InputError.of("E740", message, Location(f"package {package}"), fix)
