"""`simtrain run`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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
        typer.Option("--engine", help="Execution engine; all give bit-identical results."),
    ] = "auto",
) -> None:
    """Simulate one iteration: its time, where the time goes, and the memory of each GPU.

    A scenario that does not fit exits with 3 and names the cheapest change that makes it fit.

    Example: simtrain run table5_175b_present --set parallelism.interleave=1
    """
    from simtrain.no_effect import settings_without_effect
    from simtrain.pages.result_page import result_page
    from simtrain.scenario import load_scenario

    loaded = load_scenario(scenario, overrides or ())
    result = simulated(loaded, allow_oom, engine)
    idle = settings_without_effect(loaded)

    def data() -> dict[str, Any]:
        return result.to_dict() | {"without_effect": idle}

    show(as_json, data, lambda: result_page(result, idle.values()), loaded.cluster)
