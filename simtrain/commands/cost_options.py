"""The options of `simtrain cost` and `simtrain plan`: tokens, prices and power of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simtrain.base.request import descriptions_of
from simtrain.commands.declare import Fields, as_help
from simtrain.commands.options import refuse
from simtrain.studies.cost_request import Contract, CostRequest

if TYPE_CHECKING:
    from simtrain.studies.cost import Terms

TermsFields = Annotated[
    dict[str, Any],
    Fields(CostRequest, "tokens goodput price contract pue electricity co2"),
]
"""The fields of a request that `read_terms` reads."""

# An option each, for `simtrain plan`.
_HELP = {name: as_help(text) for name, text in descriptions_of(CostRequest).items()}
TokensOption = Annotated[str, typer.Option("--tokens", help=_HELP["tokens"])]
GoodputOption = Annotated[float, typer.Option("--goodput", help=_HELP["goodput"])]
PriceOption = Annotated[str | None, typer.Option("--price", help=_HELP["price"])]
ContractOption = Annotated[Contract | None, typer.Option("--contract", help=_HELP["contract"])]
PueOption = Annotated[float, typer.Option("--pue", help=_HELP["pue"])]
ElectricityOption = Annotated[str | None, typer.Option("--electricity", help=_HELP["electricity"])]
Co2Option = Annotated[float | None, typer.Option("--co2", help=_HELP["co2"])]


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
        contract=contract,
        pue=pue,
        electricity=electricity,
        co2=co2,
    )
