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
from simtrain.schedules.family import ScheduleFamily
from simtrain.studies.answer import Answer
from simtrain.studies.changes import try_each
from simtrain.studies.simulation import simulate


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledIteration(PlainData):
    """An iteration with a named schedule."""

    json_fields: ClassVar = keys("name chunks iteration_time_s bubble peak_bytes fits fit")

    result: Result

    @property
    def name(self) -> str:
        return self.result.scenario.schedule

    @property
    def chunks(self) -> int:
        return self.result.scenario.num_chunks

    @property
    def iteration_time_s(self) -> float:
        return self.result.iteration_time_s

    @property
    def bubble(self) -> float:
        """Share of the iteration that is bubble, averaged over the stages."""
        return self.result.breakdown.bubble_s / self.result.breakdown.total_s

    @property
    def peak_bytes(self) -> int:
        return self.result.memory.fullest.peak_bytes

    @property
    def fits(self) -> bool:
        return self.fit.fits

    @property
    def fit(self) -> FitVerdict:
        return self.result.fit


@dataclass(frozen=True, slots=True)
class RefusedSchedule(PlainData):
    """A named schedule that the scenario cannot have.

    Args:
        name: of the schedule.
        code: of the error.
        reason: the first rule that it breaks.
    """

    json_fields: ClassVar = keys("name code reason")

    name: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScheduleComparison(Answer):
    """All named schedules on one pipeline.

    Args:
        base: the scenario with its own schedule.
        trials: the legal ones, the fastest first.
        refused: the others, in the order of the registry.
    """

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

    def simulated(name: str) -> ScheduledIteration:
        """Simulate the scenario with a schedule; raise an `InputError` if it is illegal."""
        on_progress(name)
        return ScheduledIteration(simulate(_with_schedule(scenario, name)))

    trials = [*try_each(NAMED, simulated)]
    legal = [trial.evaluation for trial in trials if trial.is_legal]
    refused = [
        RefusedSchedule(trial.change, problem.code, problem.message)
        for trial in trials
        if isinstance(trial.outcome, InputError)
        for problem in trial.outcome.problems[:1]
    ]
    legal.sort(key=lambda iteration: iteration.iteration_time_s)
    return ScheduleComparison(scenario, tuple(legal), tuple(refused))


def _with_schedule(scenario: Scenario, name: str) -> Scenario:
    """Return the scenario with another schedule, and with a number of chunks that it can have."""
    if name == scenario.schedule:
        return scenario
    family, chunks = NAMED[name], scenario.num_chunks
    if not family.allows_chunks(chunks):
        chunks = family.num_chunks or (family.has_chunks and _fewest_chunks(scenario, family)) or 1
    changes = {"schedule": name, "parallelism.interleave": chunks, "overlap.pipeline": None}
    return scenario.replace(changes)


def _fewest_chunks(scenario: Scenario, family: ScheduleFamily) -> int:
    """Return the smallest number of chunks above 1 that divides the layers of each stage."""
    return next(filter(family.allows_chunks, numbers_of_chunks(scenario)), family.fewest_chunks)
