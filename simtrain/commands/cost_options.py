"""The options of `simtrain cost` and `simtrain plan`: tokens, prices and power of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simtrain.commands.declare import Fields, Written
from simtrain.commands.options import refuse
from simtrain.studies.cost_request import CostRequest

if TYPE_CHECKING:
    from simtrain.scenario import Scenario
    from simtrain.studies.cost import Terms


def _goodput(text: str, _: str) -> float | str:
    """Parse --goodput; `Terms` refuses what is neither a number nor auto."""
    try:
        return float(text)
    except ValueError:
        return text


TermsFields = Annotated[
    dict[str, Any],
    Fields(
        CostRequest,
        "tokens goodput price contract pue electricity co2",
        {"goodput": Annotated[float | str, typer.Option(metavar="SHARE"), Written(_goodput)]},
    ),
]
"""The fields of a request that `read_terms` reads."""


def read_terms(scenario: Scenario, fields: dict[str, Any]) -> Terms:
    """Read the values of these options, for a scenario.

    Raises:
        InputError: one of them is invalid, or a contract and a price are both given (E908).
    """
    from simtrain.studies.cost import Terms

    if fields["price"] is not None:
        contract = {"--contract": fields["contract"]}
        refuse(contract, "has no effect with --price", "remove it or --price")
    return Terms.read(CostRequest(scenario, **fields))
