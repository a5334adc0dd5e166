"""Base scenarios of a sweep: by name, by path, or written in the sweep file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from simtrain.base.resources import beside, find_scenario
from simtrain.base.strict_yaml import Path, YamlDocument, apply_overrides, section
from simtrain.base.strict_yaml.document import dotted
from simtrain.base.strict_yaml.reading import path_of
from simtrain.base.strict_yaml.validation import as_written
from simtrain.errors import InputError, Location, Problem
from simtrain.scenario.load import read_scenario, with_paths_beside
from simtrain.scenario.words import spell_out_words
from simtrain.studies.sweep.axes import SweepAxis, location_of
from simtrain.studies.sweep.fields import BASE


def base_documents(
    document: YamlDocument, axes: Sequence[SweepAxis], overrides: Sequence[str], default_name: str
) -> tuple[str, Mapping[str, YamlDocument]]:
    """Return the name of the default base scenario (E805 if there is none), and all by name."""
    written = document.data.get("base")
    on_axes = list(_named_on_axes(document, axes))
    if written is None and not on_axes:
        fix = "add base: table5_175b_present, or the path of a scenario file"
        place = document.positions.of_key(())
        raise InputError.of("E805", "the sweep has no base scenario", place, fix)
    documents: dict[str, YamlDocument] = {}
    if isinstance(written, dict):
        name = str(written.get("name") or default_name)
        place = document.positions.of_value(BASE)
        fields = with_paths_beside(section(document, BASE), place.file if place else "")
        documents[name] = _with_overrides(fields, overrides)
    elif written is not None:
        location = document.positions.of_value(BASE)
        on_axes.insert(0, (_name(written, location), location))
    for name_or_path, location in on_axes:
        path = beside(name_or_path, location.file) if location else name_or_path
        documents[name_or_path] = _with_overrides(
            read_scenario(find_scenario(path, location)), overrides
        )
    _refuse_unused_base(document, axes)
    return next(iter(documents)), documents


def _named_on_axes(
    document: YamlDocument, axes: Sequence[SweepAxis]
) -> Iterator[tuple[str, Location | None]]:
    for axis in (axis for axis in axes if BASE in axis.paths):
        for position in range(len(axis)):
            for path, value in axis.assignments(position):
                if path == BASE:
                    location = location_of(document, axis, position, path)
                    yield _name(value, location), location


def _refuse_unused_base(document: YamlDocument, axes: Sequence[SweepAxis]) -> None:
    """Refuse `base:` if an axis sets the base at every point."""
    for axis in axes:
        sets_it = BASE in axis.paths and all(
            BASE in dict(axis.assignments(position)) for position in range(len(axis))
        )
        if sets_it and document.data.get("base") is not None:
            message = f"the axis {axis.name} sets base at every point, so this line has no effect"
            place = document.positions.of_key(BASE)
            fix = "remove this line, or add its value to the axis"
            raise InputError.of("E806", message, place, fix)


def _name(value: object, location: Location | None) -> str:
    if isinstance(value, str) and value:
        return value
    message = f"base must be the name of a scenario, not {as_written(value)}"
    fix = "write a name such as table5_175b_present, or the path of a scenario file"
    raise InputError.of("E805", message, location, fix)


def _with_overrides(document: YamlDocument, overrides: Sequence[str]) -> YamlDocument:
    for override in overrides:
        document = apply_overrides(spell_out_words(document), [override])
    return spell_out_words(document)


def refuse_overridden_axes(overrides: Sequence[str], axes: Sequence[SweepAxis]) -> None:
    """Refuse an override of a field that an axis sets at every point (E806)."""
    problems = [
        Problem(
            "E806",
            f"the axis {axis.name} sets {dotted(path)} at every point, so this has no effect",
            Location(f"--set {override}"),
            fix="remove the override, or remove the field from the axis",
        )
        for override in overrides
        for axis in axes
        for path in sorted(axis.paths, key=dotted)
        if overlaps(path, path_of(override))
    ]
    if problems:
        raise InputError(problems)


def overlaps(path: Path, other: Path) -> bool:
    """Whether one of two fields contains the other."""
    depth = min(len(path), len(other))
    return path[:depth] == other[:depth]
