"""`simtrain schedule`."""

from __future__ import annotations

from typing import Annotated

import typer

from simtrain.commands.output import Output, show_view
from simtrain.commands.shared import ScenarioArgument, SetOption, emit_data


def schedule(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    as_csv: Annotated[
        bool,
        typer.Option(
            "--csv", help="Print all passes as CSV, in the format of PyTorch's pipelining."
        ),
    ] = False,
) -> None:
    """Print the pipeline schedule as a grid: a row per stage, a column per time slot.

    2F0 is the forward pass of microbatch 0 on virtual stage 2, 2B0 its backward pass. Every pass
    takes one slot. The grid is cut to the width of the terminal; --csv prints all passes.

    Example: simtrain schedule table5_175b_present
    """
    from simtrain.commands.loading import load_scenario
    from simtrain.schedules import schedule_of
    from simtrain.views.schedule import schedule_view

    loaded = load_scenario(scenario, overrides or ())
    split = loaded.parallelism
    sizes = split.pipeline, split.interleave, loaded.num_microbatches
    order = schedule_of(loaded.order, *sizes)
    if as_csv:
        emit_data(order.to_csv())
    else:
        show_view(Output(), schedule_view(order))
