"""`simtrain schedule optimize`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.import_options import reads_other_tools
from simtrain.commands.output import CsvOption, MarkdownOption, Output, TableOption, show
from simtrain.commands.shared import JsonOption, ScenarioArgument, SetOption


@reads_other_tools
def optimize(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    split: Annotated[
        bool | None,
        typer.Option(
            "--split/--whole",
            help="Whether backward passes are split into input and weight gradients. Default: both "
            "are tried.",
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Solve for the best order; small pipelines only."),
    ] = False,
    tries: Annotated[
        int, typer.Option("--tries", min=0, help="Changes that the local search tries.")
    ] = 300,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the local search.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.csv", help="Write the order as PyTorch reads it."),
    ] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
    table: TableOption = None,
) -> None:
    """Search a fast order of the pipeline's passes that fits in memory.

    Layers, chunks and microbatches stay as they are. The order is never slower than the named
    schedules of the same sizes that fit, and the answer says how much faster any order could be.

    Example: simtrain schedule optimize table5_22b_present --set parallelism.pipeline=4 --set
    batch.global=32 --out order.csv
    """
    from simtrain.base.output_folder import check_writable, write_text
    from simtrain.commands.loading import load_scenario
    from simtrain.commands.progress import progress_bar
    from simtrain.orders.optimize import optimize_order
    from simtrain.orders.view import order_view

    output = Output(as_json, as_csv, as_markdown, table)
    if out:
        check_writable(out, "the order")
    loaded = load_scenario(scenario, overrides or ())
    with progress_bar() as show_progress:
        order = optimize_order(
            loaded, splits=split, exact=exact, tries=tries, seed=seed, on_progress=show_progress
        )
    if out:
        write_text(out, order.schedule.to_csv(), "the order")
    show(
        output,
        order,
        partial(order_view, order, str(scenario), str(out) if out else None),
        loaded.cluster,
    )
