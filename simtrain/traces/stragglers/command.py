"""`simtrain straggler`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.app import in_panel
from simtrain.commands.options import refuse
from simtrain.commands.output import Output, show
from simtrain.commands.progress import progress_bar


@in_panel("Commands")
def straggler(
    step: Annotated[list[Path], typer.Argument(metavar="STEP...")],
    output: Output,
) -> None:
    """Find the worker, stage or sequence that a measured training step waits for.

    Args:
        step: CSV file with a row for each pass and each communication of each worker in one step:
            replica, stage, op, microbatch, start_s, duration_s. Or traces of PyTorch's profiler,
            one for each rank, or a folder of them.

    The step is replayed from its durations alone, and then again without each suspect: its passes
    take the mean duration of all passes of their kind.

    Example: simtrain straggler step.csv
    """
    from simtrain.traces.events import is_trace, trace_files
    from simtrain.traces.ranks import read_rank_traces
    from simtrain.traces.stragglers.profiled import step_of_traces
    from simtrain.traces.stragglers.report import find_stragglers, straggler_view
    from simtrain.traces.stragglers.table import read_table

    if is_trace(step[0]):
        ranks = []
        with progress_bar() as show_progress:
            for file in (file for each in step for file in trace_files(each)):
                ranks += read_rank_traces(file, partial(show_progress, f"reading {file.name}"))
        report = find_stragglers(step_of_traces(ranks))
    else:
        message, fix = "a table has all workers of a step", "name one table, or traces alone"
        refuse({"STEP": len(step) > 1}, message, fix)
        report = find_stragglers(read_table(step[0]))
    show(output, report, lambda: straggler_view(report))
