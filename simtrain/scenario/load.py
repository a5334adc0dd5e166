"""From a scenario file, or the name of a shipped one, to a scenario that may be simulated."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from simtrain.errors import InputError
from simtrain.resources import beside, find_scenario
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
    document = read_scenario(path)
    for override in overrides:
        document = apply_overrides(spell_out_words(document), [override])
    data = document.data
    if data.get("name") is None:
        data = data | {"name": path.stem}
    return Scenario.from_document(Document(data, document.positions))


def read_scenario(path: pathlib.Path) -> Document:
    """The document of a scenario file.

    Raises:
        InputError: it cannot be read, or is the file of a sweep.
    """
    document = load_document(path)
    if "axes" in document.data and "model" not in document.data:
        raise InputError.of(
            "E116",
            "this is a sweep, not a scenario",
            document.positions.of_key(("axes",)),
            f"simtrain sweep {path} --out results",
            "a scenario has no axes",
        )
    return with_cluster_beside(document, str(path))


def with_cluster_beside(document: Document, file: str) -> Document:
    """The document of a scenario that stands in a file, to which its cluster's path is relative."""
    cluster = document.data.get("cluster")
    if not isinstance(cluster, str):
        return document
    return Document(document.data | {"cluster": beside(cluster, file)}, document.positions)
