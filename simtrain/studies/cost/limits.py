"""Texts of tokens, prices and budgets, and the limits of a plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import TypeVar

from simtrain.errors import InputError, Location
from simtrain.units import (
    DAY_S,
    EnergyPrice,
    Price,
    UnitError,
    parse_energy_price,
    parse_money,
    parse_price,
    parse_tokens,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount of money.

    Args:
        amount: in the currency.
        currency: None means the currency of the prices.
    """

    amount: float
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class CostLimits:
    """Maximum days and price of a training run; None means no limit.

    Args:
        days: most days of training.
        budget: most money.

    Raises:
        InputError: `days` is not finite and positive (E849).
    """

    days: float | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        """Check the number of days."""
        days = self.days
        if days is not None and not (isinstance(days, Real) and 0 < days < math.inf):
            fix = "write a finite number above 0, such as 30"
            message = f"{days:g} days" if isinstance(days, Real) else f"days is {days!r}"
            raise InputError.of("E849", message, Location("--days"), fix)

    @classmethod
    def read(cls, days: float | None, budget: str | None) -> CostLimits:
        """Parse the text of a budget, such as "2M USD".

        Raises:
            InputError: the days or the budget are invalid.
        """
        return cls(days, None if budget is None else read_budget(budget))

    @property
    def time_s(self) -> float | None:
        """Maximum training time, in seconds."""
        return None if self.days is None else self.days * DAY_S


def read_budget(written: str) -> Budget:
    """Parse a budget such as "2M" or "2M USD"; another text is an InputError (E844)."""
    return Budget(*_read(parse_money, written, "E844", "--budget"))


def read_price(written: str) -> Price:
    """Parse a price per GPU such as "2.5 USD/h"; another text is an InputError (E848)."""
    return _read(parse_price, written, "E848", "--price")


def read_electricity(written: str) -> EnergyPrice:
    """Parse a price of electricity such as "0.12 USD/kWh"; another text is an InputError (E848)."""
    return _read(parse_energy_price, written, "E848", "--electricity")


def read_tokens(written: str) -> int:
    """Parse a number of tokens such as "300B"; another text is an InputError (E841)."""
    return _read(parse_tokens, written, "E841", "--tokens")


def _read(parse: Callable[[str], T], written: str, code: str, option: str) -> T:
    try:
        return parse(written)
    except UnitError as error:
        raise InputError.of(code, str(error), Location(option), error.fix) from error
