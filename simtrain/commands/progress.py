"""The bar that shows on stderr how far a command has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)


def stderr_bar(*columns: ProgressColumn) -> Progress:
    """A bar on stderr if that is a terminal; it disappears at its end."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yield what is to be told what is being done, how much of it is done, and of how much."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with stderr_bar(*columns, TimeElapsedColumn()) as bar:
        task = bar.add_task("")

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report
