"""Sensitivity: how an iteration changes with more or less of one resource of the cluster.

The engine simulates the iteration again for each resource and factor, because no formula gives the
exposed share of a kernel or a collective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from operator import attrgetter
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.engine import Engine
from simtrain.errors import InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.upgrades import CAPACITIES, RESOURCES
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_values
from simtrain.studies.changes.change import Change, MachineChange
from simtrain.studies.changes.trial import try_change, try_each
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.on_machine import plan_on
from simtrain.studies.simulation import checked_profile, scenario_of
from simtrain.units import format_seconds

FACTOR = 1.1
"""Default change of a resource: rates times this factor, latencies divided by it."""


@dataclass(frozen=True, slots=True)
class Sensitivity(PlainData):
    """Iteration times of a scenario with more of each resource.

    Args:
        iteration_time_s: iteration time on the unchanged cluster.
        with_more_s: iteration time with more of each resource, by the names of `RESOURCES`.
        recompute: recompute strategy; `auto` if simtrain chooses any part of it.
        auto_recompute_s: iteration times with `recompute: auto`, on the unchanged cluster and with
            more memory. None if the strategy is `none` or `auto`, if `auto` finds no strategy that
            is legal and fits, or for a result, whose recompute stays.
        factor: rates are multiplied by this factor, latencies divided by it.
    """

    json_fields: ClassVar = keys("factor iteration_time_s=with_more_s saved auto_recompute_s")

    iteration_time_s: float
    with_more_s: dict[str, float]
    recompute: str
    auto_recompute_s: tuple[float, float] | None
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

    @property
    def memory_remark(self) -> str:
        """Sentence on the effect of more memory, which shortens an iteration only by recompute."""
        if self.recompute == "auto":
            return "With more memory, recompute is chosen again."
        if self.recompute == "none":
            return "More memory saves no time: nothing is recomputed."
        unused = f"More memory alone saves no time: recompute is {self.recompute}"
        if self.auto_recompute_s is None:
            return f"{unused}."
        now, more = map(format_seconds, self.auto_recompute_s)
        return (
            f"{unused}. With recompute: auto, an iteration takes {now} ({more} with more memory)."
        )


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

    def evaluate(change: MachineChange) -> PlannedIteration:
        """Return the fastest iteration with more of a resource."""
        (resource,) = change.resources
        on_progress(f"more of: {resource.label}")
        if resource.is_capacity:
            return plan_on(scenario, change.applied_to(machine))[0] if choice else now
        changed = change.applied_to(machine)
        iterations = (PlannedIteration(plan, changed) for plan in plans)
        return min(iterations, key=attrgetter("iteration_time_s"))

    changes = [MachineChange((resource,), factor) for resource in RESOURCES.values()]
    times_s = (trial.evaluation.iteration_time_s for trial in try_each(changes, evaluate))
    with_more_s = dict(zip(RESOURCES, times_s, strict=True))
    strategy, auto_s = scenario.recompute.strategy, None
    if result is None and choice is None and strategy != "none":
        on_progress("recompute: auto")
        auto_s = _auto_recompute_s(scenario, machine, factor)
    strategy = "auto" if choice else strategy
    return Sensitivity(now.iteration_time_s, with_more_s, strategy, auto_s, factor)


def _auto_recompute_s(
    scenario: Scenario, machine: Machine, factor: float
) -> tuple[float, float] | None:
    """Return the iteration times with `recompute: auto`, on a machine and with more memory on it.

    None if it is illegal or never fits.
    """
    auto, larger = Change({"recompute": "auto"}), MachineChange(CAPACITIES, factor)
    now, more = (
        try_change(auto, Evaluator.on(each).changing(scenario))
        for each in (machine, larger.applied_to(machine))
    )
    if not (now.fits and more.fits):
        return None
    return now.evaluation.iteration_time_s, more.evaluation.iteration_time_s
