"""From a scenario file, or the name of a shipped one, to a scenario that may be simulated."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from simtrain.resources import find_scenario
from simtrain.scenario.check import check_scenario
from simtrain.scenario.schema import Scenario
from simtrain.strict_yaml import (
    Document,
    Positions,
    apply_overrides,
    load_document,
    validate,
)


def load_scenario(path_or_name: str | pathlib.Path, overrides: Iterable[str] = ()) -> Scenario:
    """Load a scenario, with overrides such as "parallelism.tensor=4", and check every rule.

    Raises:
        InputError: all that is wrong with the file, the overrides, or the combination of values.
    """
    scenario = load_unchecked(path_or_name, overrides)
    check_scenario(scenario)
    return scenario


def load_unchecked(path_or_name: str | pathlib.Path, overrides: Iterable[str] = ()) -> Scenario:
    """As `load_scenario`, but its combination of values may break rules: a start, to be changed.

    Raises:
        InputError: all that is wrong with the file, the overrides, or single values.
    """
    path = find_scenario(path_or_name)
    document = load_document(path)
    for override in overrides:
        document = apply_overrides(spell_out_recompute(document), [override])
    return _scenario_of(document, default_name=path.stem)


def scenario_from_document(document: Document, default_name: str | None = None) -> Scenario:
    """The scenario of a loaded document, every rule checked.

    Raises:
        InputError: all that is wrong with the values or their combination.
    """
    scenario = _scenario_of(document, default_name)
    check_scenario(scenario)
    return scenario


def _scenario_of(document: Document, default_name: str | None) -> Scenario:
    document = spell_out_recompute(document)
    data = dict(document.data)
    if data.get("name") is None:
        data["name"] = default_name
    scenario = validate(Scenario, data, document.positions)
    scenario._positions = document.positions
    return scenario


def spell_out_recompute(document: Document) -> Document:
    """The document with `recompute: full` written as the section that it stands for.

    Overrides can then reach inside it, and rules find where the strategy was written.
    """
    recompute = document.data.get("recompute")
    if "recompute" not in document.data or isinstance(recompute, dict):
        return document
    keys, values = dict(document.positions.keys), dict(document.positions.values)
    for table in (keys, values):
        if ("recompute",) in table:
            table["recompute", "strategy"] = table["recompute",]
    data = document.data | {"recompute": {"strategy": recompute}}
    return Document(data, Positions(keys, values))
