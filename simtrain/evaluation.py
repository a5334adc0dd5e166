"""Many scenarios, one after another: what each comes to, without the timeline behind it.

An evaluator remembers what scenarios share (profiles, and what it has priced). Memory is looked at
before time is simulated: what does not fit is not run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simtrain.durations.model import DurationModel
from simtrain.engine import Engine, engine_for_many
from simtrain.hardware.load import profile_of, profile_version
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration import run_iteration
from simtrain.memory.report import peak_bytes
from simtrain.plan import Plan
from simtrain.programs.seconds import IterationSeconds, Machine
from simtrain.report.breakdown import Breakdown, mean_breakdown, stage_breakdowns
from simtrain.scenario import Scenario
from simtrain.simulation import checked_profile
from simtrain.studies.choose import choose, is_open
from simtrain.units import format_bytes, format_seconds

_MACHINES = 16
"""Profiles that an evaluator remembers, with what was priced on them."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one simulated iteration comes to; `breakdown`, if asked for, is the average stage's."""

    iteration_time_s: float
    tokens_per_s: float
    mfu: float
    hfu: float
    breakdown: Breakdown | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A legal scenario: the peak of its fullest stage and, if that fits, its iteration.

    `scenario` has the recompute that was chosen where it was open. `run` is None where the peak
    exceeds the capacity, unless the evaluator was told to run that too.
    """

    scenario: Scenario
    peak_bytes: int
    capacity_bytes: int
    run: Run | None

    def __repr__(self) -> str:
        time = format_seconds(self.run.iteration_time_s) if self.run else "not run"
        memory = f"{format_bytes(self.peak_bytes)} of {format_bytes(self.capacity_bytes)}"
        return f"<Evaluation {self.scenario.name or 'unnamed'}: {time}, {memory}>"

    @property
    def fits(self) -> bool:
        """Whether every stage stays within the memory of a GPU."""
        return self.peak_bytes <= self.capacity_bytes


@dataclass
class Evaluator:
    """Evaluates scenarios; `allow_oom` runs what does not fit too.

    Without `breakdowns` a run has none, which takes less time. Every `engine` finds the same bits;
    the default is the fastest that is installed.
    """

    allow_oom: bool = False
    breakdowns: bool = True
    engine: Engine = field(default_factory=engine_for_many)
    _machines: dict[object, Machine] = field(default_factory=dict, repr=False)

    def evaluate(self, scenario: Scenario) -> Evaluation:
        """Evaluate one scenario.

        Raises:
            InputError: the scenario breaks a rule of the framework, or does not fit its cluster.
        """
        machine = self._machine(scenario)
        profile = checked_profile(scenario, machine.model.profile)
        if is_open(scenario):

            def plan_of(one: Scenario, kept: tuple[int, ...] | None) -> Plan:
                return _plan(one, machine, kept)

            choice = choose(scenario, profile, plan_of, lambda plan: self._run(plan, machine))
            return self._evaluation(choice.chosen.plan, machine, choice.run)
        return self._evaluation(_plan(scenario, machine), machine)

    def peak_bytes(self, scenario: Scenario) -> int:
        """The peak of a scenario's fullest stage, without the time.

        Raises:
            InputError: as `evaluate`.
        """
        machine = self._machine(scenario)
        profile = checked_profile(scenario, machine.model.profile)
        if is_open(scenario):
            return self.evaluate(scenario).peak_bytes
        return peak_bytes(_plan(scenario, machine), profile)

    def profile_of(self, scenario: Scenario) -> HardwareProfile:
        """The scenario's profile with its overrides, read once unless its file changes.

        Raises:
            InputError: there is no such profile, or it is not as it must be.
        """
        return self._machine(scenario).model.profile

    def machine_of(self, scenario: Scenario) -> Machine:
        """The machine that times the scenario's passes; it remembers them between scenarios.

        Raises:
            InputError: as `profile_of`.
        """
        return self._machine(scenario)

    def _machine(self, scenario: Scenario) -> Machine:
        overrides = repr(scenario.hardware) if scenario.hardware else ""
        key = scenario.cluster, overrides, profile_version(scenario.cluster)
        if key not in self._machines:
            if len(self._machines) == _MACHINES:
                del self._machines[next(iter(self._machines))]
            self._machines[key] = Machine(DurationModel(profile_of(scenario)), self.engine)
        return self._machines[key]

    def _evaluation(self, plan: Plan, machine: Machine, run: Run | None = None) -> Evaluation:
        profile = machine.model.profile
        peak, capacity = peak_bytes(plan, profile), profile.gpu.memory_capacity.value
        runs = peak <= capacity or self.allow_oom
        return Evaluation(
            plan.scenario, peak, capacity, (run or self._run(plan, machine)) if runs else None
        )

    def _run(self, plan: Plan, machine: Machine) -> Run:
        seconds, ran = run_iteration(plan, machine, self.engine)
        breakdown = None
        if self.breakdowns:
            breakdown = mean_breakdown(stage_breakdowns(seconds, ran, self.engine))
        return _run_of(seconds, ran.timeline.makespan_s, breakdown)


def _plan(scenario: Scenario, machine: Machine, kept: tuple[int, ...] | None = None) -> Plan:
    return Plan.of(scenario, machine.model.profile.cluster.domains, kept)


def _run_of(seconds: IterationSeconds, iteration_time_s: float, breakdown: Breakdown | None) -> Run:
    scenario, profile = seconds.plan.scenario, seconds.machine.model.profile
    peak_flops = profile.gpu.peak_flops.value * scenario.num_gpus * iteration_time_s
    return Run(
        iteration_time_s,
        scenario.batch.global_ * scenario.model.seq_length / iteration_time_s,
        seconds.flops(recompute=False) / peak_flops,
        seconds.flops(recompute=True) / peak_flops,
        breakdown,
    )
