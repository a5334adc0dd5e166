"""Evaluates points of a space: peak memory, bounds and simulated iterations, each at most once."""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.iteration.plan import Plan
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.report.breakdown import Breakdown
from simtrain.scenario import Scenario
from simtrain.studies.choose import is_open
from simtrain.studies.evaluation import Evaluation, Evaluator, Run
from simtrain.studies.objectives.objective import Key, Objective
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.search.search_end import End
from simtrain.studies.search.space import COORDINATES, Point, Space
from simtrain.studies.variation.draws import least_share
from simtrain.units import format_bytes, format_seconds
from simtrain.workload.recompute import SAVE_ALL

ProgressCallback = Callable[[str, int, int, str], None]
"""Reports progress: the phase of a search, steps done, total steps, and the best so far."""


@dataclass(frozen=True, slots=True)
class Candidate(PlainData):
    """A point's scenario and its evaluation.

    Args:
        scenario: the layout.
        evaluation: its time and memory.
        point: where it is in a space; None for a layout of no space.
    """

    json_fields: ClassVar = keys(
        """configuration recompute num_gpus=scenario.num_gpus
        iteration_time_s=run.iteration_time_s gpu_seconds tokens_per_s=run.tokens_per_s
        mfu=run.mfu hfu=run.hfu peak_bytes=evaluation.peak_bytes
        capacity_bytes=evaluation.capacity_bytes breakdown_s=breakdown"""
    )

    scenario: Scenario
    evaluation: Evaluation
    point: Point | None = None

    def __repr__(self) -> str:
        split = self.scenario.parallelism
        degrees = f"tp {split.tensor}, dp {split.data}, pp {split.pipeline}"
        figures = f"{format_seconds(self.iteration_time_s)}, {format_bytes(self.peak_bytes)}"
        return f"<{type(self).__name__} {degrees}: {figures}>"

    @property
    def configuration(self) -> dict[str, Any]:
        """The settings that the search chose, and the recompute that it was asked for."""
        asked = self.scenario.recompute.model_dump(exclude_unset=True)
        coordinates = dict(zip(COORDINATES, Point.of(self.scenario), strict=False))
        settings = dict(self.point.settings) if self.point else {}
        return coordinates | {"recompute": asked} | settings

    @property
    def recompute(self) -> dict[str, Any]:
        """The recompute policy; the chosen one if it was `auto`."""
        chosen = self.evaluation.scenario.recompute
        return {"strategy": chosen.strategy} | chosen.model_dump(exclude_defaults=True)

    @property
    def run(self) -> Run:
        """The simulated iteration; every candidate fits."""
        assert self.evaluation.run is not None, "a candidate fits, so it was simulated"
        return self.evaluation.run

    @property
    def breakdown(self) -> Breakdown:
        """Time by cause, the mean over stages."""
        assert self.run.breakdown is not None, "the evaluator of a search returns breakdowns"
        return self.run.breakdown

    @property
    def iteration_time_s(self) -> float:
        """Time of an iteration."""
        return self.run.iteration_time_s

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the fullest stage."""
        return self.evaluation.peak_bytes

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds per iteration."""
        return self.evaluation.scenario.num_gpus * self.run.iteration_time_s


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The best candidates, the counts, and how much is proved of them.

    Args:
        best: the best candidates with a safe peak, in order; of all that fit, if none has one.
        num_seen: points with a known peak.
        num_fitting: number of these points that fit.
        num_bounded: number of fitting points with a close bound.
        num_simulated: number of fitting points that were simulated for the ranking. If recompute is
            `auto`, every fitting point is simulated before, to choose it.
        end: why the search ended.
        nearest: the point with the smallest peak, if no evaluated point fits.
        exact: whether no other legal point with a safe peak is better than one of the best.
        bound: lower bound of the objective over all legal points with a safe peak; None if there is
            none.
        num_proved: number of candidates that are proved to be the best of these points.
        front: the best, and the best found of those that need less and less memory.
        faster: the best of the candidates that are better than `best`, but may not fit.
        faster_exact: whether the first of `faster`, or else of `best`, is the best of all legal
            points that fit or may not fit.
    """

    best: tuple[Candidate, ...]
    num_seen: int
    num_fitting: int
    num_simulated: int
    end: End
    nearest: Point | None = None
    exact: bool = False
    bound: float | None = None
    num_bounded: int = 0
    num_proved: int = 0
    front: tuple[Candidate, ...] = ()
    faster: tuple[Candidate, ...] = ()
    faster_exact: bool = False

    @property
    def stopped(self) -> End | None:
        """Why the search ended early, if it did."""
        return self.end if self.end.is_early else None


NUM_FASTER = 3
"""Points that are shown of those that are better than the best safe one, but may not fit."""
FAILED_BYTES = sys.maxsize
"""Peak of a point that cannot be evaluated: it never fits."""
WORST: Key = (math.inf, 0.0)
UNBOUNDED: Key = (-math.inf, -math.inf)
"""Lower bound of every key."""
_T = TypeVar("_T")


class Explorer:
    """Evaluates points of a space, each at most once.

    A point that cannot be evaluated must not end a search, which would lose its ranking: its error
    is kept in `failures`, and it counts as a point that does not fit.

    Args:
        space: the searched space.
        evaluator: simulates scenarios and computes their memory.
        objective: ranks the points.
        limit_bytes: the largest peak that fits.
        safe_bytes: the largest peak of a point that may be the best; by default every peak that
            fits. Points with larger peaks are ranked apart.
    """

    def __init__(
        self,
        space: Space,
        evaluator: Evaluator,
        objective: Objective,
        limit_bytes: int,
        safe_bytes: int | None = None,
    ) -> None:
        self.space = space
        self.objective = objective
        self.limit_bytes = limit_bytes
        self.safe_bytes = limit_bytes if safe_bytes is None else safe_bytes
        self._machine = evaluator.machine_of(space.base)
        self.bounds = Bounds(self._machine)
        self.evaluations: dict[Point, Evaluation] = {}
        self.failures: dict[Point, Exception] = {}
        self.peaks_bytes: dict[Point, int] = {}
        self._states_bytes: dict[Point, int] = {}
        self._too_large: dict[Point, int] = {}
        self._evaluator = evaluator
        self._is_open = is_open(space.base)
        # Memory and time of a point are asked for in turn.
        self._plan = functools.lru_cache(maxsize=8)(self._new_plan)

    def attempt(self, point: Point, evaluate: Callable[[Point], _T], otherwise: _T) -> _T:
        """Return `evaluate(point)`, or `otherwise` if it fails now or has failed before."""
        if point in self.failures:
            return otherwise
        try:
            return evaluate(point)
        except Exception as error:
            self.failures[point] = error
            return otherwise

    def peak_bytes(self, point: Point) -> int:
        """Peak memory of a point."""
        known = self.peaks_bytes.get(point)
        if known is None:
            known = self.attempt(point, self._peak_bytes, FAILED_BYTES)
            self.peaks_bytes[point] = known
        return known

    def _peak_bytes(self, point: Point) -> int:
        if self._is_open:
            # Choosing the recompute simulates every variant that fits.
            return self.evaluation(point).peak_bytes
        return PlannedIteration(self._plan(point), self._machine).fit.peak_bytes

    def evaluation(self, point: Point) -> Evaluation:
        """Evaluate a point; it is simulated if it fits. Raises the error of a point that fails."""
        known = self.evaluations.get(point)
        if known is None:
            known = self._evaluator.evaluate(self.space.scenario(point))
            self.evaluations[point] = known
        return known

    def within(self, limit_bytes: int) -> Explorer:
        """Return an explorer with another limit, which shares what this one evaluates."""
        explorer = copy.copy(self)
        explorer.limit_bytes = explorer.safe_bytes = limit_bytes
        explorer._too_large = {}  # with this limit
        return explorer

    def fits(self, point: Point) -> bool:
        """Whether a point's peak is within the limit; quick bounds answer for most others."""
        peaks = self.states_bytes, self.least_peak_bytes, self.peak_bytes
        is_within = all(peak_bytes(point) <= self.limit_bytes for peak_bytes in peaks)
        return is_within and point not in self.failures

    def runs(self, point: Point) -> bool:
        """Simulate a point that fits; return whether that succeeds."""
        return self.key(point) is not WORST

    def key(self, point: Point) -> Key:
        """Ranking key of a point that fits; smaller is better."""
        return self.attempt(point, lambda point: self.objective.key(self.evaluation(point)), WORST)

    def least_key(self, point: Point) -> Key | None:
        """Quick lower bound of a point's key; None if the point cannot fit.

        A larger microbatch needs no less memory: if a smaller one cannot fit, it cannot.
        """
        alike = point._replace(micro=1)
        if point.micro > self._too_large.get(alike, math.inf):
            return None
        key = self.attempt(point, self._least_key, None)
        if key is None and point not in self.failures:
            self._too_large[alike] = point.micro
        return key

    def _least_key(self, point: Point) -> Key | None:
        if self._states_bytes_of(point) > self.limit_bytes:
            return None
        plan = self._plan(point)
        peak_bytes = self._least_peak_bytes(plan, self.limit_bytes)
        if peak_bytes > self.limit_bytes:
            return None
        return self._bound(plan, self.bounds.busy_s(plan), peak_bytes)

    def group_key(self, points: Sequence[Point]) -> Key | None:
        """Quickest lower bound of the keys of points that differ in ZeRO stage and recompute.

        It is None if the model states of none fit, and `UNBOUNDED` if it cannot be computed: each
        point's own bound then tells its error.
        """
        try:
            return self._group_key(dict.fromkeys(map(_without_recompute, points)))
        except Exception:
            return UNBOUNDED

    def _group_key(self, alike: Iterable[Point]) -> Key | None:
        peaks_bytes = {point: self._states_bytes_of(point) for point in alike}
        plans = [
            self._plan(point)
            for point, peak_bytes in peaks_bytes.items()
            if peak_bytes <= self.limit_bytes
        ]
        if not plans:
            return None
        least_s = min(map(self.bounds.layers_s, plans))
        return self._bound(plans[0], least_s, min(peaks_bytes.values()))

    def states_bytes(self, point: Point) -> int:
        """Lower bound of a point's peak: its model states."""
        return self.attempt(point, self._states_bytes_of, FAILED_BYTES)

    def _states_bytes_of(self, point: Point) -> int:
        # Layouts that differ only in what they keep of activations have the same states.
        alike = _without_recompute(point)._replace(micro=1)
        known = self._states_bytes.get(alike)
        if known is None:
            known = self._states_bytes[alike] = self.bounds.states_bytes(self._plan(alike))
        return known

    def least_peak_bytes(self, point: Point) -> int:
        """Lower bound of a point's peak memory."""
        return self.attempt(
            point, lambda point: self._least_peak_bytes(self._plan(point)), FAILED_BYTES
        )

    def _least_peak_bytes(self, plan: Plan, limit_bytes: float = math.inf) -> int:
        if self._is_open:
            return self.bounds.states_bytes(plan)
        return self.bounds.peak_bytes(plan, limit_bytes)

    def _new_plan(self, point: Point) -> Plan:
        """Plan of a point; without recompute if it is open, as recompute only adds time."""
        scenario = self.space.scenario(point)
        if self._is_open:
            scenario = scenario.model_copy(update={"recompute": SAVE_ALL})
        return PlannedIteration.of(scenario, self._machine).plan

    def close_key(self, point: Point) -> Key | None:
        """Close lower bound of a point's key, with its exact peak; None if it does not fit."""
        return self.attempt(point, self._close_key, None)

    def _close_key(self, point: Point) -> Key | None:
        peak_bytes = self.peak_bytes(point)
        if peak_bytes > self.limit_bytes:
            return None
        if self._is_open:
            return self.key(point)
        plan = self._plan(point)
        return self._bound(plan, self.bounds.iteration_s(plan), peak_bytes)

    def _bound(self, plan: Plan, least_s: float, peak_bytes: int) -> Key:
        """Return a key before that of a plan with at least this time without variation."""
        scenario = plan.scenario
        if self._is_drawn(scenario):
            least_s *= least_share(scenario, self._machine.profile)
        return self.objective.key_of(scenario, least_s, peak_bytes)

    def _is_drawn(self, scenario: Scenario) -> bool:
        return self.objective.draws is not None or scenario.variation.is_set

    @property
    def complete(self) -> End:
        """How a search ends that leaves out only points with a bound after the best."""
        is_drawn = any(map(self._is_drawn, self.space.bases))
        return End.FOUND_DRAWN if is_drawn else End.FOUND_ALL

    def candidates(self, points: Sequence[Point]) -> tuple[Candidate, ...]:
        """Return points with their scenarios and evaluations."""
        return tuple(
            Candidate(self.space.scenario(point), self.evaluation(point), point) for point in points
        )


def _without_recompute(point: Point) -> Point:
    return point._replace(recompute=SAVE_ALL)
