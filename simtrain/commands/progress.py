"""Progress bars of commands, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
def progress_bar() -> Iterator[Callable[..., None]]:
    """Show a bar; the yielded function takes the phase, steps done, total, and best so far."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with stderr_bar(*columns, TimeElapsedColumn()) as bar:
        task = bar.add_task("")

        def show_progress(phase: str, done: int, total: int, best: str = "") -> None:
            bar.note = f"best so far {best}" if best else ""
            bar.update(task, description=printable(phase), completed=done, total=total)

        yield show_progress
