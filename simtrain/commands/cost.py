"""`simtrain cost`."""

from __future__ import annotations

from typing import Annotated

import typer

from simtrain.commands.output import CsvOption, MarkdownOption, Output, TableOption, show
from simtrain.commands.shared import (
    AllowOomOption,
    JsonOption,
    SetOption,
    SeveralScenarios,
    simulate_with_status,
)

TokensOption = Annotated[
    str, typer.Option("--tokens", help="Number of training tokens: 300B, 1.5T, 450e9.")
]
GoodputOption = Annotated[
    float,
    typer.Option(
        "--goodput",
        help="Share of the training time spent in iterations, such as 0.9. Failures, checkpoints "
        "and evaluations take the rest.",
    ),
]


def cost(
    scenarios: Annotated[list[str], SeveralScenarios],
    tokens: TokensOption,
    goodput: GoodputOption = 1.0,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
    table: TableOption = None,
    allow_oom: AllowOomOption = False,
) -> None:
    """Estimate days, GPU-hours, price and energy of a training run.

    Several scenarios are compared in columns; --set applies to all of them.

    Price and power come from the hardware profile, with their sources. A figure that the profile
    lacks is listed as missing.

    Example: simtrain cost table5_175b_present --tokens 300B --goodput 0.9
    """
    from simtrain.scenario import load_scenario
    from simtrain.studies.cost import TrainingCosts, read_tokens, training_cost
    from simtrain.studies.cost.limits import check_goodput
    from simtrain.views.cost import cost_view

    output = Output(as_json, as_csv, as_markdown, table)
    num_tokens = read_tokens(tokens)
    check_goodput(goodput)
    loaded = [load_scenario(scenario, overrides or ()) for scenario in scenarios]
    results = [simulate_with_status(scenario, allow_oom) for scenario in loaded]
    costs = [
        training_cost(
            result.scenario,
            result.profile,
            result.iteration_time_s,
            num_tokens,
            extrapolated=result.extrapolated_compute,
            goodput=goodput,
        )
        for result in results
    ]
    clusters = [result.scenario.cluster for result in results]
    show(
        output,
        costs[0] if len(costs) == 1 else TrainingCosts(num_tokens, goodput, costs),
        lambda: cost_view(costs),
        clusters[0] if len(costs) == 1 else clusters,
    )
