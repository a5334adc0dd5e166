"""Sensitivity: how an iteration changes with more of one resource of the cluster.

The engine simulates the iteration again for each resource, because no formula gives the exposed
share of a kernel or a collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.upgrades import RESOURCES, with_more
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.on_machine import plan_on
from simtrain.studies.simulation import checked_profile

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

    Raises:
        InputError: as `simulate`.
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
