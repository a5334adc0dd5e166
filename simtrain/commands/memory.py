"""`simtrain memory`."""

from __future__ import annotations

from functools import partial

from simtrain.commands.shared import (
    JsonOption,
    OutOption,
    ScenarioArgument,
    SetOption,
    show,
    status,
)


def memory(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Print the peak memory of each pipeline stage by component.

    If the scenario does not fit, exits with 3 and names the cheapest change that makes it fit.

    Example: simtrain memory table5_530b_present --set recompute=full --out pictures
    """
    from simtrain.base.output_folder import make_picture_folder
    from simtrain.render.figures.iteration_memory import plot_memory
    from simtrain.render.figures.style import write_figure
    from simtrain.render.figures.subject import footer_of_result
    from simtrain.render.pages.memory_page import memory_page
    from simtrain.scenario import load_scenario
    from simtrain.studies.simulation import check_fits, simulate

    loaded = load_scenario(scenario, overrides or ())
    if out:
        make_picture_folder(out)
    with status(f"simulating {loaded.name}"):
        result = simulate(loaded)
        if out:
            write_figure(plot_memory(result), out / "memory", footer_of_result(result))
    page = partial(memory_page, result.memory)
    show(as_json, result.memory.to_json, page, loaded.cluster)
    if not result.memory.fits:
        with status("searching for a change that makes it fit") as show_status:
            check_fits(loaded, result.memory, show_status)
