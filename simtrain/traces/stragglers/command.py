"""`simtrain straggler`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.app import in_panel
from simtrain.commands.output import Output, show


@in_panel("Compare")
def straggler(trace: Annotated[Path, typer.Argument(metavar="STEP.csv")], output: Output) -> None:
    """Find the worker, stage or sequence that a measured training step waits for.

    Args:
        trace: CSV file with a row for each pass and each communication of each worker in one step:
            replica, stage, op, microbatch, start_s, duration_s.

    The step is replayed from its durations alone, and then again without each suspect: its passes
    take the mean duration of all passes of their kind.

    Example: simtrain straggler step.csv
    """
    from simtrain.traces.stragglers.replay import Replay
    from simtrain.traces.stragglers.traced_step import read_traced_step
    from simtrain.traces.stragglers.view import straggler_view
    from simtrain.traces.stragglers.what_if import find_stragglers

    report = find_stragglers(Replay(read_traced_step(trace)))
    show(output, report, lambda: straggler_view(report))
