"""What stands beside a scenario in `simtrain compare`, other than scenarios: plug-ins read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simtrain.base.plug_ins import Parts
from simtrain.commands.output import Output
from simtrain.commands.question import Question


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """What the user wrote after `simtrain compare`.

    Args:
        questions: the scenarios, which no comparer takes, with their changes.
        files: the names that this comparer takes.
        output: how the comparison is printed.
        allow_oom: simulate scenarios that do not fit.
    """

    questions: Sequence[Question]
    files: Sequence[str]
    output: Output
    allow_oom: bool


class Comparer(ABC):
    """Compares a simulated scenario with files of a kind."""

    name: ClassVar[str]

    @abstractmethod
    def takes(self, file: Path) -> bool:
        """Return whether it reads this file."""

    @abstractmethod
    def compare(self, request: ComparisonRequest) -> None:
        """Print the comparison."""


COMPARERS = Parts[Comparer]("comparers", Comparer, ())
