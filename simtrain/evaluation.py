"""Many scenarios, one after another: what each comes to, without the timeline behind it.

An evaluator remembers what scenarios share (profiles, and what it has priced). Memory is looked at
before time is simulated: what does not fit is not run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simtrain.engine import Engine
from simtrain.hardware.load import profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration import Iteration, Known
from simtrain.memory.choose import choose, is_open
from simtrain.memory.report import peak_bytes
from simtrain.report.breakdown import Breakdown
from simtrain.scenario import Scenario
from simtrain.simulation import checked_profile, run_iteration

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

    @property
    def fits(self) -> bool:
        """Whether every stage stays within the memory of a GPU."""
        return self.peak_bytes <= self.capacity_bytes


@dataclass
class Evaluator:
    """Evaluates scenarios; `allow_oom` runs what does not fit too.

    Without `breakdowns` a run has none, which takes less time. `engine` is `compiled` unless told
    otherwise; what it finds differs by no bit but in the breakdown, whose sums are rounded
    differently.
    """

    allow_oom: bool = False
    breakdowns: bool = True
    engine: Engine = "compiled"
    _machines: dict[tuple[str, str], _Machine] = field(default_factory=dict)

    def evaluate(self, scenario: Scenario) -> Evaluation:
        """Evaluate one scenario.

        Raises:
            InputError: the scenario breaks a rule of the framework, or does not fit its cluster.
        """
        machine = self._machine(scenario)
        checked_profile(scenario, machine.profile)
        if is_open(scenario):
            choice = choose(scenario, machine.iteration, self._run)
            return self._evaluation(choice.chosen.iteration, choice.run)
        iteration = machine.iteration(scenario)
        return self._evaluation(iteration)

    def peak_bytes(self, scenario: Scenario) -> int:
        """The peak of a scenario's fullest stage, without the time.

        Raises:
            InputError: as `evaluate`.
        """
        machine = self._machine(scenario)
        checked_profile(scenario, machine.profile)
        if is_open(scenario):
            return self.evaluate(scenario).peak_bytes
        return peak_bytes(machine.iteration(scenario))

    def profile_of(self, scenario: Scenario) -> HardwareProfile:
        """The scenario's profile with its overrides; each different one is read once.

        Raises:
            InputError: there is no such profile, or it is not as it must be.
        """
        return self._machine(scenario).profile

    def _machine(self, scenario: Scenario) -> _Machine:
        key = scenario.cluster, repr(scenario.hardware) if scenario.hardware else ""
        if key not in self._machines:
            if len(self._machines) == _MACHINES:
                del self._machines[next(iter(self._machines))]
            self._machines[key] = _Machine(profile_of(scenario), self.engine)
        return self._machines[key]

    def _evaluation(self, iteration: Iteration, run: Run | None = None) -> Evaluation:
        peak, capacity = peak_bytes(iteration), iteration.profile.gpu.memory_capacity.value
        runs = peak <= capacity or self.allow_oom
        return Evaluation(
            iteration.scenario, peak, capacity, (run or self._run(iteration)) if runs else None
        )

    def _run(self, iteration: Iteration) -> Run:
        if self.engine != "compiled":
            return _run_of(iteration, *_simulated(iteration))
        # Loaded when something is run: numba takes half a second.
        from simtrain.programs.iteration_tasks import tasks_of
        from simtrain.report.compiled_breakdown import mean_breakdown_of

        tasks = tasks_of(iteration.tasks_shape)
        start_s, end_s = tasks.run(iteration.seconds)
        breakdown = None
        if self.breakdowns:
            breakdown = mean_breakdown_of(iteration, tasks, start_s, end_s)
        return _run_of(iteration, float(end_s.max()), breakdown)


@dataclass(frozen=True, slots=True)
class _Machine:
    """A profile, and what has been priced on it."""

    profile: HardwareProfile
    engine: Engine
    known: Known = field(default_factory=Known)

    def iteration(
        self, scenario: Scenario, kept_per_stage: tuple[int, ...] | None = None
    ) -> Iteration:
        """An iteration that shares them."""
        return Iteration(scenario, self.profile, kept_per_stage, self.engine, self.known)


def _simulated(iteration: Iteration) -> tuple[float, Breakdown]:
    result = run_iteration(iteration)
    return result.iteration_time_s, result.breakdown


def _run_of(iteration: Iteration, iteration_time_s: float, breakdown: Breakdown | None) -> Run:
    scenario = iteration.scenario
    peak_flops = iteration.profile.gpu.peak_flops.value * scenario.num_gpus * iteration_time_s
    return Run(
        iteration_time_s,
        scenario.batch.global_ * scenario.model.seq_length / iteration_time_s,
        iteration.flops(recompute=False) / peak_flops,
        iteration.flops(recompute=True) / peak_flops,
        breakdown,
    )
