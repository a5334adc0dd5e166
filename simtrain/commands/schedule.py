"""`simtrain schedule`: `show` (also without this word) and `compare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simtrain.commands.app import App
from simtrain.commands.output import Output, show, show_view
from simtrain.commands.printing import emit_data, status
from simtrain.commands.question import UnscaledQuestion, as_words

if TYPE_CHECKING:
    from simtrain.studies.schedule_comparison import ScheduleComparison

schedule_app = App(
    help="Print a pipeline schedule, or compare all of them. Without a command: show. "
    "Layouts and schedules together: simtrain search X --gpus N --vary schedule=1f1b,zbv.",
    default="show",
)


@schedule_app.command("show")
def print_schedule(
    question: UnscaledQuestion, *, as_csv: Annotated[bool, typer.Option("--csv")] = False
) -> None:
    """Print the pipeline schedule as a grid: a row per stage, a column per time slot.

    Args:
        as_csv: print all passes as CSV, in the format of PyTorch's pipelining.

    2F0 is the forward pass of microbatch 0 on virtual stage 2, 2B0 its backward pass. Every pass
    takes one slot. The grid is cut to the width of the terminal; --csv prints all passes. The word
    show may be left out.

    Example: simtrain schedule show table5_175b_present
    """
    from simtrain.views.schedule import schedule_view

    order = question.load().order.actions
    if as_csv:
        emit_data(order.to_csv())
    else:
        show_view(Output(), schedule_view(order))


@schedule_app.command("compare")
def compare(
    question: UnscaledQuestion,
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    output: Output,
) -> None:
    """Simulate every schedule that the pipeline allows: time, bubble, peak memory, and its order.

    Args:
        out: draw all timelines on one time axis: .html, .png, .svg or .pdf.

    Layers, stages and microbatches stay as they are. A schedule keeps the number of chunks per
    stage if it can; otherwise it has the smallest that it allows. Schedules that the scenario
    cannot have are listed with the reason. To vary schedules and layouts together: simtrain search
    X --gpus N --vary schedule=1f1b,zbv.

    Example: simtrain schedule compare llama3_70b --set batch.global=16 --out schedules.html
    """
    from simtrain.studies.schedule_comparison import compare_schedules
    from simtrain.views.schedules import schedules_view

    if out:
        _check_picture(out)
    scenario, name = question.load(), question.scenario
    with status("simulating schedules") as show_status:
        comparison = compare_schedules(scenario, show_status)
    show(
        output,
        comparison,
        lambda: schedules_view(comparison, name, out, draws=not (output.as_markdown or out)),
        scenario.cluster,
    )
    if out:
        words = ["simtrain", "schedule", "compare", name, *as_words("--set", question.overrides)]
        _draw(comparison, name, shlex.join(words), out)


def _check_picture(out: Path) -> None:
    """Check that a page or a picture can be written."""
    from simtrain.base.output_folder import check_suffix, check_writable
    from simtrain.render.figures.style import PICTURE_SUFFIXES, check_picture_file
    from simtrain.render.html.document import SUFFIXES

    check_suffix(out, (*SUFFIXES, *PICTURE_SUFFIXES), "pictures of schedules")
    if not out.name.lower().endswith(SUFFIXES):
        check_picture_file(out)
    check_writable(out, "the picture")


def _draw(comparison: ScheduleComparison, scenario: str, command: str, out: Path) -> None:
    """Write a page, or a picture, with the timelines of all schedules."""
    from simtrain.render.html.document import SUFFIXES, write_document

    if out.name.lower().endswith(SUFFIXES):
        from simtrain.render.html.pages import schedules_document

        write_document(schedules_document(comparison, scenario, command), out)
        return
    from simtrain.render.figures.schedules import plot_schedules
    from simtrain.render.figures.style import write_picture
    from simtrain.render.figures.subject import footer_of_result

    results = {trial.name: trial.result for trial in comparison.trials}
    footer = footer_of_result(results[comparison.schedule])
    write_picture(plot_schedules(results), out, footer)
