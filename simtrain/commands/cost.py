"""`simtrain cost`."""

from __future__ import annotations

from typing import Annotated

import typer

from simtrain.commands.shared import (
    AllowOomOption,
    JsonOption,
    SetOption,
    shipped_scenarios,
    show,
    simulated,
)

TokensOption = Annotated[
    str, typer.Option("--tokens", help="Tokens to train on: 300B, 1.5T, 450e9.")
]
GoodputOption = Annotated[
    float,
    typer.Option(
        "--goodput",
        help="Share of the training time that iterations take, such as 0.9; failures, checkpoints "
        "and evaluations take the rest.",
    ),
]


def cost(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO...",
            help="Scenario files, or names of those that come with simtrain.",
            autocompletion=shipped_scenarios,
        ),
    ],
    tokens: TokensOption,
    goodput: GoodputOption = 1.0,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    allow_oom: AllowOomOption = False,
) -> None:
    """Estimate days, GPU-hours, price and energy of a training run.

    Several scenarios are compared, in a column each. --set applies to all of them.

    Price and power come from the hardware profile, each with its source; a figure that the profile
    lacks is named and left out.

    Example: simtrain cost table5_175b_present --tokens 300B --goodput 0.9
    """
    from simtrain.cost import read_tokens, training_cost
    from simtrain.cost.limits import check_goodput
    from simtrain.pages.cost_page import comparison_page, cost_page
    from simtrain.scenario import load_scenario

    num_tokens = read_tokens(tokens)
    check_goodput(goodput)
    loaded = [load_scenario(scenario, overrides or ()) for scenario in scenarios]
    results = [simulated(scenario, allow_oom) for scenario in loaded]
    costs = [
        training_cost(
            result.scenario, result.profile, result.iteration_time_s, num_tokens, goodput=goodput
        )
        for result in results
    ]
    clusters = [result.scenario.cluster for result in results]
    if len(costs) == 1:
        show(as_json, costs[0].to_json, lambda: cost_page(costs[0]), clusters[0])
    else:
        data = {"num_tokens": num_tokens, "goodput": goodput}
        show(
            as_json,
            lambda: data | {"costs": [one.to_json() for one in costs]},
            lambda: comparison_page(costs),
            clusters,
        )
