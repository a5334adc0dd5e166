"""`simtrain cost`."""

from __future__ import annotations

from typing import Annotated

import typer

from simtrain.commands.shared import (
    AllowOomOption,
    JsonOption,
    ScenarioArgument,
    SetOption,
    show,
    simulated,
)
from simtrain.errors import InputError, Location, Problem


def cost(
    scenario: ScenarioArgument,
    tokens: Annotated[str, typer.Option("--tokens", help="Tokens to train on: 300B, 1.5T, 450e9.")],
    overrides: SetOption = None,
    as_json: JsonOption = False,
    allow_oom: AllowOomOption = False,
) -> None:
    """Estimate days, GPU-hours, price and energy of a training run.

    Price and power come from the hardware profile, each with its source; a figure that the profile
    lacks is named and left out.

    Example: simtrain cost table5_175b_present --tokens 300B
    """
    from simtrain.cost import training_cost
    from simtrain.pages.cost_page import cost_page
    from simtrain.scenario import load_scenario
    from simtrain.units import UnitError, parse_tokens

    try:
        num_tokens = parse_tokens(tokens)
    except UnitError as error:
        problem = Problem("E841", str(error), Location("--tokens"), fix=error.fix)
        raise InputError([problem]) from error
    result = simulated(load_scenario(scenario, overrides or ()), allow_oom)
    found = training_cost(result.scenario, result.profile, result.iteration_time_s, num_tokens)
    show(as_json, found.to_json, lambda: cost_page(found), result.scenario.cluster)
