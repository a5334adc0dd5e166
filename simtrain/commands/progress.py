"""The bar that shows on stderr how far a command has come."""

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


class Bar(Progress):
    """A bar, and under it a note on what has been found."""

    note = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """The lines that are drawn."""
        yield self.make_tasks_table(self.tasks)
        if self.note:
            yield Text(self.note)


def stderr_bar(*columns: ProgressColumn) -> Bar:
    """A bar on stderr if that is a terminal; it disappears at its end."""
    console = Console(stderr=True)
    return Bar(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def progress_bar() -> Iterator[Callable[..., None]]:
    """Yield what is to be told what is being done, how much of it is done, of how much, and,
    where there is one, the best so far."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with stderr_bar(*columns, TimeElapsedColumn()) as bar:
        task = bar.add_task("")

        def report(what: str, done: int, total: int, best: str = "") -> None:
            bar.note = f"best so far {best}" if best else ""
            bar.update(task, description=what, completed=done, total=total)

        yield report
