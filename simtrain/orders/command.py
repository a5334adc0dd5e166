"""`simtrain schedule optimize`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.output import Output, show
from simtrain.commands.question import UnscaledQuestion


def optimize(
    question: UnscaledQuestion,
    *,
    split: Annotated[bool | None, typer.Option("--split/--whole")] = None,
    exact: bool = False,
    tries: Annotated[int, typer.Option(min=0)] = 300,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE.csv")] = None,
    output: Output,
) -> None:
    """Search a fast order of the pipeline's passes that fits in memory.

    Args:
        split: whether backward passes are split into input and weight gradients. Default: both are
            tried.
        exact: solve for the best order; small pipelines only.
        tries: changes that the local search tries.
        seed: of the local search.
        out: write the order as PyTorch reads it.

    Layers, chunks and microbatches stay as they are. The order is never slower than the named
    schedules of the same sizes that fit, and the answer says how much faster any order could be.

    Example: simtrain schedule optimize table5_22b_present --set parallelism.pipeline=4 --set
    batch.global=32 --out order.csv
    """
    from simtrain.base.output_folder import check_writable, write_text
    from simtrain.commands.progress import progress_bar
    from simtrain.orders.optimize import optimize_order
    from simtrain.orders.view import order_view

    if out:
        check_writable(out, "the order")
    scenario = question.load()
    with progress_bar() as show_progress:
        order = optimize_order(
            scenario, splits=split, exact=exact, tries=tries, seed=seed, on_progress=show_progress
        )
    if out:
        write_text(out, order.schedule.to_csv(), "the order")
    show(
        output,
        order,
        partial(order_view, order, question.scenario, str(out) if out else None),
        scenario.cluster,
    )
