"""Looking at points: how much memory each needs, and what its iteration comes to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simtrain.evaluation import Evaluation, Evaluator, Run
from simtrain.report.breakdown import Breakdown
from simtrain.scenario import Scenario
from simtrain.search.objective import Objective
from simtrain.search.space import Point, Space

Tell = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and of how much."""


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
    """What a search came to see: the best that fit, the best first, and how many there were.

    `nearest` is the point that misses least, if nothing that was seen fits.
    """

    best: tuple[Found, ...]
    num_seen: int
    num_fitting: int
    num_simulated: int
    nearest: Point | None = None


class Looker:
    """Looks at the points of a space, at each at most once.

    `limit_bytes` is what the peaks may not exceed.
    """

    def __init__(
        self, space: Space, evaluator: Evaluator, objective: Objective, limit_bytes: int
    ) -> None:
        self.space = space
        self.objective = objective
        self.limit_bytes = limit_bytes
        self.peak_bytes = functools.cache(lambda one: evaluator.peak_bytes(space.scenario(one)))
        self.evaluation = functools.cache(lambda one: evaluator.evaluate(space.scenario(one)))

    def fits(self, point: Point) -> bool:
        """Whether the point's peak is within the limit."""
        return self.peak_bytes(point) <= self.limit_bytes

    def key(self, point: Point) -> tuple[float, float]:
        """What to rank a point that fits by: less is better."""
        return self.objective.key(self.evaluation(point))

    def seen(
        self, best: Sequence[Point], num_seen: int, num_fitting: int, nearest: Point | None = None
    ) -> Seen:
        """What was seen, with the best points evaluated."""
        found = tuple(Found(self.space.scenario(point), self.evaluation(point)) for point in best)
        num_simulated = self.evaluation.cache_info().currsize
        return Seen(found, num_seen, num_fitting, num_simulated, nearest)
