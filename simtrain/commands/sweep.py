"""`simtrain sweep`, `simtrain sweeps` and `simtrain query`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simtrain.commands.completion import shipped_sweeps
from simtrain.commands.options import SetOption, SweepFolderArgument
from simtrain.commands.output import ListOutput, Output, show, show_view
from simtrain.commands.printing import emit, status
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.studies.sweep.run import Shard

_FULL_WIDTH = 100_000
"""Columns of a page that must not be cut."""
ExecutorName = Literal["processes", "ray"]


# Ten parameters: each is an option, and `SweepRequest` has other defaults for most, because Python
# writes no files unless it is asked to.
def sweep(
    file: Annotated[str, typer.Argument(autocompletion=shipped_sweeps)],
    out: Path,
    overrides: SetOption = None,
    *,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    executor: ExecutorName = "processes",
    address: str | None = None,
    shard: str = "0/1",
    part_size: Annotated[int | None, typer.Option(min=1)] = None,
    max_points: Annotated[int | None, typer.Option(min=1)] = None,
    output: Output,
) -> None:
    """Simulate every scenario of a grid and store the results in a folder.

    Args:
        file: sweep file, or name of a sweep that comes with simtrain.
        out: folder for the results.
        workers: number of worker processes, or of concurrent parts on a Ray cluster. Default: one
            per processor.
        executor: compute in local processes or on a Ray cluster.
        address: Ray cluster, host:port. Default: $RAY_ADDRESS.
        shard: compute only every n-th part, starting at part i (from 0): i/n.
        part_size: points per part.
        max_points: refuse a grid of more points, which would run for days. Default: a million.

    Run the same command again to resume an interrupted sweep.

    Example: simtrain sweep interleave --out results
    """
    from simtrain.commands.sweep_bar import sweep_bar
    from simtrain.studies.sweep.executor_kinds import EXECUTOR_KINDS
    from simtrain.studies.sweep.folder import SweepFolder
    from simtrain.studies.sweep.load import MANY_POINTS, load_plan
    from simtrain.studies.sweep.run import run_sweep
    from simtrain.views.sweep import Summary, summary_view

    own_shard = _parse_shard(shard)
    with status("reading the sweep"):
        folder = SweepFolder(out)
        plan = load_plan(file, overrides or (), part_size, max_points or MANY_POINTS)
        plan = folder.open(plan, part_size)
        num_parts = len(own_shard.parts(plan))
        kind = EXECUTOR_KINDS[executor]
        make_executor, in_flight = kind.open(plan, num_parts, workers, address)
    if plan.num_points >= MANY_POINTS:
        size = f"{plan.num_points:,} points in {plan.num_parts:,} parts"
        advice = "Ctrl-C keeps finished parts, and --shard i/n shares them among machines"
        emit(f"{size}: {advice}\n", sys.stderr)
    with sweep_bar(plan) as on_progress:
        done = run_sweep(plan, folder, make_executor, in_flight, own_shard, on_progress)
    summary = Summary(plan, folder, own_shard, done)
    show(output, summary, lambda: summary_view(summary))


def _parse_shard(text: str) -> Shard:
    """Parse "i/n"."""
    from simtrain.studies.sweep.run import Shard

    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    if match and int(match[1]) < int(match[2]):
        return Shard(int(match[1]), int(match[2]))
    message = f'"{text}" is not a shard'
    fix = "write 0/4 for the first of four shards, 3/4 for the last"
    raise InputError.of("E828", message, Location("--shard"), fix)


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
    from simtrain.studies.sweep.query import query as run_query
    from simtrain.units import counted
    from simtrain.views.sweep import answer_view

    answer = run_query(folder, sql)
    if answer.num_missing:
        missing = counted(answer.num_missing, "point")
        advice = "run the same simtrain sweep command again to compute them"
        emit(f"{missing} of the sweep not simulated yet or deleted: {advice}\n", sys.stderr)
    # A table cut to the width would show wrong numbers; columns beyond it follow below.
    show(output, answer, lambda: answer_view(answer), width=_FULL_WIDTH)
