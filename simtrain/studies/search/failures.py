"""Layouts that a search could not evaluate: they are left out of its ranking, and named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.errors import SimtrainError
from simtrain.studies.search.layout_words import in_short, setting_in_words
from simtrain.studies.search.space import COORDINATES, Point


@dataclass(frozen=True, slots=True)
class FailedLayout(PlainData):
    """A legal layout whose evaluation ended in an error.

    Args:
        point: the layout.
        error: the error in words, with its kind if simtrain did not expect it.
    """

    json_fields: ClassVar = keys("configuration error")

    point: Point
    error: str

    @classmethod
    def of(cls, point: Point, error: Exception) -> FailedLayout:
        """Return the failure of a layout with an error."""
        kind = "" if isinstance(error, SimtrainError) else f"{type(error).__name__}: "
        return cls(point, f"{kind}{error}")

    @property
    def configuration(self) -> dict[str, Any]:
        """The layout's settings."""
        coordinates = dict(zip(COORDINATES, self.point, strict=False))
        recompute = self.point.recompute.model_dump(exclude_unset=True)
        return coordinates | {"recompute": recompute} | dict(self.point.settings)

    @property
    def in_short(self) -> str:
        """The layout and the first line of its error."""
        settings = [setting_in_words(*setting) for setting in self.point.settings]
        return f"{', '.join([in_short(self.point), *settings])}: {self.error.partition(chr(10))[0]}"
