"""The targets of `simtrain reproduce`: published tables and figures beside simulated ones.

Sources: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(2022), and the example of Rajbhandari et al., "ZeRO" (2020)."""

from __future__ import annotations

from simtrain.hardware.load import profile_of
from simtrain.iteration.report.result import Result
from simtrain.paper.entries import AllTargets as AllTargets
from simtrain.paper.entries import PaperEntry, PaperLimit, Progress, TimeComparison, reported
from simtrain.paper.entries import Reproduction as Reproduction
from simtrain.paper.entries import TargetResult as TargetResult
from simtrain.paper.layer import fig7 as fig7
from simtrain.paper.layer import fig8 as fig8
from simtrain.paper.layer import table2 as table2
from simtrain.paper.memory import appendix_c as appendix_c
from simtrain.paper.memory import fig1 as fig1
from simtrain.paper.memory import fig9 as fig9
from simtrain.paper.memory import zero as zero
from simtrain.paper.models import PRESENT
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate, simulate_layer

TABLE4_MS = {
    "baseline": (7.7, 11.9),
    "sequence": (7.2, 11.8),
    "full": (7.7, 19.5),
    "selective": (7.7, 13.2),
    "selective+sequence": (7.2, 13.1),
}
"""Forward and backward time in ms, including recompute."""
PASSES = ("forward", "backward")
TABLE5 = {
    "22B": (1.42, 1.10, 0.290, 0.415, 0.422),
    "175B": (18.13, 13.75, 0.318, 0.514, 0.518),
    "530B": (49.05, 37.83, 0.297, 0.560, 0.564),
    "1T": (94.42, 71.49, 0.321, 0.563, 0.565),
}
"""Times in s of full recompute and present work; gain, MFU and HFU of present work."""
DATA_PARALLEL_530B_S = 39.15
"""Section 6.3: 8-way data parallelism with exposed gradient all-reduces."""

TABLE4_MEAN, TABLE4_MAX = 0.02, 0.04
TABLE5_MEAN, TABLE5_MAX, GAIN_POINTS = 0.015, 0.03, 0.015
DATA_PARALLEL_MAX = 0.02


def table4(progress: Progress | None = None) -> TimeComparison:
    """Simulate one layer under each strategy, forward and backward."""
    rows = []
    for strategy in reported(list(TABLE4_MS), progress):
        scenario = load_scenario(f"table4_{strategy.replace('+', '_')}")
        passes = simulate_layer(scenario, profile_of(scenario))
        for name, paper_ms, time in zip(PASSES, TABLE4_MS[strategy], passes, strict=True):
            paper_s, facts = paper_ms / 1e3, {"pass": name}
            rows.append(PaperEntry(("22B", strategy), paper_s, time.duration_s, facts=facts))
    title = "Table 4: one layer of the 22B model (the profile was fitted on it)"
    return TimeComparison(title, rows, TABLE4_MEAN, TABLE4_MAX)


def table5(progress: Progress | None = None) -> TimeComparison:
    """Simulate the eight runs of Table 5."""
    names = [f"table5_{model.lower()}_{run}" for model in TABLE5 for run in ("full", "present")]
    results = (simulate(load_scenario(name)) for name in reported(names, progress))
    rows, gains = [], []
    for model, (full_s, present_s, paper_gain, mfu, hfu) in TABLE5.items():
        full, present = next(results), next(results)
        rows.append(_row(model, "full", full_s, full))
        rows.append(_row(model, PRESENT, present_s, present, paper_mfu=mfu, paper_hfu=hfu))
        gain = full.iteration_time_s / present.iteration_time_s - 1
        gains.append(
            PaperEntry((model,), paper_gain, gain, PaperLimit.within(paper_gain, GAIN_POINTS))
        )
    title = "Table 5: end-to-end iteration time"
    return TimeComparison(title, rows, TABLE5_MEAN, TABLE5_MAX, gains, GAIN_POINTS)


def dp530b(progress: Progress | None = None) -> TimeComparison:
    """Simulate the 530B model on 2240 GPUs with exposed and with overlapped all-reduces."""
    cases = ((), ("overlap.data_parallel=true",))
    exposed, hidden = (
        simulate(load_scenario("dp530b", overrides))
        for overrides in reported(cases, progress, lambda overrides: "dp530b")
    )
    facts = {"paper_mfu": 0.542, "overlapped_s": hidden.iteration_time_s}
    row = _row("530B", PRESENT, DATA_PARALLEL_530B_S, exposed, **facts)
    title = "530B with 8-way data parallelism (Section 6.3)"
    return TimeComparison(title, [row], DATA_PARALLEL_MAX, DATA_PARALLEL_MAX)


def _row(model: str, strategy: str, paper_s: float, ours: Result, **facts: float) -> PaperEntry:
    utilization = {"mfu": ours.mfu, "hfu": ours.hfu}
    return PaperEntry((model, strategy), paper_s, ours.iteration_time_s, facts=utilization | facts)


def reproduce(target: str, progress: Progress | None = None) -> TargetResult:
    """Simulate a table or figure and compare it with the published values."""
    result: TargetResult = globals()[target.replace("-", "_")](progress)
    return result
