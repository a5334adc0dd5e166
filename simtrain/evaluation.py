"""Many scenarios, one after another: what each comes to, without the timeline behind it.

An evaluator remembers what scenarios share (profiles, and what it has priced). Memory is looked at
before time is simulated: what does not fit is not run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from simtrain.hardware.load import profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.memory.choose import is_open
from simtrain.report.breakdown import Breakdown
from simtrain.scenario import Scenario
from simtrain.simulation import simulate, simulate_memory


@dataclass(frozen=True, slots=True)
class Run:
    """What one simulated iteration comes to; `breakdown` is the average over the stages."""

    iteration_time_s: float
    tokens_per_s: float
    mfu: float
    hfu: float
    breakdown: Breakdown


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
    """Evaluates scenarios; `allow_oom` runs what does not fit too."""

    allow_oom: bool = False
    _profiles: dict[tuple[str, str], HardwareProfile] = field(default_factory=dict)

    def evaluate(self, scenario: Scenario) -> Evaluation:
        """Evaluate one scenario.

        Raises:
            InputError: the scenario breaks a rule of the framework, or does not fit its cluster.
        """
        profile = self.profile_of(scenario)
        if not is_open(scenario) and not self.allow_oom:
            memory = simulate_memory(scenario, profile)
            if not memory.fits:
                return Evaluation(
                    scenario, memory.fullest.peak_bytes, memory.capacity_bytes, run=None
                )
        result = simulate(scenario, profile)
        fits = result.memory.fits or self.allow_oom
        run = Run(
            result.iteration_time_s,
            result.tokens_per_s,
            result.mfu,
            result.hfu,
            result.breakdown,
        )
        return Evaluation(
            result.scenario,
            result.memory.fullest.peak_bytes,
            result.memory.capacity_bytes,
            run if fits else None,
        )

    def profile_of(self, scenario: Scenario) -> HardwareProfile:
        """The scenario's profile with its overrides; each different one is read once.

        Raises:
            InputError: there is no such profile, or it is not as it must be.
        """
        key = scenario.cluster, json.dumps(scenario.hardware, sort_keys=True, default=str)
        if key not in self._profiles:
            self._profiles[key] = profile_of(scenario)
        return self._profiles[key]
