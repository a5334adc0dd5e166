"""Load scenarios from files, or by the name of a scenario that comes with simtrain."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping

from simtrain.base.file_kinds import SCENARIO, load_kind
from simtrain.base.resources import beside, find_scenario
from simtrain.base.strict_yaml import YamlDocument, apply_overrides
from simtrain.errors import InputError, Location
from simtrain.scenario.check import check_scenario
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import spell_out_words

_PATHS = "cluster", "schedule", "program"
"""Fields that may be paths; a program always is."""


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
    paths = {}
    for field in _PATHS:
        if isinstance(written := document.data.get(field), str):
            # A bare name is that of a profile or a schedule, but of a file if it is a program.
            is_file = field == "program"
            paths[field] = beside(os.path.join(os.curdir, written) if is_file else written, file)
    return YamlDocument(document.data | paths, document.positions) if paths else document
