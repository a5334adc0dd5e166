"""The time that few measured runs exceed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.studies.objectives.objective import Key, Objective

if TYPE_CHECKING:
    from simtrain.hardware.interval import ExpectedErrors
    from simtrain.scenario import Scenario
    from simtrain.studies.evaluation import Evaluation
    from simtrain.studies.search.explorer import Candidate
    from simtrain.studies.search.result import SearchResult


class Robust(Objective):
    """The upper end of the 90 % interval of the measured time.

    Among layouts on one machine, those lose whose kernels are extrapolated; among machines, those
    whose predictions were judged least.
    """

    name = "robust"
    text = "upper end of the 90 % interval of the measured time"
    field = "robust_time_s"
    better = "surely faster"
    needs_extrapolation = True

    def value(self, scenario: Scenario, time_s: float, peak_bytes: int) -> float:
        """Return the upper end if nothing is extrapolated, which makes it later."""
        return time_s * _upper(scenario, 0.0)

    def words(self, value: float) -> str:
        """Write the time."""
        from simtrain.units import format_seconds

        return format_seconds(value)

    def key(self, evaluation: Evaluation) -> Key:
        """Return the upper end with what is extrapolated, then the peak."""
        run = evaluation.run
        if run is None:
            return float("inf"), evaluation.peak_bytes
        share = run.extrapolated or 0.0
        return run.iteration_time_s * _upper(evaluation.scenario, share), evaluation.peak_bytes

    def column(self, layout: Candidate, result: SearchResult) -> dict[str, str]:
        """Return the upper end."""
        return {"at\nmost": self.words(self.key(layout.evaluation)[0])}


def _upper(scenario: Scenario, extrapolated: float) -> float:
    """Return the upper end of the interval as a multiple of the predicted time."""
    from simtrain.hardware.interval import errors_of
    from simtrain.hardware.load import profile_of, profile_version
    from simtrain.iteration.report.interval import run_kind

    changes = repr(scenario.hardware) if scenario.hardware else ""
    key = (
        *(scenario.cluster, changes, profile_version(scenario)),
        *(scenario.software.stack, scenario.precision.compute, scenario.model.experts is None),
        scenario.num_gpus,
    )
    # Searches and sweeps ask for thousands of layouts of few kinds.
    if key not in _ERRORS:
        if len(_ERRORS) >= _MOST_KINDS:
            _ERRORS.clear()
        _ERRORS[key] = errors_of(run_kind(scenario, profile_of(scenario)))
    return _ERRORS[key].around(1.0, extrapolated).p95_s


_MOST_KINDS = 64
_ERRORS: dict[object, ExpectedErrors] = {}
"""The errors of the kinds that were asked for."""
