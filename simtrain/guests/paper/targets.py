"""The targets of `simtrain reproduce`: published tables and figures beside simulated ones.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022).
"""

from __future__ import annotations

from simtrain.guests.paper.entries import AllTargets as AllTargets
from simtrain.guests.paper.entries import (
    PaperEntry,
    PaperLimit,
    Progress,
    TimeComparison,
    published,
    reported,
)
from simtrain.guests.paper.entries import Reproduction as Reproduction
from simtrain.guests.paper.entries import TargetResult as TargetResult
from simtrain.guests.paper.layer import fig7 as fig7
from simtrain.guests.paper.layer import fig8 as fig8
from simtrain.guests.paper.layer import table2 as table2
from simtrain.guests.paper.memory import appendix_c as appendix_c
from simtrain.guests.paper.memory import fig1 as fig1
from simtrain.guests.paper.memory import fig9 as fig9
from simtrain.guests.paper.models import PRESENT
from simtrain.hardware.load import profile_of
from simtrain.iteration.report.result import Result
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate, simulate_layer

PASSES = ("forward", "backward")


def table4(progress: Progress | None = None) -> TimeComparison:
    """Simulate one layer under each strategy, forward and backward."""
    about, rows = published("table4"), []
    for strategy in reported(list(about["rows"]), progress):
        scenario = load_scenario(f"table4_{strategy.replace('+', '_')}")
        passes = simulate_layer(scenario, profile_of(scenario))
        for name, paper_ms, time in zip(PASSES, about["rows"][strategy], passes, strict=True):
            paper_s, facts = paper_ms / 1e3, {"pass": name}
            rows.append(PaperEntry(("22B", strategy), paper_s, time.duration_s, facts=facts))
    return TimeComparison(about["title"], rows, *about["limits"])


def table5(progress: Progress | None = None) -> TimeComparison:
    """Simulate the eight runs of Table 5."""
    about = published("table5")
    mean, largest, points = about["limits"]
    models = about["rows"]
    names = [f"table5_{model.lower()}_{run}" for model in models for run in ("full", "present")]
    results = (simulate(load_scenario(name)) for name in reported(names, progress))
    rows, gains = [], []
    for model, (full_s, present_s, paper_gain, mfu, hfu) in models.items():
        full, present = next(results), next(results)
        rows.append(_row(model, "full", full_s, full))
        rows.append(_row(model, PRESENT, present_s, present, paper_mfu=mfu, paper_hfu=hfu))
        gain = full.iteration_time_s / present.iteration_time_s - 1
        limit = PaperLimit.within(paper_gain, points)
        gains.append(PaperEntry((model,), paper_gain, gain, limit))
    return TimeComparison(about["title"], rows, mean, largest, gains, points)


def dp530b(progress: Progress | None = None) -> TimeComparison:
    """Simulate the 530B model on 2240 GPUs with exposed and with overlapped all-reduces."""
    about, cases = published("dp530b"), ((), ("overlap.data_parallel=true",))
    exposed, hidden = (
        simulate(load_scenario("dp530b", overrides))
        for overrides in reported(cases, progress, lambda overrides: "dp530b")
    )
    facts = {"paper_mfu": 0.542, "overlapped_s": hidden.iteration_time_s}
    row = _row("530B", PRESENT, about["seconds"], exposed, **facts)
    return TimeComparison(about["title"], [row], *about["limits"])


def _row(model: str, strategy: str, paper_s: float, ours: Result, **facts: float) -> PaperEntry:
    utilization = {"mfu": ours.mfu, "hfu": ours.hfu}
    return PaperEntry((model, strategy), paper_s, ours.iteration_time_s, facts=utilization | facts)


def reproduce(target: str, progress: Progress | None = None) -> TargetResult:
    """Simulate a table or figure and compare it with the published values."""
    result: TargetResult = globals()[target.replace("-", "_")](progress)
    return result
