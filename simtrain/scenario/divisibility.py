"""Rules of the kind "some numbers divide another one": one row each, as in `requirement`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from simtrain.scenario.allowed_values import Values
from simtrain.scenario.nearest import near_divisors, near_multiples
from simtrain.scenario.requirement import (
    MISSING,
    Given,
    sentence_of,
    steps_near,
    value_getter,
    where,
)
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Check, Violation, values_to_try


@dataclass(frozen=True)
class Divides:
    """A rule of the framework: a number, or the product of several, divides another number.

    The number of a section that is left out is divided by all. A divisor of null is
    parallelism.tensor.

    Args:
        code: the error code.
        divisor: a field, or the factors of a product: fields and numbers.
        number: the field with the number to divide.
        why: the reason, as a clause without a full stop.
        example: lines of YAML that break this rule, and no other, in a legal scenario.
        given: the scenarios to which the rule applies; all by default.
        number_first: true blames and changes the number first, false the divisor.
        near: values to try for further fields, or instead of the nearest multiples of the divisor
            and the nearest divisors of the number; there are none of the latter for a product.
    """

    code: str
    divisor: str | tuple[str | int, ...]
    number: str
    why: str
    example: str
    given: Given | None = None
    number_first: bool = True
    near: Mapping[str, Values] = field(default_factory=dict)

    @functools.cached_property
    def factors(self) -> tuple[str | int, ...]:
        """The factors of the divisor."""
        return (self.divisor,) if isinstance(self.divisor, str) else self.divisor

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields to blame, the first one first."""
        names = [factor for factor in self.factors if isinstance(factor, str)]
        return (self.number, *names) if self.number_first else (*names, self.number)

    @property
    def reason(self) -> str:
        """Why the rule exists."""
        return self.why

    @property
    def what(self) -> str:
        """What is wrong, without the values of a scenario."""
        if self.number_first:
            return f"{where(self.given)}{self.number} is not a multiple of {self._product}."
        return f"{where(self.given)}{self._product} does not divide {self.number}."

    @property
    def fix(self) -> str:
        """How to fix it, without the values of a scenario."""
        way = f"{self.number} to a multiple of {self._product}"
        if not self.number_first:
            way = f"{self._product} to a divisor of {self.number}"
        others = {name: values for name, values in self.near.items() if name not in self.fields}
        return sentence_of([{"set": [way]}, *steps_near(others)])

    @functools.cached_property
    def check(self) -> Check:
        """The function that returns the violation by a scenario, or None."""
        number_of, applies = value_getter(self.number), self.given.holds if self.given else None
        readers = [value_getter(each) for each in self.factors if isinstance(each, str)]
        constant = prod(each for each in self.factors if isinstance(each, int))

        def violation_of(scenario: Scenario) -> Violation | None:
            """Return the violation if the product of the factors does not divide the number."""
            number = number_of(scenario)
            if number is MISSING or (applies is not None and not applies(scenario)):
                return None
            sizes = [read(scenario) or scenario.parallelism.tensor for read in readers]
            divisor = constant * prod(sizes)
            return self._violation(scenario, number, sizes, divisor) if number % divisor else None

        return violation_of

    @property
    def _product(self) -> str:
        """The divisor in words: "parallelism.tensor x context"; later fields of a section short."""
        words: list[str] = []
        section = ""
        for factor in map(str, self.factors):
            inner = factor.removeprefix(f"{section}.") if section else factor
            section = factor.rpartition(".")[0] or section
            words.append(inner)
        return " x ".join(words)

    def _violation(
        self, scenario: Scenario, number: int, sizes: list[int], divisor: int
    ) -> Violation:
        """Return the violation, with the values of the scenario."""
        if len(self.factors) == 1:
            near = {
                self.number: near_multiples(number, divisor),
                self.fields[self.number_first]: near_divisors(divisor, number),
            }
            message = (
                f"{self.number} is {number}, which {self._product} ({divisor}) does not divide"
            )
        else:
            near = {self.number: near_multiples(number, divisor)}
            factors = iter(sizes)
            values = [each if isinstance(each, int) else next(factors) for each in self.factors]
            product = f"{' x '.join(map(str, values))} = {divisor}"
            message = f"{self.number} is {number}, not a multiple of {self._product} ({product})"
        if not self.number_first:
            near = dict(reversed(near.items()))
            message = (
                f"{self._product} is {divisor}, which does not divide {self.number} ({number})"
            )
        return Violation(message, {**near, **values_to_try(self.near, scenario)}, self.fields)
