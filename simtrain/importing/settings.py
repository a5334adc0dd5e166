"""Settings of an imported source, and the effects of settings that are not modelled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from simtrain.errors import Location, Problem, did_you_mean
from simtrain.strict_yaml import as_scalar


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the source: an argument, or a key with its value.

    Args:
        name: its name in the importer's tables.
        spelled: its name in the source, such as --bf16.
        value: its value; of an argument, the text.
        place: position in the source.
    """

    name: str
    spelled: str
    value: Any
    place: Location | None

    @property
    def words(self) -> str:
        """The setting in the source, such as --tensor-model-parallel-size 8."""
        is_flag = self.spelled.startswith("--") and self.value in ("True", "False")
        return self.spelled if is_flag else f"{self.spelled} {as_scalar(self.value)}"


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a setting that is not modelled.

    Args:
        text: the effect, in words.
        neutral: values without effect, in addition to None, [], and False (unless True is neutral).
        active: if not empty, the only values with an effect.
        details: names of settings that refine this one and have no effect without it, separated
            by blanks.
    """

    text: str
    neutral: tuple[str, ...] = ()
    details: str = ""
    active: tuple[str, ...] = ()

    def applies(self, value: Any) -> bool:
        """Whether the setting has an effect with this value."""
        if self.active:
            return str(value) in self.active
        off = () if "True" in self.neutral else ("False",)
        return str(value) not in (*self.neutral, *off, "None", "[]", "")


def unknown_setting(
    name: str, message: str, place: Location | None, known: Iterable[str]
) -> Problem:
    """Return the problem of a setting that is in none of an importer's tables.

    Args:
        name: its name in the source.
        message: what is wrong.
        place: position in the source.
        known: the known names, to suggest a similar one.
    """
    return Problem(
        "E871",
        message,
        place,
        reason="an ignored setting could change the time or the memory",
        fix=f"{did_you_mean(name, sorted(known))}Remove it if it affects neither time nor memory",
    )
