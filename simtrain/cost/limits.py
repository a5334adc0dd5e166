"""Inputs of cost and plans: tokens, goodput, prices, and limits of days and budget."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from simtrain.cost.times import DAY_S
from simtrain.errors import InputError, Location
from simtrain.units import Price, UnitError, parse_money, parse_price, parse_tokens


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount of money; a `currency` of None means the currency of the prices."""

    amount: float
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum days and price of a training run; None means no limit.

    Raises:
        InputError: `days` is not finite and positive (E849).
    """

    days: float | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        """Check the number of days."""
        if self.days is not None and not 0 < self.days < math.inf:
            fix = "write a finite number above 0, such as 30"
            raise InputError.of("E849", f"{self.days:g} days", Location("--days"), fix)

    @property
    def time_s(self) -> float | None:
        """Maximum training time, in seconds."""
        return None if self.days is None else self.days * DAY_S

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"days": self.days, "budget": asdict(self.budget) if self.budget else None}


NO_LIMITS = Limits()


def read_budget(written: str) -> Budget:
    """Parse a budget such as "2M" or "2M USD".

    Raises:
        InputError: the text is not a positive amount of money (E844).
    """
    try:
        return Budget(*parse_money(written))
    except UnitError as error:
        raise InputError.of("E844", str(error), Location("--budget"), error.fix) from error


def read_price(written: str) -> Price:
    """Parse a price per GPU such as "2.5 USD/h".

    Raises:
        InputError: the text is not a positive price per hour (E848).
    """
    try:
        return parse_price(written)
    except UnitError as error:
        raise InputError.of("E848", str(error), Location("--price"), error.fix) from error


def read_tokens(written: str) -> int:
    """Read a number of tokens such as "300B".

    Raises:
        InputError: not a whole number of tokens above zero.
    """
    try:
        return parse_tokens(written)
    except UnitError as error:
        raise InputError.of("E841", str(error), Location("--tokens"), error.fix) from error


def check_goodput(goodput: float) -> None:
    """Refuse a share of the training time that is not above 0 and at most 1.

    Raises:
        InputError: with the range.
    """
    if not 0 < goodput <= 1:
        raise InputError.of(
            "E842",
            f"a goodput of {goodput:g}",
            Location("--goodput"),
            fix="write a number above 0 and at most 1, such as 0.9",
            reason="goodput is the share of the training time that iterations take",
        )
