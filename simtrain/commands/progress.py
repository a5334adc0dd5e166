"""Progress bars of commands, on stderr, and Ctrl-C, which ends them with what they have."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from simtrain.errors import printable

_LINE_EVERY_S = 5.0


class _Bar(Progress):
    """A progress bar with a note below it."""

    note = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.note:
            yield Text(printable(self.note))


@contextmanager
def progress_bar(*, has_lines: bool = False) -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal; the yielded function takes the phase, steps done, total, and best.

    With `has_lines` an output that is no terminal gets a line every few seconds.
    """
    console = Console(stderr=True)
    if has_lines and not console.is_terminal:
        yield progress_lines(sys.stderr, time.monotonic)
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    times = TimeElapsedColumn()
    with _Bar(
        *columns, times, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
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


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed.

    A second Ctrl-C raises KeyboardInterrupt.
    """
    was_pressed = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal was_pressed
        if was_pressed:
            raise KeyboardInterrupt
        was_pressed = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: was_pressed
    finally:
        signal.signal(signal.SIGINT, previous)
