"""Simulates measured runs with factors on the entries of their hardware profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calibrate.fit.factors import Entries, scaled_profile
from calibrate.fit.robust import Floats
from simtrain.durations.model import DurationModel
from simtrain.errors import InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.run_plan import run_iteration
from simtrain.studies.choose import is_open
from simtrain.studies.simulation import checked_profile, simulate
from simtrain.studies.validation.measured import MeasuredRun, in_one_line


class RunTimes:
    """Simulates runs with factors on the entries of their profiles.

    `runs` are those that can be simulated, `refused` the others, with the reason.

    Args:
        profile: the base profile.
        runs: the runs.
        factors: the factors.
    """

    def __init__(
        self,
        profile: HardwareProfile,
        runs: Sequence[MeasuredRun],
        factors: Sequence[Entries],
    ) -> None:
        self.profile, self.factors = profile, factors
        self.runs = list[MeasuredRun]()
        self.refused = list[MeasuredRun]()
        self._plans = list[tuple[str, Plan]]()
        self._profiles = dict[str, HardwareProfile]()
        for run in runs:
            self._add(run)

    def _add(self, run: MeasuredRun) -> None:
        """Plan a run, or say why it cannot be simulated."""
        if run.scenario is None or run.iteration_time_s is None:
            reason = run.refusal or "it has no measured iteration time"
            self.refused.append(replace(run, refusal=reason))
            return
        key = repr(run.scenario.hardware)
        try:
            # A run that sets entries of the hardware has a profile of its own.
            if run.scenario.hardware:
                profile = self._profiles.get(key) or checked_profile(run.scenario)
            else:
                profile = self.profile
            checked_profile(run.scenario, profile)
            self._plans.append((key, _plan_of(run, profile)))
        except InputError as error:
            self.refused.append(replace(run, refusal=in_one_line(error)))
            return
        self._profiles[key] = profile
        self.runs.append(run)

    def seconds(self, numbers: Sequence[int], logarithms: Floats) -> Floats:
        """Return the times of some runs, by their numbers."""
        machines = {
            key: Machine(DurationModel(scaled_profile(profile, self.factors, logarithms.tolist())))
            for key, profile in self._profiles.items()
        }
        times = []
        for number in numbers:
            key, plan = self._plans[number]
            times.append(run_iteration(plan, machines[key]).timeline.makespan_s)
        return np.array(times)

    def log_ratios(self, numbers: Sequence[int], logarithms: Floats) -> Floats:
        """Return the logarithms of predicted / measured times."""
        of_runs_s = np.array([measured_s(self.runs[number]) for number in numbers])
        ratios: Floats = np.log(self.seconds(numbers, logarithms) / of_runs_s)
        return ratios


def measured_s(run: MeasuredRun) -> float:
    """Return the iteration time of a run that has one."""
    assert run.iteration_time_s is not None, "only timed runs are fitted"
    return run.iteration_time_s


def _plan_of(run: MeasuredRun, profile: HardwareProfile) -> Plan:
    scenario = run.scenario
    assert scenario is not None, "only runs with a scenario have a plan"
    if is_open(scenario):
        return simulate(scenario, profile).plan
    return Plan.of(scenario, profile.cluster.domains_of(scenario.num_gpus))
