"""From a scenario file, or the name of a shipped one, to a scenario that may be simulated."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from simtrain.resources import find_scenario
from simtrain.scenario.check import check_scenario
from simtrain.scenario.schema import Scenario
from simtrain.scenario.words import spell_out_words
from simtrain.strict_yaml import Document, apply_overrides, load_document


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
        document = apply_overrides(spell_out_words(document), [override])
    data = document.data
    if data.get("name") is None:
        data = data | {"name": path.stem}
    return Scenario.from_document(Document(data, document.positions))
