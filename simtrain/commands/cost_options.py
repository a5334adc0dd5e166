"""The options of `simtrain cost` and `simtrain plan`: tokens, prices and power of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simtrain.commands.shared import refuse
from simtrain.studies.rental_contracts import Contract

if TYPE_CHECKING:
    from simtrain.studies.cost import Terms

TokensOption = Annotated[
    str, typer.Option("--tokens", help="Number of training tokens: 300B, 1.5T, 450e9.")
]
GoodputOption = Annotated[
    float,
    typer.Option(
        "--goodput",
        help="Share of the training time spent in iterations, such as 0.9. Failures, checkpoints "
        "and evaluations take the rest, and interruptions of spot GPUs.",
    ),
]
PriceOption = Annotated[
    str | None,
    typer.Option("--price", help='Price per GPU, instead of the profile\'s: "2.5 USD/h".'),
]
ContractOption = Annotated[
    Contract | None,
    typer.Option("--contract", help="Which of the profile's prices counts. Default: on_demand."),
]
PueOption = Annotated[
    float,
    typer.Option(
        "--pue",
        help="Energy of the site over that of its nodes (power usage effectiveness): 1.2. The "
        "default of 1 leaves out cooling and power conversion.",
    ),
]
ElectricityOption = Annotated[
    str | None, typer.Option("--electricity", help='Price of electricity: "0.12 USD/kWh".')
]
Co2Option = Annotated[
    float | None,
    typer.Option("--co2", help="Emissions of electricity, in grams of CO2 per kWh: 380."),
]


def read_terms(
    tokens: str,
    goodput: float,
    price: str | None,
    contract: Contract | None,
    pue: float,
    electricity: str | None,
    co2: float | None,
) -> Terms:
    """Read the values of these options.

    Raises:
        InputError: one of them is invalid, or a contract and a price are both given (E908).
    """
    from simtrain.studies.cost import Terms

    if price is not None:
        refuse({"--contract": contract}, "has no effect with --price", "remove it or --price")
    return Terms.read(
        tokens,
        goodput=goodput,
        price=price,
        contract=contract or "on_demand",
        pue=pue,
        electricity=electricity,
        co2=co2,
    )
