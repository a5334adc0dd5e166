"""`simtrain run`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from simtrain.commands.shared import (
    AllowOomOption,
    JsonOption,
    ScenarioArgument,
    SetOption,
    show,
    simulated,
)


def run(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    allow_oom: AllowOomOption = False,
    engine: Annotated[
        Literal["auto", "simpy", "compiled"],
        typer.Option("--engine", help="What runs it; all find the same to the last bit."),
    ] = "auto",
) -> None:
    """Simulate one iteration: where its time goes, and what it needs of each GPU's memory.

    What does not fit ends with exit code 3 and the cheapest change that makes it fit.

    Example: simtrain run table5_175b_present --set parallelism.interleave=1
    """
    from simtrain.pages.result_page import result_page
    from simtrain.scenario import load_scenario

    result = simulated(load_scenario(scenario, overrides or ()), allow_oom, engine)
    show(as_json, result.to_dict, lambda: result_page(result))
