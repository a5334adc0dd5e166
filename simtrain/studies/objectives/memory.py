"""The peak memory of an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.studies.objectives.objective import Objective

if TYPE_CHECKING:
    from simtrain.scenario import Scenario


class PeakMemory(Objective):
    """The peak of the fullest stage."""

    name = "memory"
    text = "largest peak of a GPU"
    field = "peak_bytes"
    better = "smaller"
    ranks_memory = True

    def value(self, scenario: Scenario, time_s: float, peak_bytes: int) -> float:
        """Return the peak in bytes."""
        return peak_bytes

    def words(self, value: float) -> str:
        """Write the peak."""
        from simtrain.units import format_bytes

        return format_bytes(round(value))
