"""Parse the values of Megatron-LM's arguments: numbers, flags and choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from simtrain.errors import InputError, Location
from simtrain.importing.megatron_arguments import MAPPED
from simtrain.importing.shell import unknown_name
from simtrain.importing.source import Argument, Source, unknown_value

Number = TypeVar("Number", int, float)


class Reader:
    """Reads values of arguments; an invalid value is an error with its position."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def given(self, name: str) -> Argument | None:
        """Return an argument if it is set; a log also prints arguments that are not set."""
        argument = self.source.arguments.get(name)
        return None if argument is None or argument.value == "None" else argument

    def known(self, name: str) -> Argument | None:
        """Return an argument if it is set.

        Raises:
            InputError: the script does not define its value.
        """
        argument = self.given(name)
        if argument and (unknown := unknown_name(argument.value)):
            raise unknown_value(f"{argument.spelled} is {unknown}", unknown, argument.place)
        return argument

    def integer(self, name: str) -> int | None:
        """Return the value of an integer argument, or None if it is not set."""
        argument = self.known(name)
        return None if argument is None else converted(argument, int, "an integer")

    def decimal(self, name: str) -> float | None:
        """Return the value of a numeric argument, or None if it is not set."""
        argument = self.known(name)
        return None if argument is None else converted(argument, float, "a number")

    def flag(self, name: str, default: bool = False) -> bool:
        """Return whether a flag is on."""
        argument = self.known(name)
        if argument is None:
            return default
        if argument.value not in ("True", "False"):
            raise wrong(argument, "takes no value")
        return argument.value == "True"

    def choice(self, name: str, values: dict[str, str], default: str) -> str:
        """Map the value of an argument with `values`; map `default` if it is not set."""
        argument = self.known(name)
        if argument is None:
            return values[default]
        # Logs print members of enumerations, such as AttnBackend.auto.
        value = argument.value.rpartition(".")[2]
        if value not in values:
            raise wrong(argument, f"must be one of {', '.join(values)}")
        return values[value]

    def origin(self, *names: str, otherwise: str = "default of Megatron-LM") -> str:
        """Return a comment with the names and lines of the arguments that are set."""
        given = [argument for name in names if (argument := self.given(name))]
        words = ", ".join(argument.spelled for argument in given)
        lines = sorted({argument.place.line for argument in given if argument.place.line})
        where = f", line {', '.join(map(str, lines))}" if lines else ""
        return f"{words}{where}" if given else otherwise

    def place(self, *names: str) -> Location | None:
        """Return the position of the first argument that is set."""
        return next((found.place for name in names if (found := self.given(name))), None)

    def first_given(self, name: str) -> str:
        """Return the name if it is set, or else its older form for encoders."""
        return name if self.given(name) else f"encoder_{name}"


CONTEXT_COMMUNICATION = {
    "p2p": "p2p",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "a2a": "a2a",
    "a2a+p2p": "a2a+p2p",
}
"""The values of --cp-comm-type; Transformer Engine writes all_gather, and --help allgather."""


def listed(argument: Argument) -> list[str]:
    """Return the values of an argument with several values, which a log prints as a list."""
    return argument.value.translate(dict.fromkeys(map(ord, "[]'\","), " ")).split()


def converted(argument: Argument, kind: Callable[[str], Number], words: str) -> Number:
    """Convert the value of an argument to a number.

    Raises:
        InputError: the value is not a number of this kind.
    """
    try:
        return kind(argument.value)
    except ValueError:
        raise wrong(argument, f"is not {words}") from None


def wrong(argument: Argument, says: str) -> InputError:
    """Return the error about the value of an argument."""
    return InputError.of(
        "E872",
        f"{argument.words} {says}",
        argument.place,
        f"correct the argument, which sets {MAPPED.get(argument.name, argument.name)}",
    )
