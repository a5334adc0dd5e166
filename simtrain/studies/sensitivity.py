"""Sensitivity: how an iteration changes with more or less of one resource of the cluster.

The engine simulates the iteration again for each resource and factor, because no formula gives the
exposed share of a kernel or a collective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.engine import Engine
from simtrain.errors import InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.upgrades import RESOURCES, Resource, with_more
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_values
from simtrain.studies.on_machine import plan_on
from simtrain.studies.simulation import checked_profile, scenario_of

FACTOR = 1.1
"""Default change of a resource: rates times this factor, latencies divided by it."""


@dataclass(frozen=True, slots=True)
class Sensitivity(PlainData):
    """Iteration times of a scenario with more of each resource.

    Args:
        iteration_time_s: iteration time on the unchanged cluster.
        with_more_s: iteration time with more of each resource, by the names of `RESOURCES`.
        factor: rates are multiplied by this factor, latencies divided by it.
    """

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
    profile: HardwareProfile | None = None,
    factor: float = FACTOR,
    engine: Engine = "auto",
    on_progress: Callable[[str], None] = lambda description: None,
) -> Sensitivity:
    """Simulate a scenario with more of each resource, one at a time.

    Args:
        scenario: a scenario, or a result of `simulate`. With `recompute: auto`, recompute of a
            scenario is chosen again each time; that of a result stays.
        profile: as for `simulate`; by default that of the result. With another one, only the
            scenario of a result counts.
        factor: rates are multiplied by this factor, latencies divided by it.
        engine: as for `simulate`.
        on_progress: receives a description of the next simulation.

    Raises:
        InputError: as `simulate`.
    """
    if not isinstance(factor, Real) or not 0 < factor < math.inf:
        fix = "write a number above 0, such as 1.1"
        raise InputError.of("E114", f"factor is {factor!r}", fix=fix)
    result = scenario if isinstance(scenario, Result) and profile is None else None
    scenario = scenario_of(scenario)
    check_values(scenario)
    if result is None:
        machine = Machine.of(checked_profile(scenario, profile), engine)
        now, choice = plan_on(scenario, machine)
    else:
        machine = result.seconds.machine
        now, choice = PlannedIteration(result.plan, machine), None
    # A faster resource can change which of the plans is the fastest, but not which of them fit.
    fitting = [trial.evaluation.plan for trial in choice.trials if trial.fits] if choice else []
    plans = fitting or [now.plan]

    def with_more_of(resource: Resource) -> float:
        """Return the time of the fastest iteration with more of a resource."""
        on_progress(f"more of: {resource.label}")
        if resource.is_capacity and not choice:
            return now.iteration_time_s
        changed = Machine.of(with_more(machine.profile, (resource,), factor), machine.engine)
        if resource.is_capacity:
            return plan_on(scenario, changed)[0].iteration_time_s
        return min(PlannedIteration(plan, changed).iteration_time_s for plan in plans)

    with_more_s = {name: with_more_of(resource) for name, resource in RESOURCES.items()}
    return Sensitivity(now.iteration_time_s, with_more_s, factor)
