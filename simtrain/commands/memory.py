"""`simtrain memory`."""

from __future__ import annotations

import sys
from functools import partial

import typer

from simtrain.commands.options import OutOption
from simtrain.commands.output import Output, show
from simtrain.commands.printing import emit, status
from simtrain.commands.question import Question
from simtrain.errors import DoesNotFitError


def memory(question: Question, output: Output, out: OutOption = None) -> None:
    """Print the peak memory of each pipeline stage by component.

    If the scenario does not fit, exits with 3 and names the cheapest change that makes it fit.

    Example: simtrain memory table5_530b_present --set recompute=full --out pictures
    """
    from simtrain.base.output_folder import make_picture_folder
    from simtrain.render.figures.iteration_memory import plot_memory
    from simtrain.render.figures.style import write_figure
    from simtrain.render.figures.subject import footer_of_result
    from simtrain.studies.simulation import check_fits, simulate
    from simtrain.views.memory import memory_view

    scenario = question.load()
    if out:
        make_picture_folder(out)
    with status(f"simulating {scenario.name}"):
        result = simulate(scenario)
        if out:
            write_figure(plot_memory(result), out / "memory", footer_of_result(result))
    show(output, result.memory_report, partial(memory_view, result.memory), scenario.cluster)
    if not result.memory.fits:
        with status("searching for a change that makes it fit") as show_status:
            try:
                check_fits(scenario, result.memory, result.seconds.machine, show_status)
            except DoesNotFitError as error:
                # The result is printed already: the error follows it on stderr alone.
                emit(f"{error}\n", sys.stderr)
                raise typer.Exit(error.exit_code) from None
