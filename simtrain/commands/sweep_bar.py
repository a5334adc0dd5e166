"""Progress bar of a sweep: points done, rate, remaining time, and the best point so far."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TimeRemainingColumn,
)
from rich.text import Text

from simtrain.commands.app import INTERRUPTED
from simtrain.commands.printing import emit
from simtrain.commands.progress import stderr_bar
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.run import Progress
from simtrain.views.sweep import best_words


class _Rate(ProgressColumn):
    """Points per second."""

    def render(self, task: Task) -> Text:
        """Format the rate; empty before the first update."""
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


@contextmanager
def sweep_bar(plan: SweepPlan) -> Iterator[Callable[[Progress], None]]:
    """Show a bar on a terminal; the yielded function updates it.

    Ctrl-C ends the command, with a message that says how to resume.
    """
    bar = stderr_bar(BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    task = bar.add_task("", total=plan.num_points)
    last = Progress(0, 0)

    def update(progress: Progress) -> None:
        """Show the progress."""
        nonlocal last
        best = progress.counts.best
        # Parts that were already on disk must not count towards the rate.
        set_bar = bar.update if progress.found == last.found else bar.reset
        bar.note = best_words(best) if best else ""
        set_bar(task, total=progress.num_points, completed=progress.counts.num_points)
        last = progress

    try:
        with bar:
            yield update
    except KeyboardInterrupt:
        on_disk = f"{last.done} of {last.num_parts} parts are on disk"
        emit(f"interrupted: {on_disk}; run the same command to resume\n", sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
