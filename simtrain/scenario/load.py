"""Load scenarios from files, or by the name of a scenario that comes with simtrain."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simtrain.base.file_kinds import SCENARIO, load_kind
from simtrain.base.resources import beside, find_scenario
from simtrain.base.strict_yaml import YamlDocument, apply_overrides
from simtrain.errors import InputError, Location
from simtrain.scenario.check import check_scenario
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import spell_out_words

_FILES = "file", "program"
_PATHS = ("cluster",), ("schedule",), ("program",), ("variation", "sequence_lengths", "file")
"""Fields that may be paths; those of `_FILES` always are."""


def load_scenario(path_or_name: str | pathlib.Path, overrides: Iterable[str] = ()) -> Scenario:
    """Load a scenario, with overrides such as "parallelism.tensor=4", and check every rule.

    Raises:
        InputError: every problem of the file, the overrides and the combination of values.
    """
    scenario = load_unchecked(path_or_name, overrides)
    check_scenario(scenario)
    return scenario


def check_overrides(overrides: object) -> None:
    """Refuse overrides that are no list of texts (E112)."""
    if isinstance(overrides, (str, Mapping)) or not isinstance(overrides, Iterable):
        message = f"overrides are a {type(overrides).__name__}, not a list of texts"
        fix = 'write ["recompute=full"], or load the scenario and .replace({"recompute": "full"})'
        raise InputError.of("E112", message, Location("overrides"), fix)


def load_unchecked(path_or_name: str | pathlib.Path, overrides: Iterable[str] = ()) -> Scenario:
    """Load a scenario without checking the rules on combinations of values.

    Raises:
        InputError: every problem of the file, the overrides and single values.
    """
    check_overrides(overrides)
    path = find_scenario(path_or_name)
    document = read_scenario(path)
    for override in overrides:
        document = apply_overrides(spell_out_words(document), [override])
    data = document.data
    if data.get("name") is None:
        data = data | {"name": path.stem}
    return Scenario.from_document(YamlDocument(data, document.positions))


def read_scenario(path: pathlib.Path) -> YamlDocument:
    """Read the document of a scenario file.

    Raises:
        InputError: the file cannot be read, or is of another kind.
    """
    return with_paths_beside(load_kind(path, SCENARIO), str(path))


def with_paths_beside(document: YamlDocument, file: str) -> YamlDocument:
    """Resolve the paths of a scenario's files relative to the scenario's file."""
    data = document.data
    for path in _PATHS:
        data = _beside(data, path, file)
    return YamlDocument(data, document.positions) if data is not document.data else document


def _beside(data: dict[str, Any], path: Sequence[str], file: str) -> dict[str, Any]:
    """Return data whose value at a path is relative to a file, if it is a text."""
    first, *rest = path
    value = data.get(first)
    if rest:
        return {**data, first: _beside(value, rest, file)} if isinstance(value, dict) else data
    if not isinstance(value, str):
        return data
    # A bare name is that of a profile or a schedule, but also that of a file of lengths.
    is_file = first in _FILES
    return {**data, first: beside(os.path.join(os.curdir, value) if is_file else value, file)}
