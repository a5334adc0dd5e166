"""Progress bar of a sweep: points done, rate, remaining time, and the best point so far."""

from __future__ import annotations

from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from simtrain.commands.progress import stderr_bar
from simtrain.pages.sweep_page import best_words
from simtrain.sweep.plan import Plan
from simtrain.sweep.run import Progress as SweepProgress


class _Rate(ProgressColumn):
    """Points per second."""

    def render(self, task: Task) -> Text:
        """Format the rate; empty before the first update."""
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


class SweepBar:
    """A progress bar on stderr, shown only on a terminal."""

    def __init__(self, plan: Plan) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        self._bar = stderr_bar(*columns, TextColumn("{task.fields[best]}", markup=False))
        self._task = self._bar.add_task("", total=plan.num_points, best="")
        self._last = SweepProgress(0, 0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, progress: SweepProgress) -> None:
        """Update the bar."""
        best = progress.counts.best
        words = best_words(best) if best else ""
        # Parts that were already on disk must not count towards the rate.
        set_bar = self._bar.update if progress.found == self._last.found else self._bar.reset
        done = progress.counts.num_points
        set_bar(self._task, total=progress.num_points, completed=done, best=words)
        self._last = progress

    @property
    def interrupted(self) -> str:
        """Message after Ctrl-C."""
        done, total = self._last.done, self._last.num_parts
        return f"interrupted: {done} of {total} parts are on disk; run the same command to resume"
