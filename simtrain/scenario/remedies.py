"""Errors for broken rules: the place, the reason, and legal values to write instead.

Remedies follow from a rule by themselves: neighbouring values of the fields that its check reads
are tried, and those that break no rule are named. Each remedy leaves fewer broken rules, so
remedies never form a cycle.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from simtrain.base.resources import list_stacks
from simtrain.base.strict_yaml import as_scalar, data_of
from simtrain.base.strict_yaml.validation import dotted_names
from simtrain.errors import InputError, Location, Problem
from simtrain.scenario.rule import Rule, python_path
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import (
    Section,
    name_in_files,
    near_divisors,
    near_multiples,
    section_of,
)

LEFT_OUT: Final = object()
"""Marker in a remedy: remove the field."""
_FIXED = {"name", "description", "program", "cluster", "hardware"}
"""Fields whose values no rule suggests."""
_VALUES_PER_FIELD, _MOST_FIELDS = 2, 4
_TRIED_PER_FIELD, _MOST_TRIED = 24, 200
"""Limits of the search for remedies, which takes about 0.1 s at most."""
_TOGETHER_PER_FIELD, _MOST_TOGETHER = 4, 3
_LARGEST_DIVIDED = 10**7
_FARTHEST = 8
"""Numbers beyond this many times a value are no neighbours; they could take long to check."""
_NUMBER = re.compile(r"(?<![\w.])\d{1,10}(?![\w.]*[a-z_])")
_USUAL_STACKS = "megatron_core", "torchtitan"


def broken_codes(scenario: Scenario, rules: Sequence[Rule]) -> set[str]:
    """Return the codes of the rules that the scenario breaks."""
    return {rule.code for rule in rules if rule.check(scenario)}


def problem_of(scenario: Scenario, rule: Rule, message: str, rules: Sequence[Rule]) -> Problem:
    """Return the error about a broken rule, with its place, reason and remedy.

    No remedy breaks another one of `rules`.
    """
    fields = fields_of(rule, message, scenario)
    if fixes := suggest(scenario, rule, message, rules):
        fix = ", or ".join(_in_words(fixes))
    elif together := suggest_together(scenario, rule, rules):
        fix = " and ".join(_in_words({field: [value] for field, value in together.items()}))
    else:
        fix = rule.hint or f"change several of these fields together: {', '.join(fields)}"
    return Problem(rule.code, message, _place(scenario, fields), rule.why, fix)


def suggest(
    scenario: Scenario, rule: Rule, message: str, rules: Sequence[Rule]
) -> dict[str, list[object]]:
    """Return, for each field, the nearest values that satisfy `rule` and break no further rule.

    If some values leave no rule broken, return only those values.
    """
    before = broken_codes(scenario, rules)
    legal: dict[str, list[object]] = {}
    harmless: dict[str, list[object]] = {}
    num_tried = 0
    fields = fields_of(rule, message, scenario)
    for field in sorted(fields, key=lambda field: field not in rule.first):
        for value in islice(neighbours(scenario, field, message, fields), _TRIED_PER_FIELD):
            num_tried += 1
            state = changed(scenario, {field: value})
            if state is None or rule.check(state) is not None:
                continue
            after = broken_codes(state, rules)
            value = tuple(value) if isinstance(value, list) else value
            if after <= before - {rule.code} and value not in harmless.get(field, ()):
                harmless.setdefault(field, []).append(value)
            if not after and value not in legal.get(field, ()):
                legal.setdefault(field, []).append(value)
            if len(legal.get(field, ())) == _VALUES_PER_FIELD or num_tried > _MOST_TRIED:
                break
        if len(legal) == _MOST_FIELDS or num_tried > _MOST_TRIED:
            break
    ways = legal or harmless
    return {field: ways[field][:_VALUES_PER_FIELD] for field in [*ways][:_MOST_FIELDS]}


def suggest_together(
    scenario: Scenario, rule: Rule, rules: Sequence[Rule]
) -> dict[str, object] | None:
    """Return the fewest changes that together satisfy `rule` and break no further rule.

    The search is breadth-first: if a change breaks another rule, it also tries fields of that rule.
    """
    before = broken_codes(scenario, rules)
    watched = [rule, *(other for other in rules if other.code not in before)]

    def left(state: Scenario) -> list[tuple[Rule, str]]:
        checked = ((other, other.check(state)) for other in watched)
        return [(other, message) for other, message in checked if message]

    def further(state: Scenario, changes: dict[str, object]) -> Iterator[dict[str, object]]:
        """Yield the changes with one more, of a field that a broken rule reads."""
        for other, message in left(state):
            fields = fields_of(other, message, state)
            for field in fields:
                if field not in changes:
                    near = neighbours(state, field, message, fields)
                    yield from (
                        changes | {field: value} for value in islice(near, _TOGETHER_PER_FIELD)
                    )

    waiting = deque([further(scenario, {})])
    num_tried = 0
    while waiting:
        for changes in waiting.popleft():
            state, num_tried = changed(scenario, changes), num_tried + 1
            if num_tried > _MOST_TRIED:
                return None
            if state is None:
                continue
            if not left(state):
                return changes
            if len(changes) < _MOST_TOGETHER:
                waiting.append(further(state, changes))
    return None


def changed(scenario: Scenario, changes: Mapping[str, object]) -> Scenario | None:
    """Return the scenario with these fields set or removed; None if a value is invalid."""
    try:
        for field, value in changes.items():
            if value is LEFT_OUT:
                field, *path = field.split(".")
                value = section = data_of(getattr(scenario, field), only_set=True)
                for name in path[:-1]:
                    section = section[name]
                section.pop(path[-1], None)
            scenario = scenario.replace({field: value})
    except InputError:
        return None
    return scenario


# --------------------------------------------------------------------------------------- fields


@functools.cache
def _all_fields() -> frozenset[str]:
    return frozenset(dotted_names(Scenario))


def fields_of(rule: Rule, message: str, scenario: Scenario) -> list[str]:
    """Return the fields that a message names, and then the others that the check reads.

    The entries of the software stack, all of which a check of one reads, count only if named.
    """
    names = dict.fromkeys(
        [name for name in re.findall(r"[a-z][a-z_0-9.]*", message) if name in _all_fields()]
    )
    for name in (*rule.first, *_fields_read(rule, scenario)):
        if not name.startswith("software.") or name == "software.stack" or name in rule.first:
            names[name] = None
    fields = [name for name in names if name.partition(".")[0] not in _FIXED] or [*names]
    # Sections come after the fields that the check reads in them.
    return sorted(fields, key=lambda field: any(name.startswith(f"{field}.") for name in fields))


def _fields_read(rule: Rule, scenario: Scenario) -> dict[str, None]:
    """Return the dotted names of the fields that a check reads, in this order."""
    scenario = scenario.model_copy()  # derives everything from fields
    paths: dict[int, str] = {}
    names: dict[str, None] = {}

    def find(section: Section, prefix: str) -> None:
        paths[id(section)] = prefix
        for field, value in vars(section).items():
            if isinstance(value, Section):
                find(value, f"{prefix}{name_in_files(type(section), field)}.")

    def read(section: Section, name: str) -> Any:
        if id(section) in paths and name in type(section).model_fields:
            names[paths[id(section)] + name_in_files(type(section), name)] = None
        return plain_read(section, name)

    find(scenario, "")
    plain_read: Any = Section.__getattribute__
    Section.__getattribute__ = read  # type: ignore[assignment, method-assign]
    try:
        rule.check(scenario)
    finally:
        Section.__getattribute__ = plain_read  # type: ignore[method-assign]
    return names


def _place(scenario: Scenario, fields: Sequence[str]) -> Location | None:
    """Return the place of the first overridden field, or else of the first written field."""
    positions = scenario.positions
    paths = [tuple(field.split(".")) for field in fields]
    written = [path for path in paths if path in positions.places]
    # Overrides come last, and only overrides have no line number.
    overridden = [path for path in written if positions.places[path].value.line is None]
    return positions.of_value((overridden or written or paths)[0])


def _in_words(changes: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """Yield the changes, omitting a repeated verb: write a: 8 or 4; b: 1f1b; remove c."""
    last = ""
    for field, values in changes.items():
        kept = [as_scalar(value) for value in values if value is not LEFT_OUT]
        verb = "write " if kept else "remove "
        what = f"{field}: {' or '.join(kept)}" if kept else field
        yield what if verb == last else verb + what
        last = verb


# --------------------------------------------------------------------------------------- values


def neighbours(
    scenario: Scenario, field: str, message: str, fields: Iterable[str]
) -> Iterator[object]:
    """Yield other values of a field by its type, the nearest first.

    Numbers are those of the message and of the other fields, their divisors and multiples.
    """
    info = _field_info(field)
    value = _value_of(scenario, field)
    if info is None:
        return
    can_be_removed = info.default is None or info.default_factory is not None
    if isinstance(value, Section) and not can_be_removed:
        return
    is_inner = "." in field
    if value is not None and info.default is None and is_inner:
        yield LEFT_OUT
    if isinstance(value, tuple):
        yield from ([*value[:place], *value[place + 1 :]] for place in range(len(value)))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    default = info.default if info.default_factory is None else None
    if is_number or (value is None and _takes_integers(info.annotation)):
        texts = [int(text) for text in _NUMBER.findall(message)]
        others = [_value_of(scenario, name) for name in fields]
        yield from _near_numbers(value, texts, others, [default, *(info.examples or ())])
    choices = [*_choices(info.annotation)]
    if field == "software.stack":
        choices = sorted(list_stacks(), key=lambda name: name not in _USUAL_STACKS)
    else:
        choices.sort(key=lambda choice: choice != default)
    for choice in choices:
        if choice is not None and choice != value:
            yield choice
    if value is None and not choices:
        yield from (each for each in info.examples or () if not isinstance(each, str))
    if is_inner and info.default_factory is not None:
        yield LEFT_OUT


def _near_numbers(
    value: float | None, texts: Sequence[int], others: Iterable[object], usual: Iterable[object]
) -> list[int]:
    center = 1 if value is None else int(value)
    near = {*texts, center + 1, center - 1, 1, *_counts(usual)}
    for number in {*texts, *_counts(others)}:
        if 0 < number <= _LARGEST_DIVIDED:
            near |= {number, *islice(near_multiples(center, number), 3)}
            near |= {*islice(near_divisors(center, number), 3)}
    most = max([_FARTHEST * max(center, 1), *texts])
    legal = [number for number in near if 0 <= number <= most and number != value]
    return sorted(legal, key=lambda number: (abs(number - center), number))


def _counts(values: Iterable[object]) -> list[int]:
    return [value for value in values if isinstance(value, int) and not isinstance(value, bool)]


def _value_of(scenario: Scenario, field: str) -> Any:
    value: Any = scenario
    for name in python_path(field).split("."):
        value = None if value is None else getattr(value, name)
    return value


@functools.cache
def _field_info(field: str) -> FieldInfo | None:
    section: Any = Scenario
    *path, name = python_path(field).split(".")
    for part in path:
        section = section_of(section, part)
    info: FieldInfo | None = section.model_fields.get(name)
    return info


def _choices(annotation: Any) -> Iterator[object]:
    """Yield the values of a type that has few: words, booleans and null."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif annotation is bool:
        yield from (False, True)
    elif annotation is type(None):
        yield None
    elif get_origin(annotation) not in (tuple, list, dict):
        for inner in get_args(annotation):
            yield from _choices(inner)


def _takes_integers(annotation: Any) -> bool:
    return annotation is int or any(map(_takes_integers, get_args(annotation)))
