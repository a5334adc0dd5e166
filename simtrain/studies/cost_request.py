"""What a cost of a training is asked for. Help of commands reads it: it imports nothing slow."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario

Contract = Literal["on_demand", "reserved", "spot"]
"""A way of renting GPUs."""
CONTRACTS: tuple[Contract, ...] = get_args(Contract)


@dataclass(frozen=True, slots=True)
class CostRequest:
    """A training with the iterations of a scenario.

    Args:
        scenario: a scenario, or a result of `simulate`.
        tokens: number of training tokens: 300B, 1.5T, 450e9.
        goodput: share of the training time spent in iterations, such as 0.9. Failures, checkpoints
            and evaluations take the rest, and interruptions of spot GPUs. auto draws it, as
            `simtrain goodput` does.
        price: price per GPU, instead of the profile's: "2.5 USD/h".
        contract: which of the profile's prices counts. Default: on_demand.
        pue: energy of the site over that of its nodes (power usage effectiveness): 1.2. The
            default of 1 leaves out cooling and power conversion.
        electricity: price of electricity: "0.12 USD/kWh".
        co2: emissions of electricity, in grams of CO2 per kWh: 380.
    """

    scenario: Scenario | Result
    tokens: int | str
    _: KW_ONLY
    goodput: float | Literal["auto"] = 1.0
    price: str | None = None
    contract: Contract | None = None
    pue: float = 1.0
    electricity: str | None = None
    co2: float | None = None
