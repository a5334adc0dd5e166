"""`simtrain sweep`, `simtrain sweeps` and `simtrain query`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simtrain.commands.completion import shipped_sweeps
from simtrain.commands.options import JsonOption, SetOption, SweepFolderArgument
from simtrain.commands.output import CsvOption, MarkdownOption, Output, TableOption, show, show_view
from simtrain.commands.printing import emit, status
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.studies.sweep.run import Shard

_FULL_WIDTH = 100_000
"""Columns of a page that must not be cut."""

ExecutorName = Literal["processes", "ray"]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of worker processes, or of concurrent parts on a Ray cluster. Default: one "
        "per processor.",
    ),
]
ExecutorOption = Annotated[
    ExecutorName, typer.Option(help="Compute in local processes or on a Ray cluster.")
]
AddressOption = Annotated[
    str | None, typer.Option(help="Ray cluster, host:port. Default: $RAY_ADDRESS.")
]
MaxPointsOption = Annotated[
    int | None,
    typer.Option(
        "--max-points",
        min=1,
        help="Refuse a grid of more points, which would run for days. Default: a million.",
    ),
]
ShardOption = Annotated[
    str, typer.Option(help="Compute only every n-th part, starting at part i (from 0): i/n.")
]


def sweep(
    file: Annotated[
        str,
        typer.Argument(
            help="Sweep file, or name of a sweep that comes with simtrain.",
            autocompletion=shipped_sweeps,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")],
    overrides: SetOption = None,
    workers: WorkersOption = None,
    executor: ExecutorOption = "processes",
    address: AddressOption = None,
    shard: ShardOption = "0/1",
    part_size: Annotated[int | None, typer.Option(min=1, help="Points per part.")] = None,
    max_points: MaxPointsOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
    table: TableOption = None,
) -> None:
    """Simulate every scenario of a grid and store the results in a folder.

    Run the same command again to resume an interrupted sweep.

    Example: simtrain sweep interleave --out results
    """
    from simtrain.commands.sweep_bar import sweep_bar
    from simtrain.studies.sweep.executor_kinds import EXECUTOR_KINDS
    from simtrain.studies.sweep.folder import SweepFolder
    from simtrain.studies.sweep.load import MANY_POINTS, load_plan
    from simtrain.studies.sweep.run import run_sweep
    from simtrain.views.sweep import Summary, summary_view

    output = Output(as_json, as_csv, as_markdown, table)
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


def sweeps(as_csv: CsvOption = False, as_markdown: MarkdownOption = False) -> None:
    """List the sweeps that come with simtrain.

    Example: simtrain sweeps
    """
    from simtrain.base.resources import find_sweep, list_sweeps
    from simtrain.base.strict_yaml import load_document
    from simtrain.views.names import names_view

    documents = ((name, load_document(find_sweep(name))) for name in list_sweeps())
    rows = ((name, document.data.get("description") or "") for name, document in documents)
    output = Output(as_csv=as_csv, as_markdown=as_markdown)
    show_view(output, names_view(("sweep", "description"), rows))


def query(
    folder: SweepFolderArgument,
    sql: Annotated[str, typer.Argument(help="DuckDB SQL on the table `results`.")],
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
    table: TableOption = None,
) -> None:
    """Query the results of a sweep with SQL, also while the sweep is running.

    The query is one statement. It reads only the table `results`, no other file, and writes none.

    Example: simtrain query results "select * from results order by tokens_per_s desc limit 5"
    """
    from simtrain.studies.sweep.query import query as run_query
    from simtrain.units import counted
    from simtrain.views.sweep import answer_view

    output = Output(as_json, as_csv, as_markdown, table)
    answer = run_query(folder, sql)
    if answer.num_missing:
        missing = counted(answer.num_missing, "point")
        advice = "run the same simtrain sweep command again to compute them"
        emit(f"{missing} of the sweep not simulated yet or deleted: {advice}\n", sys.stderr)
    # A table cut to the width would show wrong numbers; columns beyond it follow below.
    show(output, answer, lambda: answer_view(answer), width=_FULL_WIDTH)
