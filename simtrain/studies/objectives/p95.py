"""The time that 95 % of iterations take at most, if durations vary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.studies.objectives.objective import Key, Objective

if TYPE_CHECKING:
    from simtrain.scenario import Scenario
    from simtrain.studies.evaluation import Evaluation
    from simtrain.studies.search.explorer import Candidate
    from simtrain.studies.search.result import SearchResult

_DEVIATIONS = 5.0
"""Standard deviations of GPUs by which a bound allows for a lucky draw of all of them."""
_MOST_KNOWN = 256


class P95(Objective):
    """The 95th percentile of 100 drawn iterations, with what the section `variation` says.

    Layouts lose in which many ranks wait for each other often.
    """

    name = "p95"
    text = "time that 95 % of drawn iterations take at most (section variation)"
    field = "p95_time_s"
    better = "faster in 95 % of iterations"

    def value(self, scenario: Scenario, time_s: float, peak_bytes: int) -> float:
        """Return a bound: the time without variation, on GPUs that are all drawn fast.

        Noise does not shorten the time in the mean, because the longest path is a convex function
        of all durations (Jensen's inequality), and a 95th percentile is above the mean of its
        noise. Documents shorten attention, so with drawn documents there is no bound.
        """
        from simtrain.studies.variation.run import entries_on

        variation = scenario.variation
        if variation.sequence_lengths is not None:
            return 0.0
        spread = variation.gpu_spread
        if spread is None:
            spread = entries_on(scenario).gpu_spread.value
        return time_s * max(0.0, 1.0 - _DEVIATIONS * spread)

    def words(self, value: float) -> str:
        """Write the time."""
        from simtrain.units import format_seconds

        return format_seconds(value)

    def key(self, evaluation: Evaluation) -> Key:
        """Return the percentile, then the peak."""
        if evaluation.run is None:
            return float("inf"), evaluation.peak_bytes
        return _p95_s(evaluation), evaluation.peak_bytes

    def column(self, layout: Candidate, result: SearchResult) -> dict[str, str]:
        """Return the percentile."""
        return {"95 %\nwithin": self.words(self.key(layout.evaluation)[0])}


def _p95_s(evaluation: Evaluation) -> float:
    from simtrain.studies.variation.run import draw_times

    place = id(evaluation)
    if place not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        # The evaluation is kept too: the place of one that is gone may be used again.
        _KNOWN[place] = evaluation, draw_times(evaluation.scenario).p95
    return _KNOWN[place][1]


_KNOWN: dict[int, tuple[Evaluation, float]] = {}
"""The percentiles of the last evaluations, which are asked for several times."""
