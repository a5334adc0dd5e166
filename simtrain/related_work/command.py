"""`simtrain schedule slices`."""

from __future__ import annotations

from typing import Annotated

import typer

from simtrain.commands.output import Output, show
from simtrain.commands.question import UnscaledQuestion


def slices(
    question: UnscaledQuestion,
    *,
    parts: Annotated[int, typer.Option(min=2, max=64)] = 8,
    micro: Annotated[list[int] | None, typer.Option(min=1)] = None,
    output: Output,
) -> None:
    """Find the lengths of the slices into which TeraPipe cuts sequences.

    Args:
        parts: a slice has a multiple of 1/PARTS of the sequence. More parts take longer.
        micro: a size of microbatches to choose from, in sequences; repeat it. By default the
            scenario's. The programme also finds the best mix of sizes (Section 3.4).

    The passes of all slices that a sequence of so many parts can have are simulated; a dynamic
    programme finds the lengths with the shortest pipeline (Li et al. 2021, Section 3.3), which are
    then simulated beside equal slices. The scenario has several stages, one chunk for each, and
    fused attention; its schedule becomes terapipe unless it is another one that runs slices.

    Example: simtrain schedule slices llama3_70b --set batch.global=8
    """
    from simtrain.commands.progress import progress_bar
    from simtrain.related_work.slices import find_slices
    from simtrain.related_work.slices_view import slices_view

    scenario = question.load()
    with progress_bar() as on_progress:
        search = find_slices(scenario, parts, on_progress, micro or ())
    show(output, search, lambda: slices_view(search), scenario.cluster)
