"""Result of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.evidence import Evidence
from simtrain.hardware.interval import Interval
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.fit import FitVerdict
from simtrain.iteration.report.difference import causes_in_words, time_in_words
from simtrain.iteration.report.interval import evidence_for
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives.objective import Objective
from simtrain.studies.objectives.registry import ObjectiveName
from simtrain.studies.search.explorer import Candidate, SearchOutcome
from simtrain.studies.search.failures import FailedLayout
from simtrain.studies.search.layout_words import num_gpus_in_words
from simtrain.studies.search.legality import LegalPoints
from simtrain.studies.search.refinement import Refinement
from simtrain.studies.variation.draws import draws_of
from simtrain.units import HOUR_S, Price, format_bytes, format_seconds


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
        draws interval_s=interval ranked faster
        fastest_exact base_layout refined=refinement
        front=outcome.front failures"""
    )

    json_omits_none: ClassVar = frozenset({"draws"})

    base: Scenario
    gpus: tuple[int, ...]
    objective: Objective
    memory_bytes: int
    limit_bytes: int
    safe_bytes: int
    legal: LegalPoints
    outcome: SearchOutcome
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
    def draws(self) -> tuple[int, ...] | None:
        """Draws of each ranked layout that varies, whose time is their mean; absent without one."""
        varied = (layout for layout in self.ranked if layout.scenario.variation.is_set)
        return draws_of(layout.run.drawn for layout in varied)

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
        return reason(self.outcome.best[0], self.outcome.best[1], self.objective)

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
    def faster(self) -> tuple[RankedLayout, ...]:
        """The best layouts that are better than the ranked ones, but may not fit."""
        return tuple(map(self._ranked, self.outcome.faster))

    @property
    def best(self) -> RankedLayout:
        """The first of the ranked layouts."""
        return self.ranked[0]

    def _ranked(self, layout: Candidate) -> RankedLayout:
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
