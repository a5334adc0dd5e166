"""`simtrain plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.shared import JsonOption, OutOption, show, status


def plot(
    folder: Annotated[Path, typer.Argument(help="Folder that a sweep was written to.")],
    out: OutOption = None,
    x: Annotated[str | None, typer.Option("--x", help="Horizontal axis of the heat map.")] = None,
    y: Annotated[str | None, typer.Option("--y", help="Vertical axis of the heat map.")] = None,
    value: Annotated[str | None, typer.Option("--value", help="Column to compare.")] = None,
    panels: Annotated[
        str | None, typer.Option("--panels", help="Axis whose values have a panel each.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a sweep: a heat map, time against memory, and scaling with the ideal line.

    By default the heat map shows the two axes that change the result most. Each cell holds the best
    result over the other axes. Each model has its own panel. Figures go to FOLDER/pictures unless
    --out names another folder.

    Example: simtrain plot results --x model.seq_length --y batch.micro --value mfu
    """
    from simtrain.extras import require
    from simtrain.figures.sweep import load_results, write_plots
    from simtrain.output_folder import make_picture_folder
    from simtrain.pages.plots_page import plots_page

    require("simtrain plot", "pyarrow", "matplotlib")
    results = load_results(folder, panels)
    target = out or folder / "pictures"
    make_picture_folder(target)
    with status(f"drawing {folder}"):
        plots = write_plots(results, target, value=value, x=x, y=y)
    show(as_json, plots.to_json, lambda: plots_page(plots))
