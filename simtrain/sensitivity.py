"""How much shorter the iteration gets with more of one resource of the cluster.

The engine runs the iteration again for each resource: no formula says what is hidden or exposed.
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
"""More of a resource: rates times this factor, latencies divided by it."""
_MEMORY, _HOST = "memory_capacity", "host"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Iteration times with `factor` times as much of each resource.

    Args:
        iteration_time_s: of the scenario as it is.
        with_more_s: of the scenario with more of a resource, by the names of `RESOURCES`.
        recompute: the scenario's strategy; `auto` if any of its recompute is chosen.
        auto_recompute_s: iteration times with `recompute: auto`, on the cluster as it is and with
            more memory; None if the scenario recomputes nothing or leaves it open itself, or if no
            recompute fits.
    """

    iteration_time_s: float
    with_more_s: dict[str, float]
    recompute: str
    auto_recompute_s: tuple[float, float] | None
    factor: float = FACTOR

    @property
    def saved(self) -> dict[str, float]:
        """Share of the iteration that more of each resource saves, the largest first."""
        shares = {name: 1 - time / self.iteration_time_s for name, time in self.with_more_s.items()}
        return dict(sorted(shares.items(), key=lambda one: -one[1]))

    @property
    def memory_remark(self) -> str:
        """What more memory can change."""
        if self.recompute == "auto":
            return "Recompute is chosen again for the larger memory."
        if self.recompute == "none":
            return "More memory shortens nothing: nothing is recomputed."
        unused = f"More memory alone shortens nothing: recompute is {self.recompute}"
        if self.auto_recompute_s is None:
            return f"{unused}."
        now, more = map(format_seconds, self.auto_recompute_s)
        return (
            f"{unused}. With recompute: auto the iteration takes {now} ({more} with more memory)."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, in full precision."""
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
        scenario: as for `simulate`. What it leaves open of its recompute is chosen anew each time.
        profile: as for `simulate`.
        factor: how many times as much of a resource there is.
        engine: as for `simulate`.
        on_progress: called with the resource that is tried next, in words.

    Raises:
        InputError: as `simulate`.
    """
    base = checked_profile(scenario, profile)
    larger = with_more(base, [RESOURCES[_MEMORY]], factor)
    plans = _plans(scenario, base, engine)
    now_s = _time_s(plans, base, engine)

    def time_with_more_s(name: str, resource: Resource) -> float:
        on_progress(f"more of: {resource.label}")
        if name == _MEMORY:
            # Memory decides nothing but the recompute that is open.
            is_decided = not is_open(scenario)
            return now_s if is_decided else _time_s(_plans(scenario, larger, engine), base, engine)
        domains = base.cluster.domains
        tried = [_with_faster_host(one, domains, factor) for one in plans]
        more = with_more(base, [resource], factor)
        return _time_s(tried if name == _HOST else plans, more, engine)

    times = {name: time_with_more_s(name, resource) for name, resource in RESOURCES.items()}
    strategy, auto_s = scenario.recompute.strategy, None
    if not is_open(scenario) and strategy != "none":
        on_progress("recompute: auto")
        auto_s = _auto_recompute_s(scenario, (base, larger), engine)
    strategy = "auto" if is_open(scenario) else strategy
    return Sensitivity(now_s, times, strategy, auto_s, factor)


def _plans(scenario: Scenario, profile: HardwareProfile, engine: Engine) -> list[Plan]:
    """The scenario's plan; one for each recompute that fits if the scenario leaves it open."""

    def plan_of(one: Scenario, kept: tuple[int, ...] | None = None) -> Plan:
        return Plan.of(one, profile.cluster.domains, kept)

    if not is_open(scenario):
        return [plan_of(scenario)]
    machine = Machine(DurationModel(profile), engine)
    choice = choose(scenario, profile, plan_of, lambda plan: simulate_iteration(plan, machine))
    # Speed changes which of them is the fastest, but not which of them fit.
    return [one.plan for one in choice.trials if one.memory.fits] or [choice.chosen.plan]


def _time_s(plans: list[Plan], profile: HardwareProfile, engine: Engine) -> float:
    """Iteration time of the fastest plan."""
    machine = Machine(DurationModel(profile), engine)
    runs = (run_iteration(plan, machine, engine) for plan in plans)
    return min(ran.timeline.makespan_s for _, ran in runs)


def _with_faster_host(plan: Plan, domains: Domains, factor: float) -> Plan:
    """The plan with less host time a kernel, if that is not the hardware profile's."""
    scenario = plan.scenario
    if scenario.host_issue_s is None:
        return plan
    faster = scenario.replace({"software.host_issue": f"{scenario.host_issue_s / factor!r} s"})
    return Plan.of(faster, domains, plan.num_saved_per_stage)


def _auto_recompute_s(
    scenario: Scenario, profiles: tuple[HardwareProfile, HardwareProfile], engine: Engine
) -> tuple[float, float] | None:
    try:
        is_auto = scenario.replace({"recompute": "auto"})
        now, more = (simulate(is_auto, profile, engine) for profile in profiles)
    except InputError:
        return None  # The framework refuses one of the strategies that `auto` tries.
    if not (now.memory.fits and more.memory.fits):
        return None
    return now.iteration_time_s, more.iteration_time_s
