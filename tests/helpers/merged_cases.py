"""Legal scenarios that combine as many settings as possible, and together have every field."""

import functools
import random
from collections.abc import Iterator
from typing import Any

from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from simtrain.scenario import RULES, Scenario
from simtrain.studies.search.legality import rules_on
from simtrain.studies.simulation import simulate_memory
from tests.test_every_field import BASE, CASES, VARIATION_CASES

_rules_on = functools.cache(lambda cluster: (*RULES, *rules_on(load_profile(cluster))))


def merged_scenarios(seed: int) -> Iterator[Scenario]:
    """Merge the cases of all fields, in an order of its own for each seed, into some 30 scenarios.

    A case is a field's value with what it needs. A scenario takes each case that contradicts no
    earlier one and leaves it legal; the others are left to the scenarios after it.
    """
    cases = [
        context | {field: value} for field, (context, value) in (CASES | VARIATION_CASES).items()
    ]
    random.Random(seed).shuffle(cases)
    while cases:
        scenario, merged, left = BASE, dict[str, Any](), []
        for case in cases:
            other = None if _contradict(case, merged) else _legal(scenario, merged | case)
            if other is None:
                left.append(case)
            else:
                scenario, merged = other, merged | case
        assert len(left) < len(cases), "each case is legal alone"
        cases = left
        yield scenario


def _contradict(case: dict[str, Any], merged: dict[str, Any]) -> bool:
    return any(
        (name == other and value != merged[other])
        or name.startswith(f"{other}.")
        or other.startswith(f"{name}.")
        for name, value in case.items()
        for other in merged
    )


def _legal(scenario: Scenario, changes: dict[str, Any]) -> Scenario | None:
    try:
        changed = scenario.replace(changes)
    except InputError:
        return None
    if any(rule.check(changed) for rule in _rules_on(changed.cluster)):
        return None
    if changed.offload.modules:
        try:
            simulate_memory(changed)  # some layer saves tensors of each module
        except InputError:
            return None
    return changed
