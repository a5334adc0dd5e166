"""Rules of the framework: a code, why, an example, and a function that returns what is wrong.

Functions make the checks of the most frequent kinds: a setting needs values of other fields
(`requires`), is off while a condition holds (`excludes`), numbers divide another one (`divides`), a
number is at most another one (`at_most`), or a combination is refused (`against`). What to write
instead is found, not written (`simtrain.scenario.remedies`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any, Final

from pydantic import BaseModel

from simtrain.base.strict_yaml import as_scalar
from simtrain.base.values import dataclass, fields
from simtrain.scenario.schema import STACK_DEFAULTS, Scenario
from simtrain.scenario.section import Section, name_in_files, section_of
from simtrain.scenario.software import DEFAULT_FACTS, Kernels

Check = Callable[[Scenario], str | None]
"""A function that returns what is wrong with a scenario, or None."""
Condition = Callable[[Scenario], object]
Fields = str | tuple[str, ...]
MISSING: Final = object()
"""The value of a field whose section is left out."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the framework.

    Args:
        code: the error code.
        why: the reason, as a clause without a full stop.
        example: lines of YAML that break this rule, and no other, in a legal scenario; or a
            sentence.
        check: returns what is wrong with a scenario, or None. The message begins with the field at
            fault and its value.
        first: the fields that people would rather change than those that the message names first.
        hint: what to change, in words, where no value of a single field is enough.
    """

    code: str
    why: str
    example: str
    check: Check
    first: tuple[str, ...] = ()
    hint: str = ""


class Rules(list[Rule]):
    """A list of rules that functions with a decorator join."""

    def rule(
        self, code: str, why: str, example: str, *, first: tuple[str, ...] = (), hint: str = ""
    ) -> Callable[[Check], Check]:
        def add(check: Check) -> Check:
            self.append(Rule(code, why, example, check, first, hint))
            return check

        return add


# ---------------------------------------------------------------------------------------- kinds


def requires(
    code: str,
    setting: Fields,
    needs: Mapping[str, object],
    why: str,
    example: str,
    off: object = MISSING,
    where: Condition | None = None,
    first: tuple[str, ...] = (),
) -> Rule:
    """Return the rule that a setting that is on needs values of other fields.

    A setting of a section that is left out is off; a needed field of such a section is null.

    Args:
        code, why, example, first: as in `Rule`.
        setting: the field, or several of which any one needs the others.
        needs: the values that other fields must have, all of them: a value, a tuple of values, or a
            function that is true for them.
        off: the values of the setting that need nothing, likewise; its default, unless where.
        where: the scenarios to which the rule applies; all by default.
    """
    settings = _settings(setting, off)
    needed = [(name, value_getter(name), _predicate(values)) for name, values in needs.items()]

    def check(scenario: Scenario) -> str | None:
        if not _any_is_on(settings, scenario):
            return None
        for _, value_of, is_allowed in needed:
            if not is_allowed(_null_if_missing(value_of(scenario))):
                break
        else:
            return None
        if where is not None and not where(scenario):
            return None
        values = ((name, _null_if_missing(of(scenario)), allowed) for name, of, allowed in needed)
        broken = [f"{name} is {shown(value)}" for name, value, has in values if not has(value)]
        return f"{_on_in_words(settings, scenario)} while {listed(broken, 'and')}"

    return Rule(code, why, example, check, first)


def excludes(
    code: str,
    setting: Fields,
    words: str,
    holds: Condition,
    why: str,
    example: str,
    off: object = MISSING,
    reads: tuple[str, ...] = (),
    first: tuple[str, ...] = (),
) -> Rule:
    """Return the rule that a setting must be off while a condition holds.

    As `requires`, for what is no set of values of a field: a trait of the schedule, a fact of the
    software stack, or what several fields decide together.

    Args:
        code, why, example, first: as in `Rule`.
        setting, off: as in `requires`.
        words: the condition, as a clause such as "no passes are merged".
        holds: the condition.
        reads: the fields that decide the condition, which an error shows with their values.
    """
    settings = _settings(setting, off)

    def check(scenario: Scenario) -> str | None:
        if not _any_is_on(settings, scenario) or not holds(scenario):
            return None
        values = ((name, value_getter(name)(scenario)) for name in reads)
        read = [f"{name} is {shown(value)}" for name, value in values if value is not MISSING]
        more = f" ({listed(read, 'and')})" if read else ""
        return f"{_on_in_words(settings, scenario)} while {words}{more}"

    return Rule(code, why, example, check, first)


def divides(
    code: str,
    divisor: str | tuple[str | int, ...],
    number: str,
    why: str,
    example: str,
    where: Condition | None = None,
    number_first: bool = True,
) -> Rule:
    """Return the rule that a number, or the product of several, divides another number.

    The number of a section that is left out is divided by all. A divisor of null is
    parallelism.tensor.

    Args:
        code, why, example: as in `Rule`.
        divisor: a field, or the factors of a product: fields and numbers.
        number: the field with the number to divide.
        where: the scenarios to which the rule applies; all by default.
        number_first: true blames the number, false the divisor.
    """
    factors = (divisor,) if isinstance(divisor, str) else divisor
    number_of = value_getter(number)
    readers = [value_getter(each) if isinstance(each, str) else None for each in factors]
    words = " x ".join(_shortened(map(str, factors)))

    def check(scenario: Scenario) -> str | None:
        whole = number_of(scenario)
        if whole is MISSING or (where is not None and not where(scenario)):
            return None
        sizes: list[Any] = [
            (read(scenario) or scenario.parallelism.tensor) if read else factor
            for read, factor in zip(readers, factors, strict=True)
        ]
        part = prod(sizes)
        if whole % part == 0:
            return None
        if not number_first:
            return f"{words} is {part}, which does not divide {number} ({whole})"
        if len(sizes) == 1:
            return f"{number} is {whole}, which {words} ({part}) does not divide"
        product = f"{' x '.join(map(str, sizes))} = {part}"
        return f"{number} is {whole}, not a multiple of {words} ({product})"

    return Rule(code, why, example, check)


def at_most(
    code: str,
    number: Fields,
    limit: str,
    limit_of: Callable[[Scenario], float | None],
    why: str,
    example: str,
    where: Condition | None = None,
) -> Rule:
    """Return the rule that a number is at most another one.

    A field that is null, 0, a word, or in a section that is left out, has no number.

    Args:
        code, why, example: as in `Rule`.
        number: the field, or several; the first with a larger number is blamed.
        limit: the largest legal number in words: a field, or "the layers of the largest chunk".
        limit_of: the largest legal number, or None if other rules refuse the scenario.
        where: the scenarios to which the rule applies; all by default.
    """
    names = (number,) if isinstance(number, str) else number
    readers = [(name, value_getter(name)) for name in names]

    def check(scenario: Scenario) -> str | None:
        values = [(name, read(scenario)) for name, read in readers]
        numbers = [each for each in values if each[1] and isinstance(each[1], (int, float))]
        if not numbers or (where is not None and not where(scenario)):
            return None
        most = limit_of(scenario)
        for name, value in numbers:
            if most is not None and value > most:
                return f"{name} is {value}, more than {limit} ({most})"
        return None

    return Rule(code, why, example, check)


def against(
    code: str,
    is_broken: Condition,
    message: str,
    why: str,
    example: str,
    first: tuple[str, ...] = (),
    hint: str = "",
) -> Rule:
    """Return the rule that refuses a combination of settings.

    Args:
        code, why, example, first, hint: as in `Rule`.
        is_broken: true for a scenario with the refused combination.
        message: what is wrong, with {scenario} for the scenario.
    """

    def check(scenario: Scenario) -> str | None:
        return message.format(scenario=scenario) if is_broken(scenario) else None

    return Rule(code, why, example, check, first, hint)


def without_section(
    code: str, setting: str, section: str, why: str, example: str, off: object = MISSING
) -> Rule:
    """Return the rule that a setting is off on a cluster whose profile lacks a section.

    It is checked only for such clusters.
    """
    settings = _settings(setting, off)

    def check(scenario: Scenario) -> str | None:
        if not _any_is_on(settings, scenario):
            return None
        on = _on_in_words(settings, scenario)
        return f"{on} while cluster is {scenario.cluster}, whose profile has no section {section}"

    return Rule(code, why, example, check)


# --------------------------------------------------------------------------------------- values


def any_but(*values: object) -> Callable[[object], bool]:
    """Return the set of all values but these."""
    return lambda value: value not in values


def at_least(least: int) -> Callable[[object], bool]:
    """Return the set of numbers from `least` on."""
    return lambda value: isinstance(value, int) and value >= least


def is_set(value: object) -> bool:
    """Whether a field or a section that can be left out is there."""
    return value is not None


def _predicate(values: Any, *more: object) -> Callable[[object], bool]:
    if callable(values):
        return values  # type: ignore[no-any-return]
    allowed = (*values, *more) if isinstance(values, tuple) else (values, *more)
    return allowed.__contains__  # in C: searches check rules millions of times


_Setting = tuple[str, Callable[[Scenario], Any], Callable[[object], bool]]
"""The name of a setting, its value in a scenario, and whether a value or none is off."""


def _settings(setting: Fields, off: object) -> list[_Setting]:
    names = (setting,) if isinstance(setting, str) else setting
    values = {name: (_off_by_default(name),) if off is MISSING else off for name in names}
    items = values.items()
    return [(name, value_getter(name), _predicate(value, MISSING)) for name, value in items]


def _any_is_on(settings: Iterable[_Setting], scenario: Scenario) -> bool:
    for _, value_of, is_off in settings:  # noqa: SIM110 (`any` takes twice as long)
        if not is_off(value_of(scenario)):
            return True
    return False


def _on_in_words(settings: Iterable[_Setting], scenario: Scenario) -> str:
    values = [(name, value_of(scenario), is_off) for name, value_of, is_off in settings]
    on = [f"{name} is {shown(value)}" for name, value, is_off in values if not is_off(value)]
    return listed(on, "and")


def _null_if_missing(value: object) -> object:
    return None if value is MISSING else value


def _shortened(names: Iterable[str]) -> Iterable[str]:
    """Yield names, later ones without the section of the name before: "a.b", "c"."""
    section = ""
    for name in names:
        yield name.removeprefix(f"{section}.") if section else name
        section = name.rpartition(".")[0] or section


def listed(texts: Sequence[str], last: str) -> str:
    """Return texts as a list with a word before the last one: "a", "a and b", "a, b and c"."""
    return f" {last} ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def are(names: Iterable[str]) -> str:
    """Return the subject and verb of a sentence: "a is", "a and b are"."""
    names = tuple(names)
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"


def shown(value: object) -> str:
    """Format a value in a message; a section is "set", and null "not set"."""
    if value is None:
        return "not set"
    return "set" if isinstance(value, Section) else as_scalar(value)


# --------------------------------------------------------------------------------------- fields


def _off_by_default(field: str) -> object:
    """Return the default of a field; of one that the software stack sets, what no stack sets."""
    default = default_of(field)
    if field not in STACK_DEFAULTS:
        return default
    return DEFAULT_FACTS.get(STACK_DEFAULTS[field].entry, default)


def default_of(field: str) -> object:
    """Return the default of a field of a scenario, by its dotted name."""
    section: Any = Scenario
    *path, name = python_path(field).split(".")
    for part in path:
        section = section_of(section, part)
    return section.model_fields[name].get_default(call_default_factory=True)


def python_path(field: str) -> str:
    """Return the attribute of a field, whose name in files may be a word of Python."""
    section: Any = Scenario
    *path, name = field.split(".")
    names = []
    for part in path:
        names.append(_python_name(section, part))
        section = section_of(section, names[-1])
    return ".".join([*names, _python_name(section, name)])


def _python_name(section: type[BaseModel], name: str) -> str:
    return next(inner for inner in section.model_fields if name_in_files(section, inner) == name)


@functools.cache
def value_getter(field: str) -> Callable[[Scenario], Any]:
    """Return a function that reads a field; what the software stack decides is resolved."""
    if field in STACK_DEFAULTS:
        return attrgetter(STACK_DEFAULTS[field].resolved)
    section, _, name = field.rpartition(".")
    if section == "software" and name != "stack":
        is_kernel = name in (kernel.name for kernel in fields(Kernels))
        return attrgetter(f"facts.kernels.{name}" if is_kernel else f"facts.{name}")
    if "." not in section:
        return attrgetter(python_path(field))
    section_in, of_section = attrgetter(section), attrgetter(name)

    def read(scenario: Scenario) -> object:
        """Return the value, or the marker of a section that is left out."""
        inner = section_in(scenario)
        return MISSING if inner is None else of_section(inner)

    return read
