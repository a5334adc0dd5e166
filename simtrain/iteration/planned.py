"""The iteration of a plan on a machine: its memory first, and its time if that is needed too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simtrain.iteration.memory.fit import FitVerdict
from simtrain.iteration.memory.host_memory import HostMemory
from simtrain.iteration.memory.report import MemoryReport, memory_report, peak_bytes
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.run_plan import run_iteration
from simtrain.scenario import Scenario
from simtrain.workload.tape import Block


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
        """The simulated tasks."""
        return run_iteration(self.plan, self.machine)

    @property
    def iteration_time_s(self) -> float:
        """Time of the iteration."""
        return self.timeline.time_s

    @cached_property
    def memory(self) -> MemoryReport:
        """Peaks of all stages, without their times."""
        return memory_report(self.plan, self.machine.profile, self._copies)

    @cached_property
    def fit(self) -> FitVerdict:
        """Whether the fullest stage fits, faster than from `memory`."""
        profile, copies = self.machine.profile, self._copies
        peak = peak_bytes(self.plan, profile, copies)
        uses_hosts = self.plan.uses_hosts
        host_fits = not uses_hosts or HostMemory.of(self.plan, profile, copies).fits
        return FitVerdict(peak, profile.gpu.memory_capacity.value, host_fits)

    @property
    def fits(self) -> bool:
        """Whether every stage fits in GPU memory, and its copies in the hosts' memory."""
        return self.fit.fits

    @property
    def _copies(self) -> IterationTimeline | None:
        return self.timeline if self.plan.offloads else None
