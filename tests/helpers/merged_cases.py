"""Legal scenarios that combine many settings, and together have every field and choice."""

import functools
import random
from collections.abc import Iterator
from typing import Any

from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from simtrain.scenario import RULES, Scenario
from simtrain.studies.on_machine import rules_on
from tests.helpers.scenario_values import FIELD_VALUES
from tests.test_every_field import BASE, CASES, VARIATION_CASES

_CHOICES = (
    *("schedule", "cluster", "software.stack", "recompute.strategy", "model.activation"),
    *("parallelism.expert_dispatch", "parallelism.context_communication"),
    *("precision.compute", "precision.fp8_recipe"),
)
"""Fields whose values are features of their own: each value is a case."""
_FUSED: dict[str, Any] = {"attention_backend": "fused"}
_CONTEXTS: list[dict[str, Any]] = [
    *({"parallelism.tensor": ranks, "batch.micro": 8, "batch.global": 64} for ranks in (4, 8)),
    {"parallelism.pipeline": 4, "model.num_layers": 8, "parallelism.interleave": 2},
    {"parallelism.pipeline": 2, "model.tied_embeddings": False},
    {"parallelism.context": 4},
    _FUSED | {"parallelism.context": 4, "parallelism.context_a2a": 2},
    _FUSED | {"cluster": "b200_sxm", "precision.compute": "fp8"},
    _FUSED | {"cluster": "b200_sxm"},
]
"""What values need, beside the contexts of all fields."""
_rules_on = functools.cache(lambda cluster: (*RULES, *rules_on(load_profile(cluster))[1:]))


def merged_scenarios(seed: int) -> Iterator[Scenario]:
    """Merge the cases of all fields, in an order of its own for each seed, into some 40 scenarios.

    A case is a field's value with what it needs. A scenario takes each case that contradicts no
    earlier one and leaves it legal; the others are left to the scenarios after it.
    """
    cases = [
        *(context | {field: value} for field, (context, value) in CASES.items()),
        *(context | {field: value} for field, (context, value) in VARIATION_CASES.items()),
        *_cases_of_choices(),
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


@functools.cache
def _cases_of_choices() -> list[dict[str, Any]]:
    """Return each value of a choice with the first context in which it is legal."""
    contexts = [*_CONTEXTS, *(context for context, _ in CASES.values())]
    found = []
    for field in _CHOICES:
        own = CASES[field][0] if field in CASES else {}
        for value in filter(None, FIELD_VALUES[field]):
            ways = (each | {field: value} for each in (own, *contexts) if field not in each)
            found.append(next(case for case in ways if _legal(BASE, case)))
    return found


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
    return changed
