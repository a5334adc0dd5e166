"""Load scenarios, and check them against every rule of the framework and of the cluster."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from pydantic import ValidationError

from simtrain.base.importer import SCENARIO, load_kind
from simtrain.base.resources import beside, find_scenario
from simtrain.base.strict_yaml import YamlDocument, apply_overrides, data_of, input_error
from simtrain.errors import InputError, Location, Problem, wrong_type
from simtrain.scenario.combination_rules import NO_FUSED_ATTENTION, NO_HOST_LINK
from simtrain.scenario.expert_rules import dispatcher_rule
from simtrain.scenario.precision_rules import products_rule, userbuffer_node_rule
from simtrain.scenario.rule import Rule
from simtrain.scenario.rules import RULES, size_rule
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import IN_PYTHON, spell_out_words

EVERY_RULE = (
    *RULES,
    size_rule(1, 1),
    NO_HOST_LINK,
    NO_FUSED_ATTENTION,
    products_rule(()),
    dispatcher_rule(()),
    userbuffer_node_rule(1),
)
"""The rules of the framework and, for any cluster, those of clusters."""
REASONS = {rule.code: rule.why for rule in EVERY_RULE}
"""The reason of each rule by its code, including the rules of clusters."""


_VALUES, _RULES = "values", "rules of the framework"
"""Checks that are not made again."""


def check_scenario(
    scenario: Scenario, rules: Sequence[Rule] = RULES, kept: Sequence[Rule] = ()
) -> None:
    """Refuse a scenario that breaks a rule; by default, check the rules of the framework.

    Args:
        scenario: the scenario.
        rules: the rules to check.
        kept: the rules that no suggested value may break; `rules` by default.

    Raises:
        InputError: one problem per broken rule, with the nearest legal values.
    """
    if rules is RULES and _RULES in scenario.checks:
        return
    broken = [(rule, message) for rule in rules if (message := rule.check(scenario))]
    if broken:
        # Most runs have no error, and need no remedies.
        from simtrain.scenario.remedies import problem_of

        raise InputError(problem_of(scenario, *violated, kept or rules) for violated in broken)
    if rules is RULES:
        scenario.checks.add(_RULES)


def check_values(scenario: Scenario) -> None:
    """Refuse an object that is not a scenario, and values that `model_copy` set without validation.

    Raises:
        InputError: one problem per wrong value.
    """
    check_is_scenario(scenario)
    if _VALUES in scenario.checks:
        return
    data = data_of(scenario)
    try:
        valid = Scenario.model_validate(data)
    except ValidationError as error:
        raise input_error(error, Scenario, data, scenario.positions, "the scenario") from None
    # After model_copy, a section may be a dict, or have a second value under its alias.
    wrong = [
        Problem(
            "E203",
            f"{name} is {getattr(scenario, name)!r:.80}, not a valid {type(section).__name__}",
            IN_PYTHON,
            fix=f'change the scenario with replace({{"{name}": ...}}) instead of model_copy',
        )
        for name, section in valid
        if getattr(scenario, name) != section
    ]
    if wrong:
        raise InputError(wrong)
    scenario.checks.add(_VALUES)


def check_is_scenario(value: object) -> None:
    """Refuse an object that is not a scenario.

    Raises:
        InputError: the object is a name or of another type (E114).
    """
    if isinstance(value, Scenario):
        return
    fix = "load one with load_scenario, or build one with Scenario(model=..., batch=...)"
    if isinstance(value, (str, PurePath)):
        fix = f'load the scenario, as in simulate(load_scenario("{value}"))'
    raise wrong_type(value, "Scenario", fix)


# Load scenarios from files, or by the name of a scenario that comes with simtrain.

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
