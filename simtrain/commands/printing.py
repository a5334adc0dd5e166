"""Printing. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from simtrain.errors import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLAIN_WIDTH, _LEAST_WIDTH, _MOST_DIGITS = 120, 40, 6
_FORCED = {"FORCE_COLOR", "TTY_COMPATIBLE"}
"""Variables with which rich takes a file or a pipe for a terminal."""


def text_width() -> int:
    """Return COLUMNS or the width of the terminal; for a file or a pipe by default 120."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and len(columns) < _MOST_DIGITS:
        return max(int(columns), _LEAST_WIDTH)
    width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    return max(width, _LEAST_WIDTH) if width else _PLAIN_WIDTH


def has_colours() -> bool:
    """Return whether stdout shows colours, by the variables that rich reads too."""
    is_terminal = sys.stdout.isatty() or not _FORCED.isdisjoint(os.environ)
    return is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def emit(text: str, stream: TextIO | None = None) -> None:
    """Print text, by default to stdout, without characters that control the terminal."""
    emit_data(printable(text), stream)


def emit_data(text: str, stream: TextIO | None = None) -> None:
    """Write text unchanged, by default to stdout; a closed pipe (`| head`) is not an error."""
    stream = stream or sys.stdout
    try:
        print(text, end="", file=stream, flush=True)
    except BrokenPipeError:
        # Without this, Python would raise a second error when it flushes the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_page(page: RenderableType) -> None:
    """Print a page, wrapped to the width of the terminal, without trailing spaces.

    Text in brackets or between colons is a user's name, no markup of rich.
    """
    from rich.console import Console
    from rich.segment import Segment, Segments

    console = Console(width=text_width(), markup=False, emoji=False)
    rendered = console.render(page, console.options.update(highlight=console.is_terminal))
    # Clean the text but not the colours, which are escape sequences too.
    segments = [Segment(printable(each.text), each.style, each.control) for each in rendered]
    with console.capture() as capture:
        console.print(Segments(segments), end="")
    emit_data("".join(f"{line.rstrip()}\n" for line in capture.get().split("\n")[:-1]))


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Show a status line on stderr, a terminal; the yielded function changes its text."""
    if not (sys.stderr.isatty() or _FORCED & os.environ.keys()):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(printable(text))) as line:
        yield lambda text: line.update(Text(printable(text)))


@contextmanager
def progress_bar() -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal; yield a function of the phase, steps done, total and best."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Bar(Progress):
        """A progress bar with a note below it."""

        note = ""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            if self.note:
                yield Text(printable(self.note))

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    times = TimeElapsedColumn()
    with Bar(
        *columns, times, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("")

        def show_progress(phase: str, done: int, total: int, best: str = "") -> None:
            bar.note = f"best so far {best}" if best else ""
            bar.update(task, description=printable(phase), completed=done, total=total)

        yield show_progress


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
