"""Progress bars of commands, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from simtrain.errors import printable

_LINE_EVERY_S = 5.0


class Bar(Progress):
    """A progress bar with a note below it."""

    note = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Return the lines of the bar."""
        yield self.make_tasks_table(self.tasks)
        if self.note:
            yield Text(printable(self.note))


def stderr_bar(*columns: ProgressColumn) -> Bar:
    """Create a bar on stderr. It is shown only on a terminal, and removed at its end."""
    console = Console(stderr=True)
    return Bar(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def progress_bar(*, has_lines: bool = False) -> Iterator[Callable[..., None]]:
    """Show a bar; the yielded function takes the phase, steps done, total, and best so far.

    With `has_lines` an output that is no terminal gets a line every few seconds.
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with stderr_bar(*columns, TimeElapsedColumn()) as bar:
        if bar.disable and has_lines:
            yield progress_lines(sys.stderr, time.monotonic)
            return
        task = bar.add_task("")

        def show_progress(phase: str, done: int, total: int, best: str = "") -> None:
            bar.note = f"best so far {best}" if best else ""
            bar.update(task, description=printable(phase), completed=done, total=total)

        yield show_progress


def progress_lines(file: TextIO, clock: Callable[[], float]) -> Callable[..., None]:
    """A function that prints the phase, steps done and total, at most every few seconds."""
    start_s = clock()
    next_s = start_s

    def print_progress(phase: str, done: int, total: int) -> None:
        nonlocal next_s
        if (now_s := clock()) >= next_s:
            next_s = now_s + _LINE_EVERY_S
            print(f"{now_s - start_s:4.0f} s: {phase}, {done} of {total}", file=file, flush=True)

    return print_progress
