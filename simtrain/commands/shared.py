"""Shared options and printing of commands. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.engine import Engine
    from simtrain.report.result import Result
    from simtrain.scenario import Scenario

_PLAIN_WIDTH = 120


def shipped_scenarios(typed: str) -> list[str]:
    """Names of shipped scenarios that begin with the typed text, for shell completion."""
    from simtrain.resources import list_scenarios

    return [name for name in list_scenarios() if name.startswith(typed)]


ScenarioArgument = Annotated[
    str,
    typer.Argument(
        help="A scenario file, or the name of one that comes with simtrain.",
        autocompletion=shipped_scenarios,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field: parallelism.tensor=4. May be repeated."),
]
AllowOomOption = Annotated[
    bool, typer.Option("--allow-oom", help="Simulate even if it does not fit in memory.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON in full precision.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write pictures into this folder, PNG and SVG.")
]

StagesOption = Annotated[
    str | None, typer.Option("--stages", help="Stages to show, such as 0,1,63. Default: all.")
]
WindowOption = Annotated[
    str | None,
    typer.Option("--window", help="Time to show, such as 0s:2s or 500ms:1s. Default: all."),
]


def parse_numbers(text: str | None, option: str) -> list[int] | None:
    """Read an option's list of numbers such as "0,1,63"; None stays None.

    Raises:
        InputError: it is no list of whole numbers (E118).
    """
    if text is None:
        return None
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        fix = "write whole numbers with commas between them, such as 0,1,63"
        message = "is not a list of numbers"
        raise InputError.of("E118", message, Location(f"{option} {text}"), fix) from None


def parse_window_s(text: str | None, option: str = "--window") -> tuple[float, float] | None:
    """Read the start and the end of a window such as "0s:2s", in seconds; None stays None.

    Raises:
        InputError: it is not two times (E118).
    """
    from simtrain.units import UnitError, parse_non_negative_seconds

    if text is None:
        return None
    start, colon, end = text.partition(":")
    try:
        if colon:
            return parse_non_negative_seconds(start), parse_non_negative_seconds(end)
        message = 'has no ":" between a start and an end'
    except UnitError as error:
        message = str(error)
    fix = "write a start and an end with units, such as 0s:2s or 500ms:1s"
    raise InputError.of("E118", message, Location(f"{option} {text}"), fix)


def show(
    as_json: bool,
    data: Callable[[], dict[str, Any]],
    page: Callable[[], Any],
    cluster: str | Sequence[str] | None = None,
) -> None:
    """Print the data as JSON, or the page as text.

    Args:
        as_json: whether to print JSON.
        data: returns the data.
        page: returns the page.
        cluster: profiles that made the data; JSON names them with their hash and the version.
    """
    if as_json:
        from simtrain.provenance import provenance

        made_with: dict[str, Any] = {}
        if isinstance(cluster, str):
            made_with = {"made_with": provenance(cluster)}
        elif cluster:
            made_with = {"made_with": [provenance(one) for one in dict.fromkeys(cluster)]}
        emit(json.dumps(data() | made_with, indent=2, allow_nan=False) + "\n")
        return
    print_page(page())


def print_page(page: RenderableType) -> None:
    """Print a page at the terminal's width."""
    console = Console(width=text_width())
    with console.capture() as capture:
        console.print(page)
    emit(capture.get())


def listing(rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows of names and a text; a terminal wraps the text, a pipe gets one line."""
    table = list(rows)
    widths = [max(map(len, column), default=0) for column in list(zip(*table, strict=True))[:-1]]
    is_terminal = Console().is_terminal
    for *names, text in table:
        start = "".join(f"{name:{width}}  " for name, width in zip(names, widths, strict=True))
        if not is_terminal:
            emit(f"{start}{text}".rstrip() + "\n")
            continue
        blank = " " * len(start)
        wrapped = textwrap.wrap(text, max(text_width() - len(start), 20)) or [""]
        emit(
            "".join(
                f"{left}{line}\n"
                for left, line in zip([start, *[blank] * (len(wrapped) - 1)], wrapped, strict=True)
            )
        )


def text_width() -> int:
    """Width of the terminal in columns; a constant for a file or a pipe."""
    console = Console()
    return console.width if console.is_terminal else _PLAIN_WIDTH


def emit(text: str, stream: TextIO | None = None) -> None:
    """Write to stdout or another stream; a closed pipe (`| head`) is not an error."""
    stream = stream or sys.stdout
    try:
        print(text, end="", file=stream, flush=True)
    except BrokenPipeError:
        # Prevents a second error when Python flushes the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def simulated(scenario: Scenario, allow_oom: bool, engine: Engine = "auto") -> Result:
    """Simulate a scenario and show the status.

    Raises:
        DoesNotFitError: it needs more memory than a GPU has, unless `allow_oom` is given.
    """
    from simtrain.simulation import simulate, simulate_fitting

    with status(f"simulating {scenario.name}") as show_status:
        if allow_oom:
            return simulate(scenario, engine=engine)
        return simulate_fitting(scenario, show_status, engine)


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Show a status line; the yielded function changes it."""
    with Console(stderr=True).status(Text(text)) as line:
        yield lambda text: line.update(Text(text))
