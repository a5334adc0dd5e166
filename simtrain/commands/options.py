"""Options and arguments that several commands have, and checks of what is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from simtrain.commands.declare import Argument, Option
from simtrain.errors import InputError, Location


def _shipped(kind: str) -> Callable[[str], list[str]]:
    """Return a function that completes the names of what comes with simtrain."""

    def names(typed: str) -> list[str]:
        """Return the names that begin with the typed text."""
        from simtrain.base import resources

        return [name for name in getattr(resources, f"list_{kind}")() if name.startswith(typed)]

    return names


shipped_scenarios = _shipped("scenarios")
shipped_sweeps = _shipped("sweeps")
shipped_profiles = _shipped("profiles")
shipped_stacks = _shipped("stacks")


def error_codes(typed: str) -> list[str]:
    """Return the codes of errors that begin with the typed text."""
    from simtrain.render.explanations import codes

    return [code for code in codes() if code.startswith(typed.upper())]


def settable_fields(typed: str) -> list[str]:
    """Return the fields of a scenario that --set can begin with."""
    from simtrain.base.strict_yaml.validation import settable_names
    from simtrain.scenario import Scenario

    return [name for name in settable_names(Scenario) if name.startswith(typed)]


ScenarioArgument = Annotated[
    str,
    Argument(
        help="Scenario file, or name of a scenario that comes with simtrain.",
        autocompletion=shipped_scenarios,
    ),
]
SeveralScenarios = Argument(
    metavar="SCENARIO",
    help="Scenario files, or names of scenarios that come with simtrain.",
    autocompletion=shipped_scenarios,
)
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="Set a field: parallelism.tensor=4. May be repeated.",
        autocompletion=settable_fields,
    ),
]
AllowOomOption = Annotated[
    bool, Option("--allow-oom", help="Simulate even if the scenario does not fit in memory.")
]
OUT = Option("-o", "--output")
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
