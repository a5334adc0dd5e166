"""`simtrain memory`."""

from __future__ import annotations

from functools import partial

import typer

from simtrain.commands.shared import (
    JsonOption,
    OutOption,
    ScenarioArgument,
    SetOption,
    show,
    status,
)

DOES_NOT_FIT = 3


def memory(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Show peak memory per pipeline stage by component; exits with 3 if it does not fit.

    Example: simtrain memory table5_530b_present --set recompute=full --out pictures
    """
    from simtrain.figures.iteration_memory import write_memory_figure
    from simtrain.output_folder import make_picture_folder
    from simtrain.pages.memory_page import memory_page
    from simtrain.scenario import load_scenario
    from simtrain.simulation import simulate

    loaded = load_scenario(scenario, overrides or ())
    if out:
        make_picture_folder(out)
    with status(f"simulating {loaded.name}"):
        result = simulate(loaded)
        if out:
            write_memory_figure(result, out)
    page = partial(memory_page, result.memory)
    show(as_json, result.memory.to_json, page, loaded.cluster)
    if not result.memory.fits:
        raise typer.Exit(DOES_NOT_FIT)
