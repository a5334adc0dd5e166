"""What an objective answers: its number to minimise, its words, and its column.

Modules of objectives import the simulator in functions or for types only: `--help` lists their
names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from simtrain.scenario import Scenario
    from simtrain.studies.evaluation import Evaluation
    from simtrain.studies.search.explorer import Candidate
    from simtrain.studies.search.result import SearchResult

Key = tuple[float, float]
"""Ranking key, smallest first: the objective and a tie-breaker."""


class Objective(ABC):
    """A quantity by which studies rank iterations."""

    name: ClassVar[str]
    """What `--objective` takes."""
    text: ClassVar[str]
    """What it is, for the help of `--objective`."""
    field: ClassVar[str]
    """Field of the quantity in results, and its column in sweeps."""
    better: ClassVar[str]
    """What an iteration with a better value is, as in "faster than 3 s"."""
    is_maximised: ClassVar[bool] = False
    """Whether larger quantities are better; the number to minimise is then the negative."""
    ranks_memory: ClassVar[bool] = False
    """Whether it ranks by peak memory, and equal peaks by time; otherwise the reverse."""
    needs_extrapolation: ClassVar[bool] = False
    """Whether it reads the extrapolated share of an evaluation's kernel time."""
    draws: ClassVar[int | None] = None
    """Draws of every iteration that it reads; None if it needs none."""

    @abstractmethod
    def value(self, scenario: Scenario, time_s: float, peak_bytes: int) -> float:
        """Return the number to minimise for an iteration with this time and peak.

        It grows with both, so that lower bounds of them give a lower bound of it.
        """

    @abstractmethod
    def words(self, value: float) -> str:
        """Write a number to minimise as the quantity with its unit."""

    def column(self, layout: Candidate, result: SearchResult) -> dict[str, str]:
        """Return its column and cell in tables of layouts, if they do not have it anyway."""
        return {}

    def key_of(self, scenario: Scenario, time_s: float, peak_bytes: int) -> Key:
        """Return the ranking key of an iteration with this time and peak; grows with both."""
        value = self.value(scenario, time_s, peak_bytes)
        return value, (time_s if self.ranks_memory else peak_bytes)

    def peak_of(self, key: Key) -> float:
        """Return the peak in a key of `key_of`: a bound, if the key is one."""
        return key[not self.ranks_memory]

    def key(self, evaluation: Evaluation) -> Key:
        """Return the ranking key of an evaluation. Those that do not fit rank last."""
        time_s = evaluation.run.iteration_time_s if evaluation.run else float("inf")
        return self.key_of(evaluation.scenario, time_s, evaluation.peak_bytes)

    def quantity(self, value: float) -> float:
        """Return the quantity of a number to minimise."""
        return -value if self.is_maximised else value

    def __repr__(self) -> str:
        return f"<Objective {self.name}>"
