"""Options and arguments that several commands have, and checks of what is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from simtrain.base.resources import list_scenarios
from simtrain.commands.declare import Argument, Option
from simtrain.errors import InputError, Location


def settable_fields() -> Iterable[str]:
    """Return the fields of a scenario that --set can begin with."""
    from simtrain.base.strict_yaml.validation import settable_names
    from simtrain.scenario import Scenario

    return settable_names(Scenario)


SCENARIO = Argument(
    "SCENARIO",
    "Scenario file, or name of a scenario that comes with simtrain.",
    complete=list_scenarios,
)
ScenarioArgument = Annotated[str, SCENARIO]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set", "Set a field: parallelism.tensor=4. May be repeated.", complete=settable_fields
    ),
]
AllowOomOption = Annotated[
    bool, Option(help="Simulate a scenario that does not fit in memory, too.")
]
OUT = Option("-o --output")
"""The file or folder that a command writes; the ending of a file decides what it is."""
OutOption = Annotated[Path | None, OUT]


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
    """Parse an option's list of numbers, such as "0,1,63"; refuse another text (E118)."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        fix = "write integers separated by commas, such as 0,1,63"
        message = "is not a list of numbers"
        raise InputError.of("E118", message, Location(f"{option} {text}"), fix) from None


def parse_window_s(text: str, option: str) -> tuple[float, float]:
    """Parse a window of time such as "0s:2s" to its start and end; refuse another text (E118)."""
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
