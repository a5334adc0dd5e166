"""Compare scenarios: why one is slower; of a single one, which changes or schedules save most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_uppercase
from typing import Any, ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.request import takes
from simtrain.base.values import dataclass
from simtrain.errors import InputError, wrong_type
from simtrain.hardware.upgrades import RESOURCES, with_more
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.difference import Difference
from simtrain.iteration.report.difference import compare as differences_of
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_values
from simtrain.scenario.schedule_rules import numbers_of_chunks
from simtrain.schedules import NAMED
from simtrain.studies.advice import Advice, advise
from simtrain.studies.answer import Answer
from simtrain.studies.on_machine import plan_on
from simtrain.studies.requests import ComparisonRequest
from simtrain.studies.simulation import checked_profile, result_of, scenario_of, simulate
from simtrain.studies.variation import DrawnTimes, draw_if_varied

FACTOR = 1.1
"""Default change of a resource: rates times this factor, latencies divided by it."""


@dataclass(frozen=True, slots=True)
class Sensitivity(PlainData):
    """Iteration times of a scenario with more of each resource."""

    json_fields: ClassVar = keys("factor iteration_time_s=with_more_s saved")

    iteration_time_s: float
    with_more_s: dict[str, float]
    factor: float = FACTOR

    def __repr__(self) -> str:
        saved = ", ".join(f"{name} {share:.1%}" for name, share in [*self.saved.items()][:3])
        return f"<Sensitivity: {self.factor:g} times as much saves {saved}>"

    @property
    def saved(self) -> dict[str, float]:
        """Share of the iteration time that more of each resource saves, the largest first."""
        now_s = self.iteration_time_s
        shares = {name: 1 - more_s / now_s for name, more_s in self.with_more_s.items()}
        return dict(sorted(shares.items(), key=lambda share: -share[1]))


def sensitivity(
    scenario: Scenario | Result,
    factor: float = FACTOR,
    on_progress: Callable[[str], None] = lambda description: None,
) -> Sensitivity:
    """Simulate a scenario with more of each resource, one at a time.

    With `recompute: auto`, recompute of a scenario is chosen again each time; that of a result
    stays. `on_progress` receives a description of the next simulation.
    """
    if isinstance(scenario, Result):
        machine = scenario.seconds.machine
        now, choice = PlannedIteration(scenario.plan, machine), None
        scenario = scenario.scenario
    else:
        machine = Machine.of(checked_profile(scenario), "auto")
        now, choice = plan_on(scenario, machine)
    # A faster resource can change which of the plans is the fastest, but not which of them fit.
    fitting = [trial.plan for trial in choice.trials if trial.fits] if choice else []
    plans, with_more_s = fitting or [now.plan], dict[str, float]()
    for name, resource in RESOURCES.items():
        on_progress(f"more of: {resource.label}")
        changed = Machine.of(with_more(machine.profile, (resource,), factor), machine.engine)
        if not resource.is_capacity:
            times_s = [PlannedIteration(plan, changed).iteration_time_s for plan in plans]
            with_more_s[name] = min(times_s)
        else:
            planned = plan_on(scenario, changed)[0] if choice else now
            with_more_s[name] = planned.iteration_time_s
    return Sensitivity(now.iteration_time_s, with_more_s, factor)


@dataclass(frozen=True, slots=True)
class ScenarioColumn(PlainData):
    """A scenario of the comparison, drawn many times if it sets a field of `variation`."""

    json_fields: ClassVar = keys(
        """name iteration_time_s=result.iteration_time_s interval_s=result.interval
        tokens_per_s=result.tokens_per_s mfu=result.mfu
        peak_bytes=result.memory_report.fullest.peak_bytes
        capacity_bytes=result.memory_report.capacity_bytes fit=result.fit
        num_gpus=result.scenario.num_gpus
        breakdown_s=result.breakdown_s critical_path_s=result.critical_path_s
        with_more=sensitivity least_told variation=drawn"""
    )
    json_omits_none: ClassVar = frozenset({"variation"})

    name: str
    result: Result
    sensitivity: Sensitivity
    drawn: DrawnTimes | None = None

    @property
    def least_told(self) -> float:
        """The least saved share of the time that predictions can tell from none."""
        return 1 - Difference(self.result, self.result).ratio.p5


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Answer):
    """Scenarios, and how the others differ from the first; of a single one, what saves most."""

    json_fields: ClassVar = keys("**advice scenarios differences=named_differences")

    scenarios: Sequence[ScenarioColumn]
    differences: Sequence[Difference] = ()
    advice: Advice | None = None

    @classmethod
    def of(cls, scenarios: Sequence[ScenarioColumn]) -> Comparison:
        return cls(scenarios, differences_of(*(column.result for column in scenarios)))

    @property
    def made_on(self) -> str | list[str]:
        clusters = [column.result.scenario.cluster for column in self.scenarios]
        return clusters if self.advice is None else clusters[0]

    @property
    def named_differences(self) -> list[dict[str, Any]]:
        """Why each other scenario is slower or faster than the first."""
        base, *others = self.scenarios
        pairs = zip(others, self.differences, strict=True)
        return [{"base": base.name, "other": other.name} | why.to_dict() for other, why in pairs]

    @property
    def headline(self) -> str:
        """The answer in one line: the fastest, by how much, and why."""
        if self.advice is not None:
            return f"{self.scenarios[0].result.headline}; {self.advice.headline}"
        rates = {letter_of(n): each.result.tokens_per_s for n, each in enumerate(self.scenarios)}
        letters = [*rates]
        fastest = max(rates, key=lambda letter: rates[letter])
        # If the first is the fastest, the second fastest says by how much.
        other = fastest if fastest != "A" else max(letters[1:], key=lambda letter: rates[letter])
        difference = self.differences[letters.index(other) - 1]
        if not difference.changed_fields:
            return f"A and {other} are the same scenario"
        slower = "A" if fastest != "A" else other
        ratio = f"{rates[fastest] / rates[slower]:.3g} times the tokens/s of {slower}"
        sure = "" if difference.ratio.can_be_told else " (they cannot be told apart)"
        causes = ", ".join(str(difference.causes).split(", ")[:2])
        return f"{fastest} has {ratio}{sure}; {other} takes {difference.time} than A: {causes}"


@takes(ComparisonRequest)
def compare(request: ComparisonRequest) -> Comparison | ScheduleComparison:
    """Say why scenarios are slower or faster than the first; of a single one, what to change.

    Raises:
        InputError: a scenario is illegal, or an argument is invalid.
    """
    scenarios, on_progress = request.scenarios, request.on_progress
    if not scenarios:
        fix = "write compare(scenario), or compare(scenario, other)"
        raise InputError.of("E114", "there is nothing to compare", fix=fix)
    for scenario in scenarios:
        if not isinstance(scenario, Scenario | Result):
            raise wrong_type(scenario, "Scenario or Result", "write compare(scenario, other)")
    bases = [scenario_of(scenario) for scenario in scenarios]
    if request.schedules:
        if len(bases) > 1:
            raise InputError.of("E114", "schedules are compared of one scenario alone")
        return compare_schedules(bases[0], on_progress)
    columns = [
        column_of(base.name or letter_of(number), scenario, on_progress)
        for number, (scenario, base) in enumerate(zip(scenarios, bases, strict=True))
    ]
    if len(columns) > 1:
        return Comparison.of(columns)
    return Comparison(
        columns, advice=advise(columns[0].result, request.top, on_progress=on_progress)
    )


def column_of(
    name: str,
    scenario: Scenario | Result,
    on_progress: Callable[[str], None],
    simulate: Callable[[Any], Result] = result_of,
) -> ScenarioColumn:
    """Simulate a scenario, also with more of each resource of its cluster.

    With `recompute: auto`, more of a resource may choose another recompute than `result` has.
    """
    on_progress(f"simulating {name}")
    result = simulate(scenario)
    words = f"simulating {name} on better hardware"
    better = sensitivity(scenario, on_progress=lambda resource: on_progress(f"{words}, {resource}"))
    return ScenarioColumn(name, result, better, draw_if_varied(result))


def letter_of(number: int) -> str:
    """Return the letter of a scenario: A to Z, then A1 and so on."""
    return f"{ascii_uppercase[number % 26]}{number // 26 or ''}"


# ------------------------------------------------------------------------- schedules


@dataclass(frozen=True, slots=True)
class ScheduledIteration(PlainData):
    """An iteration with a named schedule."""

    json_fields: ClassVar = keys(
        """name=result.scenario.schedule chunks=result.scenario.num_chunks
        iteration_time_s=result.iteration_time_s bubble
        peak_bytes=result.memory_report.fullest.peak_bytes fits=result.fit.fits fit=result.fit"""
    )

    result: Result

    @property
    def name(self) -> str:
        return self.result.scenario.schedule

    @property
    def bubble(self) -> float:
        """Share of the iteration that is a bubble, over all stages."""
        breakdown = self.result.breakdown
        return breakdown.bubble_s / breakdown.total_s


@dataclass(frozen=True, slots=True)
class RefusedSchedule(PlainData):
    """A named schedule that the scenario cannot have, and the first rule that it breaks."""

    name: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleComparison(Answer):
    """All named schedules on one pipeline."""

    json_fields: ClassVar = keys("schedule=base.schedule trials refused")
    json_made_on: ClassVar = "base.cluster"

    base: Scenario
    trials: tuple[ScheduledIteration, ...]
    refused: tuple[RefusedSchedule, ...]

    @property
    def headline(self) -> str:
        """The answer in one line: the fastest that surely fits, and what it saves."""
        fitting = [trial for trial in self.trials if trial.result.fit.fits_surely] or [*self.trials]
        best, counts = fitting[0], f"of {len(self.trials) + len(self.refused)} schedules"
        current = next((trial for trial in self.trials if trial.name == self.base.schedule), best)
        saved = 1 - best.result.iteration_time_s / current.result.iteration_time_s
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
    """
    check_values(scenario)
    legal, refused = list[ScheduledIteration](), list[RefusedSchedule]()
    for name in NAMED:
        on_progress(name)
        try:
            legal.append(ScheduledIteration(simulate(_with_schedule(scenario, name))))
        except InputError as error:
            problem = error.problems[0]
            refused.append(RefusedSchedule(name, problem.code, problem.message))
    legal.sort(key=lambda trial: trial.result.iteration_time_s)
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
