"""What a plug-in answers that records programs: the options of `simtrain import --record`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simtrain.base.plug_ins import Parts


@dataclass(frozen=True, slots=True)
class Recorder:
    """A program to record. Without a plug-in, `simtrain import` has no options for one.

    A plug-in is a subclass, a dataclass too: its fields are options, and what their descriptions
    say is the help.
    """

    name: ClassVar[str] = ""

    @property
    def options(self) -> dict[str, object]:
        """The options that are given, by their names; --record comes first."""
        return {}

    def record(self, gpus: int, out: Path | None, overrides: Sequence[str], force: bool) -> None:
        """Record the program, write its scenario, and print what to do next."""


RECORDERS = Parts[Recorder]("recorders", Recorder, ())
