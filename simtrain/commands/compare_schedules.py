"""`simtrain compare SCENARIO --schedules`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.commands.output import Output, show
from simtrain.commands.printing import status
from simtrain.commands.question import Question

if TYPE_CHECKING:
    from simtrain.studies.schedule_comparison import ScheduleComparison


def compare_schedules(question: Question, out: Path | None, output: Output) -> None:
    """Simulate every schedule that a pipeline allows: time, bubble, peak memory, and its order.

    Layers, stages and microbatches stay as they are. A schedule keeps the number of chunks per
    stage if it can; otherwise it has the smallest that it allows. Schedules that the scenario
    cannot have are listed with the reason.
    """
    from simtrain.studies.schedule_comparison import compare_schedules as compare
    from simtrain.views.schedules import schedules_view

    if out:
        _check_picture(out)
    scenario, name = question.load(), question.scenario
    with status("simulating schedules") as show_status:
        comparison = compare(scenario, show_status)
    show(
        output,
        comparison,
        lambda: schedules_view(comparison, name, out, draws=not (output.format == "md" or out)),
        scenario.cluster,
    )
    if out:
        words = ["simtrain", "compare", "--schedules", *question.words]
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
    from simtrain.render.figures.iteration import plot_schedules
    from simtrain.render.figures.style import footer_of_result, write_picture

    results = {trial.name: trial.result for trial in comparison.trials}
    footer = footer_of_result(results[comparison.schedule])
    write_picture(plot_schedules(results), out, footer)
