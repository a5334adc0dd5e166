"""`simtrain cost`, and the options that it shares with `simtrain plan`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simtrain.commands.declare import Fields, Written
from simtrain.commands.options import AllowOomOption
from simtrain.commands.output import Output, show
from simtrain.commands.question import Question, simulate_with_status
from simtrain.studies.training_requests import CostRequest


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
        "tokens goodput price pue co2",
        {"goodput": Annotated[float | str, typer.Option(metavar="SHARE"), Written(_goodput)]},
    ),
]


def cost(
    terms: TermsFields, question: Question, output: Output, allow_oom: AllowOomOption = False
) -> None:
    """Estimate days, GPU-hours, price and energy of a training run.

    Prices and power come from the hardware profile, with their sources, unless --price replaces the
    price. A figure that the profile lacks is listed as missing. --pue and --co2 add
    what the energy of the site takes and emits.

    Example: simtrain cost table5_175b_present --tokens 300B --goodput 0.9
    """
    from simtrain.studies.cost import Terms, cost_of_result
    from simtrain.views.cost import cost_view

    scenario = question.load()
    training = Terms.read(CostRequest(scenario, **terms))
    result = cost_of_result(simulate_with_status(scenario, allow_oom), training)
    is_table = output.as_csv or output.as_markdown
    show(output, result, lambda: cost_view(result, is_table=is_table), scenario.cluster)
