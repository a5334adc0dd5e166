"""`simtrain sweep`, `simtrain sweeps` and `simtrain query`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from simtrain.commands.app import INTERRUPTED
from simtrain.commands.completion import shipped_sweeps
from simtrain.commands.declare import Fields, options_first
from simtrain.commands.options import SetOption, SweepFolderArgument
from simtrain.commands.output import ListOutput, Output, show, show_view
from simtrain.commands.printing import emit, status
from simtrain.commands.progress import progress_bar
from simtrain.studies.sweep import MANY_POINTS, SweepRequest

_FULL_WIDTH = 100_000
"""Columns of a page that must not be cut."""
SweepFields = Annotated[
    dict[str, Any],
    Fields(
        SweepRequest,
        "ray shard part_size max_points",
        {
            "part_size": Annotated[int | None, typer.Option(min=1)],
            "max_points": Annotated[int, typer.Option(min=1)],
        },
    ),
]


@options_first("file out overrides workers ray shard part_size max_points")
def sweep(
    file: Annotated[str, typer.Argument(autocompletion=shipped_sweeps)],
    out: Path,
    fields: SweepFields,
    output: Output,
    overrides: SetOption = None,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
) -> None:
    """Simulate every scenario of a grid and store the results in a folder.

    Args:
        file: sweep file, or name of a sweep that comes with simtrain.
        out: folder for the results.
        workers: number of worker processes. Default: one per processor.

    Run the same command again to resume an interrupted sweep.

    Example: simtrain sweep interleave --out results
    """
    from simtrain.studies.sweep.results import SweepFolder
    from simtrain.studies.sweep.run import Progress, SweepRun
    from simtrain.views.sweep import Summary, summary_view

    with status("reading the sweep"):
        request = SweepRequest(file, out, overrides or (), workers=workers, **fields)
        run = SweepRun.open(request, SweepFolder(out))
    if run.sweep.num_points >= MANY_POINTS:
        size = f"{run.sweep.num_points:,} points in {run.sweep.num_parts:,} parts"
        advice = "Ctrl-C keeps finished parts, and --shard i/n shares them among machines"
        emit(f"{size}: {advice}\n", sys.stderr)
    last = Progress(0, 0)

    def on_progress(progress: Progress) -> None:
        nonlocal last
        last = progress
        show_progress("points", progress.num_done, progress.num_points)

    try:
        with progress_bar() as show_progress:
            progress = run.compute(on_progress)
    except KeyboardInterrupt:
        on_disk = f"{last.done} of {last.num_parts} parts are on disk"
        emit(f"interrupted: {on_disk}; run the same command to resume\n", sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    summary = Summary(run, progress)
    show(output, summary, lambda: summary_view(summary))


def sweeps(output: ListOutput) -> None:
    """List the sweeps that come with simtrain.

    Example: simtrain sweeps
    """
    from simtrain.base.resources import find_sweep, list_sweeps
    from simtrain.base.strict_yaml import load_document
    from simtrain.views.view import names_view

    documents = ((name, load_document(find_sweep(name))) for name in list_sweeps())
    rows = ((name, document.data.get("description") or "") for name, document in documents)
    show_view(output, names_view(("sweep", "description"), rows))


def query(
    folder: SweepFolderArgument,
    sql: Annotated[str, typer.Argument()],
    output: Output,
) -> None:
    """Query the results of a sweep with SQL, also while the sweep is running.

    Args:
        sql: DuckDB SQL on the table `results`.

    The query is one statement. It reads only the table `results`, no other file, and writes none.

    Example: simtrain query results "select * from results order by tokens_per_s desc limit 5"
    """
    from simtrain.studies.sweep.results import query as run_query
    from simtrain.units import counted
    from simtrain.views.sweep import answer_view

    answer = run_query(folder, sql)
    if answer.num_missing:
        missing = counted(answer.num_missing, "point")
        advice = "run the same simtrain sweep command again to compute them"
        emit(f"{missing} of the sweep not simulated yet or deleted: {advice}\n", sys.stderr)
    # A table cut to the width would show wrong numbers; columns beyond it follow below.
    show(output, answer, lambda: answer_view(answer), width=_FULL_WIDTH)
