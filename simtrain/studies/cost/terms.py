"""What a training run's cost is computed with, in addition to a simulated iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from simtrain.base.entry import Entry
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.hardware.profile import HardwareProfile, RunningCosts
from simtrain.studies.cost.limits import read_electricity, read_price, read_tokens
from simtrain.studies.cost_request import CONTRACTS, Contract, CostRequest
from simtrain.units import HOUR_S, EnergyPrice, Price

_PRICE_ENTRIES: dict[Contract, str] = {
    "on_demand": "price",
    "reserved": "reserved_price",
    "spot": "spot_price",
}
"""The entry of `running_costs` with the price of each contract."""
_GIVEN = "given for this estimate"
_TONNE_G = 1e6


@dataclass(frozen=True, slots=True)
class Terms:
    """Tokens, prices and power of a training run.

    Args:
        num_tokens: number of training tokens.
        goodput: share of the training time that iterations take, above 0 and at most 1; failures,
            checkpoints and evaluations take the rest. "auto" draws it for each training.
        contract: which of a profile's prices counts.
        price: price per GPU-hour, instead of each profile's.
        pue: energy of the site over that of its nodes (power usage effectiveness).
        electricity: price of the site's energy; None if it is not counted.
        co2_g_per_kwh: emissions of the site's energy, in grams; None if they are not counted.

    Raises:
        InputError: a goodput (E842), a contract, a PUE or emissions (E840) out of their range.
    """

    num_tokens: int
    goodput: float | Literal["auto"] = 1.0
    contract: Contract = "on_demand"
    price: Price | None = None
    pue: float = 1.0
    electricity: EnergyPrice | None = None
    co2_g_per_kwh: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        share = self.goodput
        if share != "auto" and not (isinstance(share, Real) and 0 < share <= 1):
            raise InputError.of(
                "E842",
                _words("goodput", self.goodput),
                Location("--goodput"),
                fix="write a number above 0 and at most 1, such as 0.9, or auto",
                reason="goodput is the share of the training time that iterations take",
            )
        if self.contract not in CONTRACTS:
            question = did_you_mean(str(self.contract), CONTRACTS)
            raise InputError.of(
                "E840",
                f'there is no contract "{self.contract}"',
                Location("--contract"),
                fix=f"{question}write {', '.join(CONTRACTS)}",
            )
        if not isinstance(self.pue, Real) or not 1 <= self.pue < math.inf:
            raise InputError.of(
                "E840",
                _words("PUE", self.pue),
                Location("--pue"),
                fix="write a number from 1 on, such as 1.2",
                reason="a site needs at least the energy of its nodes",
            )
        co2 = self.co2_g_per_kwh
        if co2 is not None and (not isinstance(co2, Real) or not 0 <= co2 < math.inf):
            raise InputError.of(
                "E840",
                _words("CO2 per kWh", co2),
                Location("--co2"),
                fix="write the grams of CO2 per kWh, such as 380",
            )

    @classmethod
    def read(cls, request: CostRequest) -> Terms:
        """Parse the texts of a command line or a call.

        Raises:
            InputError: one of them is invalid.
        """
        price, electricity = request.price, request.electricity
        return cls(
            read_tokens(str(request.tokens)),
            goodput=request.goodput,
            contract="on_demand" if request.contract is None else request.contract,
            price=None if price is None else read_price(price),
            pue=request.pue,
            electricity=None if electricity is None else read_electricity(electricity),
            co2_g_per_kwh=request.co2,
        )

    def price_of(self, profile: HardwareProfile) -> tuple[str, Entry[Price] | None]:
        """Return the name of the entry that has the price of a GPU-hour, and the entry."""
        if self.price is not None:
            return "price", Entry[Price](value=self.price, source=_GIVEN)
        name = _PRICE_ENTRIES[self.contract]
        return name, getattr(profile.running_costs or RunningCosts(), name)

    def electricity_cost(self, kwh: float | None) -> float | None:
        """Return the price of the site's energy; None if it is not counted or unknown."""
        return kwh * self.electricity.per_kwh if kwh and self.electricity else None

    def co2_t(self, kwh: float | None) -> float | None:
        """Return the emissions of the site's energy in tonnes; None if not counted or unknown."""
        if kwh is None or self.co2_g_per_kwh is None:
            return None
        return kwh * self.co2_g_per_kwh / _TONNE_G


def prices_by_contract(profile: HardwareProfile, gpu_s: float) -> dict[Contract, float]:
    """Return the price of GPU-seconds with each contract that a profile has a price of."""
    costs = profile.running_costs or RunningCosts()
    entries = {contract: getattr(costs, name) for contract, name in _PRICE_ENTRIES.items()}
    return {
        contract: entry.value.per_hour * gpu_s / HOUR_S
        for contract, entry in entries.items()
        if entry is not None
    }


def _words(name: str, value: object) -> str:
    return f"a {name} of {value:g}" if isinstance(value, Real) else f"{name} is {value!r}"
