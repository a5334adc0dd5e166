"""The iteration of a plan on a machine: its memory first, and its time if that is needed too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from simtrain.base.values import dataclass
from simtrain.engine import simulate
from simtrain.errors import InputError
from simtrain.iteration.memory.buffers import host_memory
from simtrain.iteration.memory.report import FitVerdict, MemoryReport, memory_report, peak_bytes
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.seconds import IterationSeconds, Machine
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.workload.tape import Block

# Simulate one iteration: compute durations, build tasks, run them.

_YEAR_S = 365.25 * 86_400
_CENTURY_S = 100 * _YEAR_S


def run_iteration(plan: Plan, machine: Machine) -> IterationTimeline:
    """Build and run the tasks of an iteration."""
    seconds = IterationSeconds.of(plan, machine)
    tasks = tasks_of(seconds.structure)
    timeline = simulate(tasks.program(seconds), machine.engine)
    iteration = IterationTimeline(timeline, tasks, seconds)
    _refuse_endless(iteration.time_s)
    return iteration


def _refuse_endless(time_s: float) -> None:
    """Refuse an iteration of more than a century, or of no time: a value has the wrong unit."""
    if 0 < time_s <= _CENTURY_S:
        return
    message = f"the iteration takes {time_s / _YEAR_S:.3g} years, more than a century"
    if time_s <= 0:
        message = "the iteration takes no time"
    fix = "correct the size of the model or the batch, or the entry of the profile that is far off"
    reason = "no training waits for such an iteration: a value has the wrong unit or is a typo"
    raise InputError.of("E501", message, reason=reason, fix=fix)


# No slots: a cached property needs the dictionary of its object.
@dataclass(frozen=True, eq=False)
class PlannedIteration:
    """The iteration of a plan on a machine. Each of its parts is computed at its first use.

    Args:
        plan: what the iteration does.
        machine: the hardware, with the durations that were computed on it.
    """

    plan: Plan
    machine: Machine

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        machine: Machine,
        kept: tuple[int, ...] | None = None,
        layers: Sequence[Block] | None = None,
    ) -> PlannedIteration:
        """Plan the iteration of a scenario whose rules are checked.

        Args:
            scenario: its recompute is not `auto`, but for the kept microbatches if `kept` is given.
            machine: the hardware.
            kept: microbatches without recompute per stage, instead of the scenario's.
            layers: blocks to use instead of the scenario's layers, first to last.
        """
        domains = machine.profile.cluster.domains_of(scenario.num_gpus)
        return cls(Plan.of(scenario, domains, kept, layers), machine)

    @cached_property
    def timeline(self) -> IterationTimeline:
        return run_iteration(self.plan, self.machine)

    @cached_property
    def result(self) -> Result:
        return Result(self.timeline)

    @property
    def iteration_time_s(self) -> float:
        return self.timeline.time_s

    @cached_property
    def memory(self) -> MemoryReport:
        return memory_report(self.plan, self.machine.profile)

    @cached_property
    def fit(self) -> FitVerdict:
        """Whether the fullest stage fits, faster than from `memory`."""
        profile = self.machine.profile
        peak = peak_bytes(self.plan, profile)
        host = host_memory(self.plan, profile)
        host_fits = host is None or host.fits
        return FitVerdict(peak, profile.gpu.memory_capacity.value, host_fits)

    @property
    def fits(self) -> bool:
        return self.fit.fits
