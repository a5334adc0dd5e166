"""Looking at points: how much memory each needs, and what its iteration comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from simtrain.evaluation import Evaluation, Evaluator, Run
from simtrain.report.breakdown import Breakdown
from simtrain.scenario import Scenario
from simtrain.search.bounds import Bounds
from simtrain.search.objective import Key, Objective
from simtrain.search.space import Point, Space
from simtrain.studies.choose import is_open

Tell = Callable[[str, int, int, str], None]
"""Is told the phase of a search, how much of it is done, of how much, and the best so far."""

Stopped = Literal["budget", "interrupt"]
"""Why a search ended before it had looked at everything."""

Stop = Callable[[], Stopped | None]
"""Asked again and again whether to stop, and why."""


def never() -> None:
    """Never stop."""


@dataclass(frozen=True, slots=True)
class Found:
    """The scenario that a point stands for, and what it comes to."""

    scenario: Scenario
    evaluation: Evaluation

    @property
    def run(self) -> Run:
        """The iteration, which was simulated as it fits."""
        assert self.evaluation.run is not None, "what does not fit is not among what was found"
        return self.evaluation.run

    @property
    def breakdown(self) -> Breakdown:
        """Where its time goes, the average over the stages."""
        assert self.run.breakdown is not None, "the evaluator of a search is asked for it"
        return self.run.breakdown

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds of an iteration."""
        return self.evaluation.scenario.num_gpus * self.run.iteration_time_s


@dataclass(frozen=True, slots=True)
class Seen:
    """What a search came to see.

    Args:
        best: the best that fit, the best first.
        num_seen: points of which it is known whether they fit.
        num_fitting: how many of these fit.
        num_bounded: of how many of these a close bound was found.
        num_simulated: how many of these were simulated to rank them. To choose recompute that is
            open, all that fit are simulated before.
        nearest: the point that misses least, if nothing that was seen fits.
        stopped: why the search ended early.
        exact: no legal point that is not among the best is better than one of them.
        bound: the objective of no legal point that fits is below this; None if nothing is proved.
        num_proved: how many of the best are proved to be the best of all legal points.
    """

    best: tuple[Found, ...]
    num_seen: int
    num_fitting: int
    num_simulated: int
    nearest: Point | None = None
    stopped: Stopped | None = None
    exact: bool = False
    bound: float | None = None
    num_bounded: int = 0
    num_proved: int = 0


class Look(NamedTuple):
    """The peak of a point and, if it fits, a lower bound of its key."""

    peak_bytes: int
    least_key: Key | None


class Looker:
    """Looks at the points of a space, at each at most once.

    `limit_bytes` is what the peaks may not exceed.
    """

    def __init__(
        self,
        space: Space,
        evaluator: Evaluator,
        objective: Objective,
        limit_bytes: int,
        bounds: Bounds | None = None,
    ) -> None:
        self.space = space
        self.objective = objective
        self.limit_bytes = limit_bytes
        self.bounds = bounds or Bounds(space.base, evaluator.machine_of(space.base))
        self.evaluations: dict[Point, Evaluation] = {}
        self.peaks_bytes: dict[Point, int] = {}
        self._evaluator = evaluator
        self._is_open = is_open(space.base)

    def peak_bytes(self, point: Point) -> int:
        """The point's peak."""
        known = self.peaks_bytes.get(point)
        if known is None:
            known = self.peaks_bytes[point] = self._peak_bytes(point)
        return known

    def _peak_bytes(self, point: Point) -> int:
        if self._is_open:
            # To choose the recompute is to simulate what fits of it.
            return self.evaluation(point).peak_bytes
        return self._evaluator.peak_bytes(self.space.scenario(point))

    def evaluation(self, point: Point) -> Evaluation:
        """The point simulated, if it fits."""
        known = self.evaluations.get(point)
        if known is None:
            known = self._evaluator.evaluate(self.space.scenario(point))
            self.evaluations[point] = known
        return known

    def fits(self, point: Point) -> bool:
        """Whether the point's peak is within the limit."""
        return self.peak_bytes(point) <= self.limit_bytes

    def key(self, point: Point) -> Key:
        """What to rank a point that fits by: less is better."""
        return self.objective.key(self.evaluation(point))

    def least_key(self, point: Point) -> Key | None:
        """A lower bound of the point's key, quickly found; None if it certainly does not fit."""
        scenario = self.space.scenario(point)
        peak_bytes = self.bounds.peak_bytes(scenario)
        if peak_bytes > self.limit_bytes:
            return None
        return self.objective.key_of(scenario, self.bounds.kernels_s(scenario), peak_bytes)

    def look(self, point: Point, *, bounded: bool) -> Look:
        """The point's peak and, if it fits and is to be bounded, a close bound of its key."""
        peak_bytes = self.peak_bytes(point)
        if not bounded or peak_bytes > self.limit_bytes:
            return Look(peak_bytes, None)
        if self._is_open:
            return Look(peak_bytes, self.key(point))
        scenario = self.space.scenario(point)
        time_s = self.bounds.iteration_s(scenario)
        return Look(peak_bytes, self.objective.key_of(scenario, time_s, peak_bytes))

    def found(self, best: Sequence[Point]) -> tuple[Found, ...]:
        """Points with their scenarios and evaluations."""
        return tuple(Found(self.space.scenario(point), self.evaluation(point)) for point in best)
