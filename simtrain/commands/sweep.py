"""`simtrain sweep`: runs a grid, and queries and draws its results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from simtrain.base.resources import list_sweeps
from simtrain.commands.declare import Argument, Option, options_first
from simtrain.commands.group import INTERRUPTED
from simtrain.commands.options import OutOption, SetOption, refuse
from simtrain.commands.output import PAGES, Output, check_file, show, show_answer
from simtrain.commands.printing import emit, progress_bar, status
from simtrain.studies.requests import SweepRequest


@options_first("source out query overrides workers")
def sweep(
    source: Annotated[str, Argument("SWEEP", complete=list_sweeps)],
    output: Output,
    out: OutOption = None,
    gpus: Annotated[int | None, Option(min=1)] = None,
    scale_batch: bool = False,
    query: Annotated[str | None, Option(metavar="SQL")] = None,
    overrides: SetOption = None,
    workers: Annotated[int | None, Option(min=1)] = None,
    axes: Annotated[str, Option(metavar="X,Y")] = "",
    value: str | None = None,
) -> None:
    """Simulate every scenario of a grid into a folder; query and draw such a folder.

    Args:
        source: sweep file, name of a sweep that comes with simtrain, or folder with results.
        out: folder for the results; default SWEEP_results. For a folder with results: a page
            (.html), or the folder of the pictures; default FOLDER/pictures.
        gpus: number of GPUs of the base scenario, as for run.
        scale_batch: with --gpus, the global batch grows by the same factor.
        query: print the answer of DuckDB SQL on the table `results`, also while the sweep runs. It
            is one statement, which reads no other file and writes none.
        workers: number of worker processes. Default: one per processor.
        axes: horizontal and vertical axis of the heat map.
        value: column to draw. Default: the sweep's objective.

    Run the same command again to resume an interrupted sweep.

    For a folder, it draws a heat map, the Pareto front of time and memory, and scaling curves. The
    heat map shows the objective over the sweep's named axis and the axes that change it most; each
    cell is the best over the other axes, and each base scenario has a panel.

    Example: simtrain sweep interleave -o results

    Example: simtrain sweep results --query "select * from results order by tokens_per_s desc"
    """
    of_picture = {"--axes": axes, "--value": value}
    of_grid = {"--set": overrides, "--gpus": gpus, "--workers": workers}
    if query is not None:
        refuse(of_grid | of_picture | {"-o": out}, "has no effect with --query")
        _query(Path(source), query, output)
    elif _is_results(source, out):
        refuse(of_grid, "has no effect on a folder with results", "remove it, or name a sweep")
        _draw(Path(source), out, output, axes, value)
    else:
        refuse(of_picture, "is for a folder with results", "run the sweep first")
        out = out or Path(f"{Path(source).stem}_results")
        settings = [*(overrides or ())]
        if gpus:
            settings += _settings_of_gpus(source, settings, gpus, scale_batch)
        request = SweepRequest(source, out, settings, workers=workers)
        _run(request, out, output)


def _settings_of_gpus(
    source: str, settings: list[str], gpus: int, scale_batch: bool
) -> Iterator[str]:
    """Yield the assignments with which the base scenario has this number of GPUs."""
    from simtrain.studies.changes import changes_to
    from simtrain.studies.sweep.grid import load_sweep

    sweep = load_sweep(source, settings)
    for path in (path for axis in sweep.axes for path in axis.paths):
        varies = {"--gpus": path[0] in ("base", "parallelism")}
        field = ".".join(map(str, path))
        refuse(varies, f"has no effect: an axis sets {field}", "write it to the axis")
    for field, value in changes_to(sweep.scenario(0), gpus, scale_batch).items():
        yield f"{field}={value}"


def _is_results(source: str, out: Path | None) -> bool:
    """Return whether a source is a folder; a sweep that is resumed may be named like its own."""
    return os.path.isdir(source) and not (out and out.resolve() == Path(source).resolve())


def _run(request: SweepRequest, out: Path, output: Output) -> None:
    from simtrain.studies.sweep.run import SweepFolder, SweepRun
    from simtrain.views.sweep import Summary, summary_view

    with status("reading the sweep"):
        run = SweepRun.open(request, SweepFolder(out))
    try:
        with progress_bar() as on_progress:
            num_found = run.compute(on_progress)
    except KeyboardInterrupt:
        on_disk = f"{len(run.folder.files)} of {run.sweep.num_parts} parts are on disk"
        emit(f"interrupted: {on_disk}; run the same command to resume\n", sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    summary = Summary(run, num_found)
    show(output, summary, lambda: summary_view(summary))


def _draw(folder: Path, out: Path | None, output: Output, axes: str, value: str | None) -> None:
    """Draw results, or write the page on them."""
    from simtrain.base.extras import require
    from simtrain.base.output_folder import make_picture_folder
    from simtrain.render.figures.sweep import SweepPictures, SweepResults, plots_view, write_plots
    from simtrain.render.html.document import write_document
    from simtrain.render.html.pages import sweep_document

    require("drawing a sweep", "pyarrow", "duckdb", "matplotlib")
    page = out if out and out.suffix in PAGES else None
    if page:
        refuse({"--axes": axes, "--value": value}, "has no effect on a page")
        check_file(page)
    results = SweepResults.of(folder)
    if page:
        with status(f"drawing {folder}"):
            write_document(sweep_document(results), page)
        emit(f"{page}\n")
        return
    chosen = SweepPictures.of(results, value, *axes.split(",", 1))
    target = out or folder / "pictures"
    make_picture_folder(target)
    with status(f"drawing {folder}"):
        pictures = write_plots(chosen, target)
    show(output, pictures, lambda: plots_view(pictures))


def _query(folder: Path, sql: str, output: Output) -> None:
    from simtrain.studies.sweep.run import query as run_query
    from simtrain.units import counted

    answer = run_query(folder, sql)
    if answer.num_missing:
        missing = counted(answer.num_missing, "point")
        advice = "run the same simtrain sweep command again to compute them"
        emit(f"{missing} of the sweep not simulated yet or deleted: {advice}\n", sys.stderr)
    show_answer(output, answer)
