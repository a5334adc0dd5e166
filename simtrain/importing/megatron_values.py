"""Read the values of Megatron-LM's arguments: numbers, flags and choices, and where they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from simtrain.errors import InputError, Location
from simtrain.importing.megatron_arguments import MAPPED
from simtrain.importing.shell import unknown_name
from simtrain.importing.source import Argument, Source, unknown_value

Number = TypeVar("Number", int, float)


class Reader:
    """The values of the arguments of a source; wrong ones are errors at their place."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def given(self, name: str) -> Argument | None:
        """An argument that has a value; a log also has those that were not given."""
        argument = self.source.arguments.get(name)
        return None if argument is None or argument.value == "None" else argument

    def known(self, name: str) -> Argument | None:
        """An argument with a value that is known.

        Raises:
            InputError: its value depends on something that the script does not say.
        """
        argument = self.given(name)
        if argument and (unknown := unknown_name(argument.value)):
            raise unknown_value(f"{argument.spelled} is {unknown}", unknown, argument.place)
        return argument

    def integer(self, name: str) -> int | None:
        """The value of an argument that is an integer, if it was given."""
        argument = self.known(name)
        return None if argument is None else converted(argument, int, "an integer")

    def decimal(self, name: str) -> float | None:
        """The value of an argument that is a number, if it was given."""
        argument = self.known(name)
        return None if argument is None else converted(argument, float, "a number")

    def flag(self, name: str, default: bool = False) -> bool:
        """Whether a flag is on."""
        argument = self.known(name)
        if argument is None:
            return default
        if argument.value not in ("True", "False"):
            raise wrong(argument, "takes no value")
        return argument.value == "True"

    def choice(self, name: str, values: dict[str, str], default: str) -> str:
        """What `values` has for the value of an argument."""
        argument = self.known(name)
        if argument is None:
            return values[default]
        # Printed arguments have the names of enumerations: AttnBackend.auto.
        value = argument.value.rpartition(".")[2]
        if value not in values:
            raise wrong(argument, f"must be one of {', '.join(values)} to be imported")
        return values[value]

    def origin(self, *names: str, otherwise: str = "default of Megatron-LM") -> str:
        """A comment: the arguments that were given, with their line."""
        given = [argument for name in names if (argument := self.given(name))]
        words = ", ".join(argument.spelled for argument in given)
        lines = sorted({argument.place.line for argument in given if argument.place.line})
        where = f", line {', '.join(map(str, lines))}" if lines else ""
        return f"{words}{where}" if given else otherwise

    def place(self, *names: str) -> Location | None:
        """Where the first of some arguments that was given stands."""
        return next((found.place for name in names if (found := self.given(name))), None)

    def first_given(self, name: str) -> str:
        """The name, or its older form for models with an encoder."""
        return name if self.given(name) else f"encoder_{name}"


CONTEXT_COMMUNICATION = {
    "p2p": "p2p",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "a2a": "a2a",
    "a2a+p2p": "a2a+p2p",
}
"""The values of --cp-comm-type; Transformer Engine's is all_gather, --help says allgather."""


def listed(argument: Argument) -> list[str]:
    """The values of an argument that takes several, which a log prints as a list."""
    return argument.value.translate(dict.fromkeys(map(ord, "[]'\","), " ")).split()


def converted(argument: Argument, kind: Callable[[str], Number], words: str) -> Number:
    """The value of an argument as a number.

    Raises:
        InputError: it is none.
    """
    try:
        return kind(argument.value)
    except ValueError:
        raise wrong(argument, f"is not {words}") from None


def wrong(argument: Argument, says: str) -> InputError:
    """The error of an argument whose value cannot be used."""
    return InputError.of(
        "E872",
        f"{argument.words} {says}",
        argument.place,
        f"correct it; it sets {MAPPED.get(argument.name, argument.name)}",
    )
