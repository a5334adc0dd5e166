"""Sensitivity: how much shorter an iteration is with more of one resource of the cluster.

The engine simulates the iteration again for each resource, because no formula gives the exposed
share of a kernel or a collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simtrain.durations.model import DurationModel
from simtrain.engine import Engine
from simtrain.errors import InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.upgrades import RESOURCES, Resource, with_more
from simtrain.iteration import run_iteration, simulate_iteration
from simtrain.mesh import Domains
from simtrain.plan import Plan
from simtrain.programs.seconds import Machine
from simtrain.scenario import Scenario
from simtrain.simulation import checked_profile, simulate
from simtrain.studies.choose import choose, is_open
from simtrain.units import format_seconds

FACTOR = 1.1
"""Default change of a resource: rates times this factor, latencies divided by it."""
_MEMORY, _HOST = "memory_capacity", "host"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Iteration times of a scenario with more of each resource.

    Args:
        iteration_time_s: iteration time on the unchanged cluster.
        with_more_s: iteration time with more of each resource, by the names of `RESOURCES`.
        recompute: recompute strategy; `auto` if simtrain chooses any part of it.
        auto_recompute_s: iteration times with `recompute: auto`, on the unchanged cluster and with
            more memory. None if the strategy is `none` or `auto`, or if `auto` finds no strategy
            that is legal and fits.
        factor: rates are multiplied by this factor, latencies divided by it.
    """

    iteration_time_s: float
    with_more_s: dict[str, float]
    recompute: str
    auto_recompute_s: tuple[float, float] | None
    factor: float = FACTOR

    @property
    def saved(self) -> dict[str, float]:
        """Share of the iteration time that more of each resource saves, the largest first."""
        now_s = self.iteration_time_s
        shares = {name: 1 - more_s / now_s for name, more_s in self.with_more_s.items()}
        return dict(sorted(shares.items(), key=lambda one: -one[1]))

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

    def to_json(self) -> dict[str, Any]:
        """Return plain data, in full precision."""
        return {
            "factor": self.factor,
            "iteration_time_s": self.with_more_s,
            "saved": self.saved,
            "auto_recompute_s": self.auto_recompute_s,
        }


def sensitivity_of(
    scenario: Scenario,
    profile: HardwareProfile | None = None,
    factor: float = FACTOR,
    engine: Engine = "auto",
    on_progress: Callable[[str], None] = lambda description: None,
) -> Sensitivity:
    """Simulate a scenario with more of each resource, one at a time.

    Args:
        scenario: as for `simulate`. With `recompute: auto`, recompute is chosen again each time.
        profile: as for `simulate`.
        factor: rates are multiplied by this factor, latencies divided by it.
        engine: as for `simulate`.
        on_progress: receives a description of the next simulation.

    Raises:
        InputError: as `simulate`.
    """
    base = checked_profile(scenario, profile)
    larger = with_more(base, [RESOURCES[_MEMORY]], factor)
    plans = _plans(scenario, base, engine)
    now_s = _time_s(plans, base, engine)

    def time_with_more_s(name: str, resource: Resource) -> float:
        """Return the iteration time with more of one resource."""
        on_progress(f"more of: {resource.label}")
        if name == _MEMORY:
            # Memory changes only the choice of `recompute: auto`.
            is_fixed = not is_open(scenario)
            return now_s if is_fixed else _time_s(_plans(scenario, larger, engine), base, engine)
        better = with_more(base, [resource], factor)
        if name == _HOST:
            domains = base.cluster.domains
            faster = [_with_faster_host(plan, domains, factor) for plan in plans]
            return _time_s(faster, better, engine)
        return _time_s(plans, better, engine)

    times = {name: time_with_more_s(name, resource) for name, resource in RESOURCES.items()}
    strategy, auto_s = scenario.recompute.strategy, None
    if not is_open(scenario) and strategy != "none":
        on_progress("recompute: auto")
        auto_s = _auto_recompute_s(scenario, (base, larger), engine)
    strategy = "auto" if is_open(scenario) else strategy
    return Sensitivity(now_s, times, strategy, auto_s, factor)


def _plans(scenario: Scenario, profile: HardwareProfile, engine: Engine) -> list[Plan]:
    """Return the scenario's plan, or with `recompute: auto` a plan per strategy that fits."""

    def plan_of(one: Scenario, kept: tuple[int, ...] | None = None) -> Plan:
        return Plan.of(one, profile.cluster.domains, kept)

    if not is_open(scenario):
        return [plan_of(scenario)]
    machine = Machine(DurationModel(profile), engine)
    choice = choose(scenario, profile, plan_of, lambda plan: simulate_iteration(plan, machine))
    # A faster resource can change the fastest of these plans, but not which plans fit.
    return [one.plan for one in choice.trials if one.memory.fits] or [choice.chosen.plan]


def _time_s(plans: list[Plan], profile: HardwareProfile, engine: Engine) -> float:
    """Return the iteration time of the fastest plan."""
    machine = Machine(DurationModel(profile), engine)
    runs = (run_iteration(plan, machine) for plan in plans)
    return min(ran.timeline.makespan_s for ran in runs)


def _with_faster_host(plan: Plan, domains: Domains, factor: float) -> Plan:
    """Return the plan with less host time per kernel, if its scenario sets the host time.

    Otherwise the host time is that of the hardware profile, and the plan is unchanged.
    """
    scenario = plan.scenario
    if scenario.host_issue_s is None:
        return plan
    faster = scenario.replace({"software.host_issue": f"{scenario.host_issue_s / factor!r} s"})
    return Plan.of(faster, domains, plan.num_saved_per_stage)


def _auto_recompute_s(
    scenario: Scenario, profiles: tuple[HardwareProfile, HardwareProfile], engine: Engine
) -> tuple[float, float] | None:
    """Return the iteration times with `recompute: auto`, or None if it is illegal or never fits."""
    try:
        with_auto = scenario.replace({"recompute": "auto"})
        now, more = (simulate(with_auto, profile, engine) for profile in profiles)
    except InputError:
        return None  # one of the strategies that `auto` tries is illegal
    if not (now.memory.fits and more.memory.fits):
        return None
    return now.iteration_time_s, more.iteration_time_s
