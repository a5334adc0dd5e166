"""All named schedules on one pipeline: which are legal, and what each costs in time and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.errors import InputError
from simtrain.iteration.memory.report import FitVerdict
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_values
from simtrain.scenario.schedule_rules import numbers_of_chunks
from simtrain.schedules import NAMED
from simtrain.studies.answer import Answer
from simtrain.studies.simulation import simulate


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledIteration(PlainData):
    """An iteration with a named schedule; `bubble` is its share of the time, over all stages."""

    json_fields: ClassVar = keys("name chunks iteration_time_s bubble peak_bytes fits=fit.fits fit")

    result: Result
    name: str
    chunks: int
    iteration_time_s: float
    bubble: float
    peak_bytes: int
    fit: FitVerdict

    @classmethod
    def of(cls, result: Result) -> ScheduledIteration:
        """Return the figures of a result."""
        scenario, breakdown = result.scenario, result.breakdown
        return cls(
            result,
            scenario.schedule,
            scenario.num_chunks,
            result.iteration_time_s,
            breakdown.bubble_s / breakdown.total_s,
            result.memory.fullest.peak_bytes,
            result.fit,
        )


@dataclass(frozen=True, slots=True)
class RefusedSchedule(PlainData):
    """A named schedule that the scenario cannot have, and the first rule that it breaks."""

    json_fields: ClassVar = keys("name code reason")

    name: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScheduleComparison(Answer):
    """All named schedules on one pipeline."""

    json_fields: ClassVar = keys("schedule=base.schedule trials refused")

    base: Scenario
    trials: tuple[ScheduledIteration, ...]
    refused: tuple[RefusedSchedule, ...]

    @property
    def made_on(self) -> str:
        return self.base.cluster

    @property
    def headline(self) -> str:
        """The answer in one line: the fastest that surely fits, and what it saves."""
        fitting = [trial for trial in self.trials if trial.fit.fits_surely] or [*self.trials]
        best, counts = fitting[0], f"of {len(self.trials) + len(self.refused)} schedules"
        current = next((trial for trial in self.trials if trial.name == self.base.schedule), best)
        saved = 1 - best.iteration_time_s / current.iteration_time_s
        saves = (
            f"saves {saved:.1%} of {current.name}" if best is not current else "the scenario's own"
        )
        return f"{best.name}, {saves}, {counts}: {best.result.headline}"


def compare_schedules(
    scenario: Scenario, on_progress: Callable[[str], None] = lambda description: None
) -> ScheduleComparison:
    """Simulate a scenario with each named schedule that its pipeline allows.

    A schedule keeps the scenario's number of chunks per stage if it can. Otherwise it has its only
    number, or the smallest that divides the layers. Transfers are as the framework of each schedule
    has them. All other settings stay.

    Raises:
        InputError: the scenario itself breaks a rule.
    """
    check_values(scenario)
    legal, refused = list[ScheduledIteration](), list[RefusedSchedule]()
    for name in NAMED:
        on_progress(name)
        try:
            legal.append(ScheduledIteration.of(simulate(_with_schedule(scenario, name))))
        except InputError as error:
            problem = error.problems[0]
            refused.append(RefusedSchedule(name, problem.code, problem.message))
    legal.sort(key=lambda iteration: iteration.iteration_time_s)
    return ScheduleComparison(scenario, tuple(legal), tuple(refused))


def _with_schedule(scenario: Scenario, name: str) -> Scenario:
    """Return the scenario with another schedule, and with a number of chunks that it can have."""
    if name == scenario.schedule:
        return scenario
    family, chunks = NAMED[name], scenario.num_chunks
    if not family.allows_chunks(chunks):
        # The smallest number above 1 that divides the layers of each stage.
        several = filter(family.allows_chunks, numbers_of_chunks(scenario))
        fewest = next(several, family.fewest_chunks) if family.has_chunks else 1
        chunks = family.num_chunks or fewest
    changes = {"schedule": name, "parallelism.interleave": chunks, "overlap.pipeline": None}
    return scenario.replace(changes)
