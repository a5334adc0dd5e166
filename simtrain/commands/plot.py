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
    output: Output,
) -> None:
    """Draw a sweep: a heat map, the Pareto front of time and memory, and scaling curves.

    Args:
        x: horizontal axis of the heat map.
        y: vertical axis of the heat map.
        value: column to draw. Default: the sweep's objective.

    By default the heat map shows the sweep's objective over its named axis and the axes that change
    the result most. Each cell shows the best result over the other axes. Each base scenario has its
    own panel. Pictures are written to FOLDER/pictures, or to the folder of --out.

    Example: simtrain plot results --x batch.global --y parallelism.pipeline --value mfu
    """
    from simtrain.base.extras import require
    from simtrain.base.output_folder import make_picture_folder
    from simtrain.render.figures.sweep import SweepPictures, SweepResults, plots_view, write_plots

    require("simtrain plot", "pyarrow", "duckdb", "matplotlib")
    chosen = SweepPictures.of(SweepResults.of(folder), value, x, y)
    target = out or folder / "pictures"
    make_picture_folder(target)
    with status(f"drawing {folder}"):
        pictures = write_plots(chosen, target)
    show(output, pictures, lambda: plots_view(pictures))
