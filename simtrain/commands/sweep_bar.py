"""The bar of a sweep: what is done, how fast, how long it will take, and the best so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from simtrain.sweep.page import best_words
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
        console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        best = TextColumn("{task.fields[best]}", markup=False)
        self._bar = Progress(
            *columns, best, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("", total=plan.num_points, best="")
        self._last = SweepProgress(0, 0)

    def start(self) -> None:
        """Show the bar."""
        self._bar.start()

    def stop(self) -> None:
        """Remove the bar."""
        self._bar.stop()

    def tell(self, progress: SweepProgress) -> None:
        """Show how far the sweep is."""
        best = progress.counts.best
        words = best_words(best) if best else ""
        # What was found on disk says nothing of how long the rest will take.
        change = self._bar.update if progress.found == self._last.found else self._bar.reset
        change(
            self._task,
            total=progress.num_points,
            completed=progress.counts.num_points,
            best=words,
        )
        self._last = progress

    @property
    def interrupted(self) -> str:
        """What to tell who interrupts the sweep."""
        done, total = self._last.done, self._last.num_parts
        return f"interrupted: {done} of {total} parts are on disk; the same command goes on"


@contextmanager
def sweep_bar(plan: Plan) -> Iterator[SweepBar]:
    """A bar that is shown within."""
    bar = SweepBar(plan)
    bar.start()
    try:
        yield bar
    finally:
        bar.stop()
