"""The time of an iteration, or of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.studies.objectives.objective import Objective

if TYPE_CHECKING:
    from simtrain.scenario import Scenario


class Time(Objective):
    """Iteration time. On one number of GPUs, cost and tokens per second rank like it."""

    name = "time"
    text = "time of an iteration"
    field = "iteration_time_s"
    better = "faster"

    def value(self, scenario: Scenario, time_s: float, peak_bytes: int) -> float:
        """Return the time in seconds."""
        return time_s

    def words(self, value: float) -> str:
        """Write the time."""
        from simtrain.units import format_seconds

        return format_seconds(value)
