"""Result of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.errors import SimtrainError
from simtrain.hardware.evidence import Evidence
from simtrain.hardware.interval import Interval
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.fit import FitVerdict
from simtrain.iteration.report.breakdown import Breakdown
from simtrain.iteration.report.difference import causes_in_words, time_in_words
from simtrain.iteration.report.interval import evidence_for
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.studies.changes.change import setting_in_words
from simtrain.studies.evaluation import Evaluation, Evaluator, Run
from simtrain.studies.objectives import Objective, ObjectiveName
from simtrain.studies.search.exact_search import SearchOutcome
from simtrain.studies.search.legality import LegalPoints
from simtrain.studies.search.space import (
    COORDINATES,
    Point,
    Settings,
    in_short,
    num_gpus_in_words,
)
from simtrain.units import HOUR_S, Price, format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Candidate(PlainData):
    """A layout that fits, and its evaluation.

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
        return _configuration(Point.of(self.scenario), self.point.settings if self.point else ())

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
        return self.evaluation.gpu_seconds


def _configuration(layout: Point, settings: Settings) -> dict[str, Any]:
    coordinates = dict(zip(COORDINATES, layout, strict=False))
    recompute = layout.recompute.model_dump(exclude_unset=True)
    return coordinates | {"recompute": recompute} | dict(settings)


@dataclass(frozen=True, slots=True)
class FailedLayout(PlainData):
    """A legal layout whose evaluation ended in an error.

    Args:
        point: the layout.
        error: the error in words, with its kind if simtrain did not expect it.
    """

    json_fields: ClassVar = keys("configuration error")

    point: Point
    error: str

    @classmethod
    def of(cls, point: Point, error: Exception) -> FailedLayout:
        """Return the failure of a layout with an error."""
        kind = "" if isinstance(error, SimtrainError) else f"{type(error).__name__}: "
        return cls(point, f"{kind}{error}")

    @property
    def configuration(self) -> dict[str, Any]:
        """The layout's settings."""
        return _configuration(self.point, self.point.settings)

    @property
    def in_short(self) -> str:
        """The layout and the first line of its error."""
        settings = [setting_in_words(*setting) for setting in self.point.settings]
        return f"{', '.join([in_short(self.point), *settings])}: {self.error.partition(chr(10))[0]}"


@dataclass(frozen=True, slots=True)
class Refinement(PlainData):
    """The best layout that changes of single settings lead to.

    Args:
        layout: the refined layout.
        rank: the number of the layout in the ranking that was changed.
        changes: the changed fields with their values; none if no change is better.
        fields: the fields of which another value is legal.
        num_tried: legal changes, of all refined layouts.
        num_simulated: changes that were simulated.
    """

    json_fields: ClassVar = keys("**layout rank changes=changed fields num_tried num_simulated")

    layout: Candidate
    rank: int
    changes: Mapping[str, Any]
    fields: tuple[str, ...]
    num_tried: int
    num_simulated: int

    @property
    def changed(self) -> dict[str, Any]:
        """The changed fields as plain data."""
        return {
            field: value.model_dump(exclude_defaults=True)
            if isinstance(value, RecomputePolicy)
            else value
            for field, value in self.changes.items()
        }


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RankedLayout(Candidate):
    """A layout of a ranking.

    Args:
        price_of_million_tokens: in the profile's currency; None if the profile has no price.
        fit: whether it surely fits.
    """

    json_fields: ClassVar = Candidate.json_fields | keys("price_of_million_tokens fit")

    price_of_million_tokens: float | None
    fit: FitVerdict


@dataclass(frozen=True, slots=True)
class SearchResult(PlainData):
    """The best layouts of a space, and what is proved about them.

    Args:
        base: the scenario that was searched.
        gpus: the numbers of GPUs that were searched.
        objective: ranks the layouts.
        memory_bytes: memory of a GPU that may be used.
        limit_bytes: the largest peak that fits: `memory_bytes` without the margin.
        safe_bytes: the largest peak of a ranked layout, unless no layout is below it.
        legal: the legal layouts.
        outcome: counts and bounds of the search.
        candidates: the evaluated layouts of the outcome.
        top: the most layouts that are ranked.
        profile: the cluster's hardware profile.
        left_out: settings of the base that do not apply to some legal layouts.
        varied: fields that have several values among the legal layouts.
        held: fields of a layout that have one value.
        refinement: changes of single settings of the best layouts, if requested.
        base_layout: the layout of the base, if it is one of the searched ones and fits.
        failures: layouts and refined layouts that could not be evaluated.
    """

    json_fields: ClassVar = keys(
        """scenario=base.name cluster=base.cluster gpus calibrated=evidence.judged evidence
        objective=objective_name memory_bytes limit_bytes safe_bytes currency=price.currency
        num_configurations=legal.num_configurations num_legal num_illegal_by_rule
        left_out_where_illegal=left_out varied held unproved_schedules
        num_seen=outcome.num_seen num_fitting=outcome.num_fitting
        num_bounded=outcome.num_bounded num_simulated=outcome.num_simulated exact
        stopped=outcome.stopped num_unseen **bound gap reason best
        interval_s=interval ranked faster
        fastest_exact base_layout refined=refinement
        front failures"""
    )

    base: Scenario
    gpus: tuple[int, ...]
    objective: Objective
    memory_bytes: int
    limit_bytes: int
    safe_bytes: int
    legal: LegalPoints
    outcome: SearchOutcome
    candidates: Mapping[Point, Candidate]
    top: int
    profile: HardwareProfile
    left_out: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    refinement: Refinement | None = None
    base_layout: Candidate | None = None
    failures: tuple[FailedLayout, ...] = ()

    @property
    def objective_name(self) -> ObjectiveName:
        """Quantity by which the layouts are ranked."""
        return self.objective.name

    @property
    def exact(self) -> bool:
        """Whether it is proved that no other legal layout is better than a ranked one."""
        is_proved = self.outcome.exact or 0 < len(self.ranked) <= self.outcome.num_proved
        return is_proved and not self._has_failures

    @property
    def fastest_exact(self) -> bool:
        """Whether it is proved that no legal layout that fits, surely or not, is better than the
        first of `faster`, or of `ranked` if there is none.
        """
        return self.outcome.faster_exact and not self._has_failures

    @property
    def _has_failures(self) -> bool:
        """Whether a legal layout failed, of which nothing is proved."""
        return any(failure.point in self.legal.points for failure in self.failures)

    @property
    def evidence(self) -> Evidence:
        """What predictions with the profile rest on."""
        scenario = self.ranked[0].scenario if self.ranked else self.base
        return evidence_for(scenario, self.profile)

    @property
    def interval(self) -> Interval:
        """Where the measured time of the best layout lies."""
        best = self.ranked[0]
        return Evaluator().interval(best.evaluation.scenario, best.run.iteration_time_s)

    @property
    def num_legal(self) -> int:
        """Number of legal layouts."""
        return len(self.legal.points)

    @property
    def num_unseen(self) -> int:
        """Number of legal layouts with an unknown peak."""
        return len(self.legal.points) - self.outcome.num_seen

    @property
    def gap(self) -> float | None:
        """Largest possible distance of the best from the optimum, as a share of the optimum.

        For tokens per second: by how much the optimum may exceed the best, as a share of the best.
        None if there is no bound.
        """
        if self.outcome.bound is None:
            return None
        best = self.objective.key(self.ranked[0].evaluation)[0]
        ratio = self.outcome.bound / best if best < 0 else best / self.outcome.bound
        return ratio - 1

    @property
    def price(self) -> Price | None:
        """Price of a GPU, if the profile has one."""
        costs = self.profile.running_costs
        return costs.price.value if costs and costs.price else None

    def __repr__(self) -> str:
        best, counts = self.ranked[0], f"{len(self.legal.points):,} legal layouts"
        time = format_seconds(best.run.iteration_time_s)
        return f"<SearchResult {self.base.name or 'unnamed'}: best {time}, of {counts}>"

    def price_of_tokens(self, candidate: Candidate) -> float | None:
        """Price of a million tokens, in the price's currency."""
        if self.price is None:
            return None
        scenario = candidate.scenario
        gpu_hours = candidate.gpu_seconds / HOUR_S
        num_tokens = scenario.batch.global_ * scenario.model.seq_length
        return self.price.per_hour * gpu_hours / num_tokens * 1e6

    @property
    def reason(self) -> str | None:
        """Why the best is better than the runner-up; None if there is no runner-up."""
        if len(self.outcome.best) < 2:
            return None
        winner, other = (self.candidates[point] for point in self.outcome.best[:2])
        return reason(winner, other, self.objective)

    @property
    def bound(self) -> dict[str, float | None]:
        """The proved bound of the best, named after the objective's field."""
        side = "upper" if self.objective.is_maximised else "lower"
        bound = self.outcome.bound
        quantity = None if bound is None else self.objective.quantity(bound)
        return {f"{side}_bound_{self.objective.field}": quantity}

    @property
    def unproved_schedules(self) -> tuple[str, ...]:
        """Always empty: bounds hold for every schedule."""
        return ()

    @property
    def num_illegal_by_rule(self) -> dict[str, int]:
        """Number of layouts that each rule forbids, by the rule's code."""
        return dict(sorted(self.legal.removed.items()))

    @property
    def ranked(self) -> tuple[RankedLayout, ...]:
        """The best layouts with a peak of at most `safe_bytes`, in order.

        If there are none, the best of all that fit.
        """
        return tuple(map(self._ranked, self.outcome.best[: self.top]))

    @property
    def front(self) -> tuple[Candidate, ...]:
        """The best, and the best found of the layouts that need less and less memory."""
        return tuple(self.candidates[point] for point in self.outcome.front)

    @property
    def faster(self) -> tuple[RankedLayout, ...]:
        """The best layouts that are better than the ranked ones, but may not fit."""
        return tuple(map(self._ranked, self.outcome.faster))

    @property
    def best(self) -> RankedLayout:
        """The first of the ranked layouts."""
        return self.ranked[0]

    def _ranked(self, point: Point) -> RankedLayout:
        layout = self.candidates[point]
        return RankedLayout(
            layout.scenario,
            layout.evaluation,
            layout.point,
            price_of_million_tokens=self.price_of_tokens(layout),
            fit=self.fit_of(layout),
        )

    @property
    def is_safe(self) -> bool:
        """Whether the ranked layouts have a peak of at most `safe_bytes`."""
        return self.ranked[0].peak_bytes <= self.safe_bytes

    def fit_of(self, layout: Candidate) -> FitVerdict:
        """Return whether a layout surely fits, may not fit or does not fit."""
        return FitVerdict(layout.peak_bytes, self.memory_bytes, layout.evaluation.host_fits)

    @property
    def num_alike(self) -> int:
        """Number of first layouts that are as good as the best, as far as predictions can tell.

        The objective is one of time.
        """
        values = [self.objective.key(layout.evaluation)[0] for layout in self.ranked]
        most = 1 + self.interval.least_difference
        return sum(max(value / values[0], values[0] / value) <= most for value in values)


def reason(winner: Candidate, other: Candidate, objective: Objective) -> str:
    """Describe the winner's advantage, and the causes that make the difference.

    Percentages are shares of the other's iteration time.
    """
    key, other_key = objective.key(winner.evaluation), objective.key(other.evaluation)
    memory = _memory(winner, other)
    if key == other_key:
        return "equal in every ranked figure"
    if objective.ranks_memory:
        return memory if key[0] < other_key[0] else f"as small, and {_time(winner, other)}"
    if key[0] == other_key[0]:
        return f"as fast, and {memory}"
    gpus, other_gpus = winner.scenario.num_gpus, other.scenario.num_gpus
    instead = f"{num_gpus_in_words([gpus])} instead of {other_gpus}, " if gpus != other_gpus else ""
    return instead + _time(winner, other)


def _memory(winner: Candidate, other: Candidate) -> str:
    saved = other.evaluation.peak_bytes - winner.evaluation.peak_bytes
    return f"{format_bytes(abs(saved))} {'less' if saved >= 0 else 'more'} at the peak"


def _time(winner: Candidate, other: Candidate) -> str:
    both = winner.breakdown, other.breakdown
    return f"{time_in_words(*both)}: {causes_in_words(*both)} (percent of the other's time)"
