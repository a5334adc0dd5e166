"""`simtrain compare SCENARIO --schedules`."""

from __future__ import annotations

import shlex
from pathlib import Path

from simtrain.commands.output import Output, page_of, show
from simtrain.commands.printing import status
from simtrain.commands.question import Question


def compare_schedules(question: Question, out: Path | None, output: Output) -> None:
    """Simulate every schedule that a pipeline allows: time, bubble, peak memory, and its order.

    Layers, stages and microbatches stay as they are. A schedule keeps the number of chunks per
    stage if it can; otherwise it has the smallest that it allows. Schedules that the scenario
    cannot have are listed with the reason.
    """
    from simtrain.render.html.document import check_html_file, write_document
    from simtrain.render.html.pages import schedules_document
    from simtrain.studies.schedule_comparison import compare_schedules as compare
    from simtrain.views.schedules import schedules_view

    if out:
        check_html_file(out)
        page_of(out)
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
        write_document(schedules_document(comparison, name, shlex.join(words)), out)
