"""`simtrain goodput`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from simtrain.commands.declare import Fields
from simtrain.commands.output import Output, page_of, show
from simtrain.commands.search import SearchQuestion
from simtrain.studies.training_requests import GoodputRequest

GoodputFields = Annotated[
    dict[str, Any],
    Fields(
        GoodputRequest,
        "tokens days gpus spares checkpoint interval recovery reliability draws seed",
    ),
]


def goodput(
    question: SearchQuestion,
    fields: GoodputFields,
    output: Output,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
) -> None:
    """Simulate a whole training with its failures: days, interruptions and lost hours.

    Args:
        out: page with one training over its days and all tables, .html; or picture of one training
            and of the lost hours: .png, .svg or .pdf.

    Nodes fail by kind at the rates of the hardware profile (reliability), each with its source. A
    failure is found, a spare replaces the node, and the training starts again from its last
    checkpoint. Many trainings are drawn; beside them stands the closed form of Young and Daly.
    Tables show where the hours go, what to change first, and which entries the answer hangs on.

    --set hardware.reliability.restart.warm_up='300 s' and the like change an entry.

    Example: simtrain goodput llama3_405b --days 54 --gpus 16384 --set batch.global=8192
    """
    from simtrain.base.output_folder import check_writable
    from simtrain.commands.progress import progress_bar
    from simtrain.render.figures.goodput import plot_goodput
    from simtrain.render.figures.style import check_picture_file, write_picture
    from simtrain.render.figures.subject import footer_of
    from simtrain.render.html.document import write_document
    from simtrain.render.html.pages import study_document
    from simtrain.studies.goodput.goodput import goodput_with_progress
    from simtrain.views.goodput import goodput_view

    if page := page_of(out):
        out = None
    if out is not None:
        check_picture_file(out)
        check_writable(out, "a picture")
    request = GoodputRequest(question.load(), **fields)
    with progress_bar() as on_progress:
        result = goodput_with_progress(request, on_progress)
    if out is not None:
        subject = f"trainings of {result.scenario}, failures of {result.reliability}"
        write_picture(plot_goodput(result), out, footer_of(subject, result.cluster))
    show(output, result, lambda: goodput_view(result), result.cluster)
    if page:
        write_document(study_document(goodput_view(result, has_picture=True)), page)
