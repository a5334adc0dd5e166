"""`simtrain plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.shared import JsonOption, OutOption, show, status


def plot(
    folder: Annotated[Path, typer.Argument(help="The folder that a sweep was written to.")],
    out: OutOption = None,
    x: Annotated[str | None, typer.Option("--x", help="The heat map's axis across.")] = None,
    y: Annotated[str | None, typer.Option("--y", help="The heat map's axis up.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", help="The column that is compared.")
    ] = None,
    panels: Annotated[
        str | None, typer.Option("--panels", help="The axis whose values are drawn apart.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a sweep: a heat map, time against memory, and scaling with the ideal line.

    The heat map has the two axes that change the result most, unless told otherwise, and the best
    over all others. Models are drawn apart. Pictures go to FOLDER/pictures unless --out says where.

    Example: simtrain plot results --x model.seq_length --y batch.micro --value mfu
    """
    from simtrain.figures.sweep import load_results, write_plots
    from simtrain.output_folder import make_folder
    from simtrain.pages.plots_page import plots_page

    results = load_results(folder, panels)
    target = out or folder / "pictures"
    make_folder(target)
    with status(f"drawing {folder}"):
        plots = write_plots(results, target, value=value, x=x, y=y)
    show(as_json, plots.to_json, lambda: plots_page(plots))
