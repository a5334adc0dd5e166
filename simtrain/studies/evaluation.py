"""Evaluate many scenarios for a study: time, MFU and peak memory of each, without timelines.

An evaluator caches profiles and durations across scenarios. It computes memory first and does not
simulate the time of a scenario that does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from simtrain.base.values import dataclass, field, replace
from simtrain.engine import Engine
from simtrain.hardware.interval import PeakErrors
from simtrain.hardware.likeness import OwnRun
from simtrain.hardware.load import profile_of, profile_version
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.report import FitVerdict
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_is_scenario
from simtrain.studies.on_machine import plan_on
from simtrain.units import format_seconds

_MOST_MACHINES = 16
"""Machines of the last profiles that an evaluator keeps, so that scenarios share durations."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Peak memory of a legal scenario and, if it fits, the figures of its iteration.

    Args:
        scenario: the scenario, with the chosen strategy if its recompute was `auto`.
        run: without variation; None if the scenario does not fit, unless the evaluator allows that.
        host_fits: the hosts have the memory for what is offloaded to them.
    """

    scenario: Scenario
    peak_bytes: int
    capacity_bytes: int
    run: Result | None
    host_fits: bool = True

    def __repr__(self) -> str:
        time = format_seconds(self.run.iteration_time_s) if self.run else "not run"
        return f"<Evaluation {self.scenario.name or 'unnamed'}: {time}, {self.fit}>"

    @property
    def fits(self) -> bool:
        return self.fit.fits

    @property
    def iteration_time_s(self) -> float:
        assert self.run is not None, "scenarios that do not fit have no time without `allow_oom`"
        return self.run.iteration_time_s

    @property
    def gpu_seconds(self) -> float:
        return self.scenario.num_gpus * self.iteration_time_s

    @property
    def fit(self) -> FitVerdict:
        """Whether the fullest stage surely fits, may not fit or does not fit."""
        errors = self.run.peak_errors if self.run else PeakErrors()
        return FitVerdict(self.peak_bytes, self.capacity_bytes, self.host_fits, errors)


@dataclass
class Evaluator:
    """Evaluates scenarios one by one, with shared caches.

    Args:
        allow_oom: also simulate scenarios that do not fit in memory.
        machine: of all scenarios, whatever their clusters; by default that of each one's profile.
        anchors: one's own runs, which anchor the intervals of results.
    """

    allow_oom: bool = False
    engine: Engine = "auto"
    machine: Machine | None = None
    anchors: Sequence[OwnRun] = ()
    _machines: dict[object, Machine] = field(default_factory=dict, repr=False)

    def evaluate(self, scenario: Scenario) -> Evaluation:
        """Evaluate one scenario.

        Raises:
            InputError: the scenario breaks a rule of the framework, or does not fit its cluster.
        """
        planned, _ = plan_on(scenario, self.machine_of(scenario))
        run = planned.result if planned.fits or self.allow_oom else None
        return Evaluation(
            planned.plan.scenario,
            planned.fit.peak_bytes,
            planned.fit.capacity_bytes,
            replace(run, anchors=self.anchors) if run and self.anchors else run,
            planned.fit.host_fits,
        )

    def profile_of(self, scenario: Scenario) -> HardwareProfile:
        """Load the scenario's profile with its overrides; cached until the file changes."""
        return self.machine_of(scenario).model.profile

    def machine_of(self, scenario: Scenario) -> Machine:
        """Return the cached machine that computes durations for the scenario's profile.

        Raises:
            InputError: the profile does not exist or is invalid.
        """
        check_is_scenario(scenario)
        if self.machine is not None:
            return self.machine
        overrides = repr(scenario.hardware) if scenario.hardware else ""
        # The version changes with the file, so that a profile is read again.
        key = scenario.cluster, overrides, profile_version(scenario)
        if key not in self._machines:
            if len(self._machines) == _MOST_MACHINES:
                del self._machines[next(iter(self._machines))]
            self._machines[key] = Machine.of(profile_of(scenario), self.engine)
        return self._machines[key]
