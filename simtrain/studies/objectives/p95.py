"""The time that 95 % of iterations take at most, if durations vary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.studies.draw_request import DEFAULT_DRAWS
from simtrain.studies.objectives.objective import Key, Objective

if TYPE_CHECKING:
    from simtrain.scenario import Scenario
    from simtrain.studies.evaluation import Evaluation
    from simtrain.studies.search.explorer import Candidate
    from simtrain.studies.search.result import SearchResult


class P95(Objective):
    """The 95th percentile of 100 drawn iterations, with what the section `variation` says.

    Layouts lose in which many ranks wait for each other often.
    """

    name = "p95"
    text = "time that 95 % of drawn iterations take at most (section variation)"
    field = "p95_time_s"
    better = "faster in 95 % of iterations"
    draws = DEFAULT_DRAWS

    def value(self, scenario: Scenario, time_s: float, peak_bytes: int) -> float:
        """Return the time: that of a mean draw bounds the percentile, which is above the mean."""
        return time_s

    def words(self, value: float) -> str:
        """Write the time."""
        from simtrain.units import format_seconds

        return format_seconds(value)

    def key(self, evaluation: Evaluation) -> Key:
        """Return the percentile, then the peak."""
        run = evaluation.run
        if run is None:
            return float("inf"), evaluation.peak_bytes
        assert run.drawn is not None, "the evaluator draws as the objective needs"
        return run.drawn.p95, evaluation.peak_bytes

    def column(self, layout: Candidate, result: SearchResult) -> dict[str, str]:
        """Return the percentile."""
        return {"95 %\nwithin": self.words(self.key(layout.evaluation)[0])}
