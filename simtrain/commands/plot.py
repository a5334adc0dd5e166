"""`simtrain plot`."""

from __future__ import annotations

from typing import Annotated

import typer

from simtrain.commands.output import CsvOption, MarkdownOption, Output, TableOption, show
from simtrain.commands.shared import JsonOption, OutOption, SweepFolderArgument, status


def plot(
    folder: SweepFolderArgument,
    out: OutOption = None,
    x: Annotated[str | None, typer.Option("--x", help="Horizontal axis of the heat map.")] = None,
    y: Annotated[str | None, typer.Option("--y", help="Vertical axis of the heat map.")] = None,
    value: Annotated[
        str | None,
        typer.Option("--value", help="Column to draw. Default: the sweep's objective."),
    ] = None,
    panels: Annotated[
        str | None, typer.Option("--panels", help="Axis with one panel per value.")
    ] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
    table: TableOption = None,
) -> None:
    """Draw a sweep: a heat map, the Pareto front of time and memory, and scaling curves.

    By default the heat map shows the sweep's objective over its named axis and the axes that change
    the result most. Each cell shows the best result over the other axes, and their values. Each
    model has its own panel. Pictures are written to FOLDER/pictures, or to the folder of --out.

    Example: simtrain plot results --x batch.global --y parallelism.pipeline --value mfu
    """
    from simtrain.base.extras import require
    from simtrain.base.output_folder import make_picture_folder
    from simtrain.render.figures.sweep import load_results, write_plots
    from simtrain.render.figures.sweep.listing import plots_view

    output = Output(as_json, as_csv, as_markdown, table)
    require("simtrain plot", "pyarrow", "matplotlib")
    results = load_results(folder, panels)
    target = out or folder / "pictures"
    make_picture_folder(target)
    with status(f"drawing {folder}"):
        plots = write_plots(results, target, value=value, x=x, y=y)
    show(output, plots, lambda: plots_view(plots))
