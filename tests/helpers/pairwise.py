"""Legal scenarios that together have every legal pair of values of two fields.

Most bugs need two settings, one of them often new. A pair is completed to a legal scenario with
values that rules suggest; then as many other pairs as possible join it. All is deterministic.
"""

import itertools
import random
from collections.abc import Iterator

from simtrain.errors import InputError
from simtrain.scenario import RULES, Scenario
from simtrain.scenario.remedies import LEFT_OUT, fields_of, neighbours
from simtrain.scenario.rule import Rule
from tests.helpers.scenario_values import FIELD_VALUES, Values, nested

Choice = tuple[str, int]
"""A field, and the place of one of its values."""
Pair = tuple[Choice, Choice]

_REPAIRS = 8
"""Rules that a pair may break one after the other until its scenario is legal."""
_VALUES_TRIED, _FIELDS_TRIED = 3, 4


def legal_pairs(seed: int, most: int | None = None, fields_of_each: int = 40) -> Iterator[Scenario]:
    """Yield legal scenarios, each with pairs that none before it has, until none are left.

    Args:
        seed: of the order in which pairs are taken.
        most: limit of the number of scenarios; None for all, some 2,700.
        fields_of_each: fields that are tried in addition to a pair.
    """
    rng = random.Random(seed)
    choices = [
        (field, place) for field in FIELD_VALUES for place in range(len(FIELD_VALUES[field]))
    ]
    pairs = [pair for pair in itertools.combinations(choices, 2) if pair[0][0] != pair[1][0]]
    rng.shuffle(pairs)
    covered, number = set[Pair](), 0
    for pair in pairs:
        if number == most:
            return
        if pair in covered:
            continue
        covered.add(pair)
        found = _legal(_values_of(pair))
        if found is None:
            continue
        values, scenario = found
        for field in rng.sample(sorted(FIELD_VALUES), fields_of_each):
            if field in values:
                continue
            place = rng.randrange(len(FIELD_VALUES[field]))
            more = values | {field: FIELD_VALUES[field][place]}
            if (other := _scenario_of(more)) is not None and _broken(other) is None:
                values, scenario = more, other
        covered.update(_pairs_of(values))
        number += 1
        yield scenario


def _values_of(pair: Pair) -> Values:
    values = {field: FIELD_VALUES[field][place] for field, place in pair}
    for field in [*values]:
        # A field of an optional section needs the section.
        section = field.rpartition(".")[0]
        if section in FIELD_VALUES and section not in values:
            values[section] = FIELD_VALUES[section][1]
    return values


def _pairs_of(values: Values) -> Iterator[Pair]:
    choices = [
        (field, place)
        for field in FIELD_VALUES
        if field in values
        for place, value in enumerate(FIELD_VALUES[field])
        if value is values[field] or value == values[field]
    ]
    yield from itertools.combinations(choices, 2)


def _legal(pinned: Values) -> tuple[Values, Scenario] | None:
    """Return legal values with the pinned ones, and their scenario; None if none are found."""
    values = dict(pinned)
    for _ in range(_REPAIRS):
        scenario = _scenario_of(values)
        if scenario is None:
            return None
        broken = _broken(scenario)
        if broken is None:
            return values, scenario
        repaired = _repaired(values, pinned, scenario, *broken)
        if repaired is None:
            return None
        values = repaired
    return None


def _repaired(
    values: Values, pinned: Values, scenario: Scenario, rule: Rule, message: str
) -> Values | None:
    """Return the values with a neighbour of one that a rule reads; the fewest rules broken win."""
    tried: list[tuple[int, int, Values]] = []
    fields = fields_of(rule, message, scenario)
    for field in fields[:_FIELDS_TRIED]:
        suggested = neighbours(scenario, field, message, fields)
        kept = {
            name: value for name, value in values.items() if not f"{name}.".startswith(f"{field}.")
        }
        if not kept.keys() >= pinned.keys():
            continue
        for value in itertools.islice(suggested, _VALUES_TRIED):
            if value is not LEFT_OUT and field not in FIELD_VALUES:
                continue
            new = kept if value is LEFT_OUT else kept | {field: value}
            other = _scenario_of(new)
            if other is not None and new != values:
                number = sum(each.check(other) is not None for each in RULES)
                tried.append((number, len(tried), new))
    return min(tried)[2] if tried else None


def _scenario_of(values: Values) -> Scenario | None:
    try:
        return Scenario.model_validate(nested(values))
    except (InputError, ValueError):
        return None


def _broken(scenario: Scenario) -> tuple[Rule, str] | None:
    return next(((rule, found) for rule in RULES if (found := rule.check(scenario))), None)
