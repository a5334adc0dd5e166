"""From a scenario file, or the name of a shipped one, to a scenario that may be simulated."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from simtrain.resources import find_scenario
from simtrain.scenario.check import check_scenario
from simtrain.scenario.schema import Scenario
from simtrain.strict_yaml import Document, apply_overrides, load_document, validate


def load_scenario(path_or_name: str | pathlib.Path, overrides: Iterable[str] = ()) -> Scenario:
    """Load a scenario, with overrides such as "parallelism.tensor=4", and check every rule.

    Raises:
        InputError: all that is wrong with the file, the overrides, or the combination of values.
    """
    path = find_scenario(path_or_name)
    document = apply_overrides(load_document(path), overrides)
    return scenario_from_document(document, default_name=path.stem)


def scenario_from_document(document: Document, default_name: str | None = None) -> Scenario:
    """The scenario of a loaded document, every rule checked.

    Raises:
        InputError: all that is wrong with the values or their combination.
    """
    data = dict(document.data)
    if data.get("name") is None:
        data["name"] = default_name
    scenario = validate(Scenario, data, document.positions)
    scenario._positions = document.positions
    check_scenario(scenario)
    return scenario
