"""`simtrain advise`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from simtrain.commands.output import Output, show
from simtrain.commands.printing import status
from simtrain.commands.question import Question


def advise(
    question: Question, *, top: Annotated[int, typer.Option(min=1)] = 5, output: Output
) -> None:
    """Print the single changes that save the most time, each with its price in memory.

    Args:
        top: the most changes to print.

    GPUs, model and global batch stay as they are. Changes that do not fit in memory are left out.
    Several changes together: simtrain search.

    Example: simtrain advise llama3_70b --top 3
    """
    from simtrain.studies.advice import advise as find_changes
    from simtrain.views.advice import advice_view

    scenario = question.load()
    with status(f"simulating {scenario.name}") as show_status:
        advice = find_changes(scenario, top, on_progress=show_status)
    show(output, advice, partial(advice_view, advice), scenario.cluster)
