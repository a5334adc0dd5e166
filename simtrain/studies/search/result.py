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
from simtrain.iteration.memory.report import FitVerdict
from simtrain.iteration.report.headline import iteration_line
from simtrain.iteration.report.result import evidence_for
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.studies.answer import Answer
from simtrain.studies.changes import setting_in_words
from simtrain.studies.evaluation import Evaluation, Evaluator, Run
from simtrain.studies.search.exact_search import SearchOutcome
from simtrain.studies.search.legality import LegalPoints
from simtrain.studies.search.space import COORDINATES, Point, Settings, in_short
from simtrain.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Candidate(PlainData):
    """A layout that fits, its evaluation, and where it is in a space."""

    json_fields: ClassVar = keys(
        """configuration recompute num_gpus=scenario.num_gpus
        iteration_time_s=run.iteration_time_s gpu_seconds=evaluation.gpu_seconds
        tokens_per_s=run.tokens_per_s mfu=run.mfu hfu=run.hfu peak_bytes=evaluation.peak_bytes
        capacity_bytes=evaluation.capacity_bytes breakdown_s=run.breakdown fit=evaluation.fit"""
    )

    scenario: Scenario
    evaluation: Evaluation
    point: Point

    def __repr__(self) -> str:
        split = self.scenario.parallelism
        degrees = f"tp {split.tensor}, dp {split.data}, pp {split.pipeline}"
        figures = f"{format_seconds(self.iteration_time_s)}, {format_bytes(self.peak_bytes)}"
        return f"<{type(self).__name__} {degrees}: {figures}>"

    @property
    def configuration(self) -> dict[str, Any]:
        return _configuration(Point.of(self.scenario), self.point.settings)

    @property
    def recompute(self) -> dict[str, Any]:
        """The recompute policy; the chosen one if it was `auto`."""
        chosen = self.evaluation.scenario.recompute
        return {"strategy": chosen.strategy} | chosen.model_dump(exclude_defaults=True)

    @property
    def run(self) -> Run:
        assert self.evaluation.run is not None, "a candidate fits, so it was simulated"
        return self.evaluation.run

    @property
    def fit(self) -> FitVerdict:
        return self.evaluation.fit

    @property
    def iteration_time_s(self) -> float:
        return self.run.iteration_time_s

    @property
    def peak_bytes(self) -> int:
        return self.evaluation.peak_bytes


def _configuration(layout: Point, settings: Settings) -> dict[str, Any]:
    coordinates = dict(zip(COORDINATES, layout, strict=False))
    recompute = layout.recompute.model_dump(exclude_unset=True)
    return coordinates | {"recompute": recompute} | dict(settings)


@dataclass(frozen=True, slots=True)
class FailedLayout(PlainData):
    """A legal layout whose evaluation ended in an error."""

    json_fields: ClassVar = keys("configuration error")

    point: Point
    exception: Exception

    @property
    def error(self) -> str:
        """The error in words, with its kind if simtrain did not expect it."""
        kind = type(self.exception).__name__
        return f"{'' if isinstance(self.exception, SimtrainError) else f'{kind}: '}{self.exception}"

    @property
    def configuration(self) -> dict[str, Any]:
        return _configuration(self.point, self.point.settings)

    @property
    def in_short(self) -> str:
        settings = [setting_in_words(*setting) for setting in self.point.settings]
        return f"{', '.join([in_short(self.point), *settings])}: {self.error.partition(chr(10))[0]}"


@dataclass(frozen=True, slots=True)
class Refinement(PlainData):
    """The best layout that changes of single settings lead to.

    Args:
        rank: the number of the layout in the ranking that was changed.
        num_tried: legal changes, of all refined layouts.
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
        return {
            field: value.model_dump(exclude_defaults=True)
            if isinstance(value, RecomputePolicy)
            else value
            for field, value in self.changes.items()
        }


@dataclass(frozen=True, slots=True, repr=False)
class SearchResult(Answer):
    """The best layouts of a space, and what is proved about them.

    Args:
        safe_bytes: the largest peak of a ranked layout, unless no layout is below it.
        ranked: the best layouts with a peak of at most `safe_bytes`, in order. If there are none,
            the best of all that fit.
        faster: the best layouts that are better than the ranked ones, but may not fit.
        left_out: settings of the base that do not apply to some legal layouts.
        base_layout: the layout of the base, if it is one of the searched ones and fits.
        no_base: why there is none.
    """

    json_fields: ClassVar = keys(
        """scenario=base.name cluster=base.cluster calibrated=evidence.judged evidence
        limit_bytes safe_bytes
        num_configurations=legal.num_configurations num_legal num_illegal_by_rule
        left_out_where_illegal=left_out
        num_seen=outcome.num_seen num_fitting=outcome.num_fitting
        num_bounded=outcome.num_bounded num_simulated=outcome.num_simulated exact
        stopped=outcome.stopped lower_bound_iteration_time_s=outcome.bound gap best
        interval_s=interval ranked faster
        fastest_exact base_layout refined=refinement failures"""
    )

    base: Scenario
    limit_bytes: int
    safe_bytes: int
    legal: LegalPoints
    outcome: SearchOutcome
    ranked: tuple[Candidate, ...]
    faster: tuple[Candidate, ...]
    profile: HardwareProfile
    left_out: tuple[str, ...] = ()
    refinement: Refinement | None = None
    base_layout: Candidate | None = None
    no_base: str = ""
    failures: tuple[FailedLayout, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether it is proved that no other legal layout is better than a ranked one."""
        return self.outcome.exact and not self._has_failures

    @property
    def fastest_exact(self) -> bool:
        """Whether it is proved that no legal layout that fits, surely or not, is better than the
        first of `faster`, or of `ranked` if there is none.
        """
        return self.outcome.faster_exact and not self._has_failures

    @property
    def _has_failures(self) -> bool:
        return any(failure.point in self.legal.points for failure in self.failures)

    @property
    def evidence(self) -> Evidence:
        return evidence_for(self.best.scenario, self.profile)

    @property
    def interval(self) -> Interval:
        return Evaluator().interval(self.best.evaluation.scenario, self.best.iteration_time_s)

    @property
    def num_legal(self) -> int:
        return len(self.legal.points)

    @property
    def gap(self) -> float | None:
        """Largest possible distance of the best from the optimum, as a share of the optimum.

        None if some legal layouts have no bound yet.
        """
        bound = self.outcome.bound
        return None if bound is None else self.best.iteration_time_s / bound - 1

    @property
    def made_on(self) -> str:
        return self.base.cluster

    @property
    def headline(self) -> str:
        """The answer in one line: the best that surely fits, and what it saves."""
        layout = self.answer
        scenario, split = layout.scenario, layout.scenario.parallelism
        interval = Evaluator().interval(layout.evaluation.scenario, layout.iteration_time_s)
        line = iteration_line(scenario, layout.run, interval, layout.fit)
        degrees = f"{split.tensor} x {split.pipeline} x {split.data}"
        return " ".join([f"{line}; {degrees}", *self.against_base(layout)])

    def against_base(self, layout: Candidate) -> list[str]:
        """Say what a layout saves of the time of the scenario's own one, or why that has none."""
        if self.base_layout is None:
            return [f"(the scenario's own layout {self.no_base})"] if self.no_base else []
        time_s, base_s = layout.iteration_time_s, self.base_layout.iteration_time_s
        if self.base_layout.point == layout.point and time_s == base_s:
            return ["is the scenario's own layout"]
        change = 1 - time_s / base_s
        words = f"saves {change:.1%} of" if change >= 0 else f"takes {-change:.1%} more than"
        return [f"{words} the scenario's own {format_seconds(base_s)}"]

    @property
    def num_illegal_by_rule(self) -> dict[str, int]:
        return dict(sorted(self.legal.removed.items()))

    @property
    def best(self) -> Candidate:
        return self.ranked[0]

    @property
    def answer(self) -> Candidate:
        """The best layout, with the options that a refinement changed; as safe as the ranking."""
        refinement = self.refinement
        return refinement.layout if refinement and refinement.changes else self.best

    @property
    def is_safe(self) -> bool:
        return self.best.peak_bytes <= self.safe_bytes

    @property
    def num_alike(self) -> int:
        """Number of first layouts that are as good as the best, as far as predictions can tell."""
        most_s = (1 + self.interval.least_difference) * self.best.iteration_time_s
        return sum(layout.iteration_time_s <= most_s for layout in self.ranked)
