"""Options shared by commands, and printing. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from simtrain.errors import InputError, Location, printable

if TYPE_CHECKING:
    from simtrain.engine import Engine
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario

MISSED = 4
"""Exit code if an error is above its threshold, or nothing meets the limits."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
_PLAIN_WIDTH, _LEAST_WIDTH, _MOST_DIGITS = 120, 40, 6


def shipped_scenarios(typed: str) -> list[str]:
    """Return the shipped scenarios whose names begin with the typed text, for completion."""
    from simtrain.base.resources import list_scenarios

    return [name for name in list_scenarios() if name.startswith(typed)]


def shipped_sweeps(typed: str) -> list[str]:
    """Return the shipped sweeps whose names begin with the typed text, for completion."""
    from simtrain.base.resources import list_sweeps

    return [name for name in list_sweeps() if name.startswith(typed)]


def shipped_profiles(typed: str) -> list[str]:
    """Return the shipped profiles whose names begin with the typed text, for completion."""
    from simtrain.base.resources import list_profiles

    return [name for name in list_profiles() if name.startswith(typed)]


def shipped_stacks(typed: str) -> list[str]:
    """Return the shipped software stacks whose names begin with the typed text, for completion."""
    from simtrain.base.resources import list_stacks

    return [name for name in list_stacks() if name.startswith(typed)]


def error_codes(typed: str) -> list[str]:
    """Return the codes of errors that begin with the typed text, for completion."""
    from simtrain.scenario.explanations import explanations

    return [code for code in explanations() if code.startswith(typed.upper())]


def settable_fields(typed: str) -> list[str]:
    """Return what --set can begin with: fields of a scenario, clusters and software stacks."""
    from simtrain.base.resources import list_stacks
    from simtrain.base.strict_yaml.model_fields import settable_names
    from simtrain.scenario import Scenario

    names = [f"{name}=" for name in settable_names(Scenario)]
    names += [f"cluster={name}" for name in shipped_profiles("")]
    names += [f"software={name}" for name in list_stacks()]
    return [name for name in names if name.startswith(typed)]


def scalable_resources(typed: str) -> list[str]:
    """Return what --scale can begin with: the resources of a cluster."""
    from simtrain.hardware.upgrades import RESOURCES

    return [f"{name}=" for name in RESOURCES if name.startswith(typed)]


ScenarioArgument = Annotated[
    str,
    typer.Argument(
        help="Scenario file, or name of a scenario that comes with simtrain.",
        autocompletion=shipped_scenarios,
    ),
]
SeveralScenarios = typer.Argument(
    metavar="SCENARIO",
    help="Scenario files, or names of scenarios that come with simtrain.",
    autocompletion=shipped_scenarios,
)
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Set a field: parallelism.tensor=4. May be repeated.",
        autocompletion=settable_fields,
    ),
]
ScaleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scale",
        help="More or less of a resource of the cluster: network=2x, tensor_cores=0.5. May be "
        "repeated.",
        autocompletion=scalable_resources,
    ),
]
AllowOomOption = Annotated[
    bool, typer.Option("--allow-oom", help="Simulate even if the scenario does not fit in memory.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON in full precision.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for pictures (PNG and SVG).")]
HtmlFileOption = Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")]
SweepFolderArgument = Annotated[Path, typer.Argument(help="Folder with the results of a sweep.")]
ScenarioFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Folder for a scenario file per layout, or a file for a page: answer.html. Scenario "
        "files of an older run on the scenario are removed unless they were edited.",
    ),
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        help="End after this time with the best layouts so far. Ctrl-C does the same; a second "
        "Ctrl-C ends immediately.",
    ),
]


def all_overrides(overrides: list[str] | None, scale: list[str] | None) -> list[str]:
    """Return the overrides of --set, and those that stand for --scale.

    Raises:
        InputError: --scale names no resource, or its factor is not a number above 0 (E208).
    """
    from simtrain.hardware.scaling import scale_overrides

    return [*(overrides or ()), *scale_overrides(scale or ())]


def refuse(options: Mapping[str, object], message: str, fix: str = "remove it") -> None:
    """Refuse options and arguments that do not fit the others.

    Args:
        options: values by name; the first that is given is named. False, None and [] are not given.
        message: what is wrong with it.
        fix: what to write instead.

    Raises:
        InputError: one of them is given (E908).
    """
    for name, value in options.items():
        if value:
            raise InputError.of("E908", message, Location(name), fix)


def parse_numbers(text: str, option: str) -> list[int]:
    """Parse an option's list of numbers, such as "0,1,63".

    Raises:
        InputError: the text is not a list of integers (E118).
    """
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        fix = "write integers separated by commas, such as 0,1,63"
        message = "is not a list of numbers"
        raise InputError.of("E118", message, Location(f"{option} {text}"), fix) from None


def parse_window_s(text: str, option: str) -> tuple[float, float]:
    """Parse a window of time such as "0s:2s" to its start and end in seconds.

    Raises:
        InputError: the text is not two times (E118).
    """
    from simtrain.units import UnitError, parse_non_negative_seconds

    start, colon, end = text.partition(":")
    try:
        if colon:
            return parse_non_negative_seconds(start), parse_non_negative_seconds(end)
        message = 'has no ":" between its start and its end'
    except UnitError as error:
        message = str(error)
    fix = "write a start and an end with units, such as 0s:2s or 500ms:1s"
    raise InputError.of("E118", message, Location(f"{option} {text}"), fix)


def show_json(data: dict[str, Any], cluster: str | Sequence[str] | None = None) -> None:
    """Print JSON data with the version of their schema, and what they were made with.

    Args:
        data: the data.
        cluster: hardware profiles of the result. They are named with their hash and with the
            version of simtrain (`made_with`).
    """
    from simtrain.base.plain_data import SCHEMA_VERSION
    from simtrain.base.provenance import provenance

    made_with: dict[str, Any] = {}
    if isinstance(cluster, str):
        made_with = {"made_with": provenance(cluster)}
    elif cluster:
        made_with = {"made_with": [provenance(name) for name in dict.fromkeys(cluster)]}
    emit_data(
        json.dumps({"schema_version": SCHEMA_VERSION} | data | made_with, indent=2, allow_nan=False)
        + "\n"
    )


def print_page(page: RenderableType, width: int | None = None) -> None:
    """Print a page, wrapped to a width, by default that of the terminal, without trailing spaces.

    Text in brackets or between colons is a user's name, no markup of rich.
    """
    console = Console(width=width or text_width(), markup=False, emoji=False)
    # Clean the text but not the colours, which are escape sequences too.
    segments = [
        Segment(printable(segment.text), segment.style, segment.control)
        for segment in console.render(page)
    ]
    with console.capture() as capture:
        console.print(Segments(segments), end="")
    emit_data("".join(f"{line.rstrip()}\n" for line in capture.get().split("\n")[:-1]))


def print_or_write(
    text: str, file: Path | None, note: str = "", command: str = "", replaces: bool | None = None
) -> None:
    """Print a scenario, or write it to a file, and a command that runs it.

    Args:
        text: the scenario.
        file: where to write it; None prints it.
        note: words after the name of the file.
        command: what to do with it; by default, run it.
        replaces: whether a file that exists is replaced; None if no option says so.
    """
    from simtrain.base.output_folder import write_new
    from simtrain.scenario import load_unchecked

    if file is None:
        emit(text)
        return
    write_new(file, text, load_unchecked, replaces)
    emit(f"Wrote {file}{note}. Run it with: {command or f'simtrain run {file}'}\n")


def page_of(out: Path | None) -> Path | None:
    """Return --out if it is a page, and not a folder; check that it can be written."""
    from simtrain.base.output_folder import check_writable
    from simtrain.render.html.document import SUFFIXES

    if out is None or out.suffix not in SUFFIXES:
        return None
    check_writable(out, "the page")
    return out


def with_files(rows: Iterable[dict[str, Any]], files: Iterable[Path]) -> None:
    """Add to each row of JSON data the file of its scenario; without files add nothing."""
    for row, file in zip(rows, files, strict=False):
        row["file"] = str(file)


def text_width() -> int:
    """Return the width of the terminal; for a file or a pipe that of COLUMNS, by default 120."""
    console, columns = Console(), os.environ.get("COLUMNS", "")
    if console.is_terminal:
        return console.width
    is_width = columns.isascii() and columns.isdecimal() and len(columns) < _MOST_DIGITS
    return max(int(columns), _LEAST_WIDTH) if is_width else _PLAIN_WIDTH


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


def simulate_with_status(scenario: Scenario, allow_oom: bool, engine: Engine = "auto") -> Result:
    """Simulate a scenario while a status line is shown.

    Raises:
        DoesNotFitError: the scenario does not fit in memory, and `allow_oom` is false.
    """
    from simtrain.studies.simulation import simulate, simulate_fitting

    with status(f"simulating {scenario.name}") as show_status:
        if allow_oom:
            return simulate(scenario, engine=engine)
        return simulate_fitting(scenario, show_status, engine)


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Show a status line on stderr; the yielded function changes its text."""
    with Console(stderr=True).status(Text(printable(text))) as line:
        yield lambda text: line.update(Text(printable(text)))
