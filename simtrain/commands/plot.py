"""`simtrain plot`."""

from __future__ import annotations

from simtrain.commands.options import OutOption, SweepFolderArgument
from simtrain.commands.output import Output, show
from simtrain.commands.printing import status


def plot(
    folder: SweepFolderArgument,
    *,
    out: OutOption = None,
    x: str | None = None,
    y: str | None = None,
    value: str | None = None,
    panels: str | None = None,
    output: Output,
) -> None:
    """Draw a sweep: a heat map, the Pareto front of time and memory, and scaling curves.

    Args:
        x: horizontal axis of the heat map.
        y: vertical axis of the heat map.
        value: column to draw. Default: the sweep's objective.
        panels: axis with one panel per value.

    By default the heat map shows the sweep's objective over its named axis and the axes that change
    the result most. Each cell shows the best result over the other axes, and their values. Each
    model has its own panel. Pictures are written to FOLDER/pictures, or to the folder of --out.

    Example: simtrain plot results --x batch.global --y parallelism.pipeline --value mfu
    """
    from simtrain.base.extras import require
    from simtrain.base.output_folder import make_picture_folder
    from simtrain.render.figures.sweep import load_results, write_plots
    from simtrain.render.figures.sweep.listing import plots_view

    require("simtrain plot", "pyarrow", "matplotlib")
    results = load_results(folder, panels)
    target = out or folder / "pictures"
    make_picture_folder(target)
    with status(f"drawing {folder}"):
        plots = write_plots(results, target, value=value, x=x, y=y)
    show(output, plots, lambda: plots_view(plots))
