"""`simtrain schedule`: `show` (also without this word) and `optimize`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.app import App
from simtrain.commands.import_options import reads_other_tools
from simtrain.commands.output import CsvOption, MarkdownOption, Output, TableOption, show, show_view
from simtrain.commands.shared import (
    JsonOption,
    ScenarioArgument,
    SetOption,
    emit_data,
)

schedule_app = App(
    help="Print a pipeline schedule, or search a faster order. Without a command: show.",
    default="show",
)


@schedule_app.command("show")
@reads_other_tools
def print_schedule(
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
    takes one slot. The grid is cut to the width of the terminal; --csv prints all passes. The word
    show may be left out.

    Example: simtrain schedule show table5_175b_present
    """
    from simtrain.commands.loading import load_scenario
    from simtrain.schedules import schedule_of
    from simtrain.views.schedule import schedule_view

    loaded = load_scenario(scenario, overrides or ())
    split = loaded.parallelism
    sizes = split.pipeline, split.interleave, loaded.num_microbatches
    order = schedule_of(
        loaded.order,
        *sizes,
        loaded.group_size,
        merges=loaded.merges_passes,
        num_slices=split.sequence_slices,
        vocabulary=split.vocabulary_split,
    )
    if as_csv:
        emit_data(order.to_csv())
    else:
        show_view(Output(), schedule_view(order))


@schedule_app.command("optimize")
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
    from simtrain.studies.orders import optimize_order
    from simtrain.views.orders import order_view

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
