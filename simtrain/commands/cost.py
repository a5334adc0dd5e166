"""`simtrain cost`, and the options that it shares with `simtrain plan`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simtrain.commands.declare import Fields, Written
from simtrain.commands.options import AllowOomOption
from simtrain.commands.output import Output, show
from simtrain.commands.question import Questions, simulate_with_status
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
    terms: TermsFields, questions: Questions, output: Output, allow_oom: AllowOomOption = False
) -> None:
    """Estimate days, GPU-hours, price and energy of a training run.

    Several scenarios are compared in columns; --set applies to all of them.

    Prices and power come from the hardware profile, with their sources, unless --price replaces the
    price. A figure that the profile lacks is listed as missing. --pue and --co2 add
    what the energy of the site takes and emits.

    Example: simtrain cost table5_175b_present --tokens 300B --goodput 0.9
    """
    from simtrain.studies.cost import Terms, TrainingCosts, cost_of_result
    from simtrain.views.cost import cost_view

    scenarios = questions.load()
    training = Terms.read(CostRequest(scenarios[0], **terms))
    results = [simulate_with_status(scenario, allow_oom) for scenario in scenarios]
    costs = [cost_of_result(result, training) for result in results]
    clusters = [result.scenario.cluster for result in results]
    if len(costs) == 1:
        is_table = output.as_csv or output.as_markdown
        show(output, costs[0], lambda: cost_view(costs, is_table=is_table), clusters[0])
    else:
        several = TrainingCosts(training.num_tokens, training.goodput, costs)
        show(output, several, lambda: cost_view(costs, is_table=True), clusters)
