"""The bar of a sweep: what is done, how fast, how long it will take, and the best so far."""

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
    """Points a second."""

    def render(self, task: Task) -> Text:
        """The rate, once there is one."""
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


class SweepBar:
    """A bar on stderr, where that is a terminal."""

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

    def tell(self, progress: SweepProgress) -> None:
        """Show how far the sweep is."""
        best = progress.counts.best
        words = best_words(best) if best else ""
        # What was found on disk says nothing of how long the rest will take.
        change = self._bar.update if progress.found == self._last.found else self._bar.reset
        done = progress.counts.num_points
        change(self._task, total=progress.num_points, completed=done, best=words)
        self._last = progress

    @property
    def interrupted(self) -> str:
        """What to tell who interrupts the sweep."""
        done, total = self._last.done, self._last.num_parts
        return f"interrupted: {done} of {total} parts are on disk; the same command goes on"
