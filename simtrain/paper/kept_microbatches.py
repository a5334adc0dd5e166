"""Appendix C: as many microbatches as fit keep everything, the others are recomputed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.paper.comparison import Progress
from simtrain.paper.entries import NUMBER, PERCENT, Entry, Limit, Reproduction, Section
from simtrain.paper.models import PRESENT, paper_scenario
from simtrain.report.result import Result
from simtrain.scenario import Scenario
from simtrain.schedules import Action, most_outstanding
from simtrain.simulation import simulate

PRESENT_WORK, KEEPING = "present work", "keeping what fits"
PAPER_MFU = {
    "175B": {PRESENT_WORK: 0.514, KEEPING: 0.523},
    "530B": {PRESENT_WORK: 0.560, KEEPING: 0.564},
}
"""Table 5, and Appendix C."""
PAPER_GAIN = {"175B": 0.007, "530B": 0.004}
MFU_RELATIVE, GAIN_POINTS = 0.03, 0.002
_KEEP_AUTO = "recompute={strategy: selective, keep_microbatches: auto}"
_MFU_NOTE = (
    "Paper: Table 5 and Appendix C. Limit: 3 %, that of the times of Table 5, of which these are "
    "the reciprocals."
)
_GAIN_NOTE = (
    "Paper: Appendix C. Limit: 0.2 points, by which the paper differs from itself: +0.7 points for "
    "175B in the appendix, +0.9 against its Table 5."
)
_KEPT_NOTE = (
    "Ours, found by the memory that each stage has left. The paper says of the later stages that "
    "many need no recompute at all."
)
_EXAMPLE_NOTE = (
    "Paper: Appendix C, max(0, p - S) outstanding backward steps at stage S, here p = 4, nine "
    "microbatches and 1F1B as in its Figure 10. One of each stage's outstanding ones is kept."
)


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward or backward pass of the example, and whether its microbatch keeps everything."""

    action: Action
    stage: int
    start_s: float
    end_s: float
    keeps: bool


@dataclass(frozen=True, slots=True)
class AppendixC(Reproduction):
    """With the passes of the example of Figure 10."""

    example: tuple[Pass, ...]


def appendix_c(progress: Progress | None = None) -> AppendixC:
    """Simulate the 175B and 530B models with and without it, and the example of Figure 10."""
    results: dict[tuple[str, str], Result] = {}
    cases = [(model, variant) for model in PAPER_MFU for variant in (PRESENT_WORK, KEEPING)]
    for number, (model, variant) in enumerate(cases):
        if progress:
            progress(f"{model}, {variant}", number, len(cases))
        overrides = [_KEEP_AUTO] if variant == KEEPING else []
        results[model, variant] = simulate(paper_scenario(model, PRESENT, *overrides))
    example = simulate(_example())
    return AppendixC(
        "Appendix C: recompute by microbatch",
        (_utilization(results), _gains(results), _kept(results), _windows(example)),
        tuple(_passes(example)),
    )


def _utilization(results: dict[tuple[str, str], Result]) -> Section:
    entries = []
    for (model, variant), result in results.items():
        paper = PAPER_MFU[model][variant]
        entries.append(Entry((model, variant), paper, result.mfu, Limit.near(paper, MFU_RELATIVE)))
    title = "model FLOPs utilization"
    return Section(title, PERCENT, ("model", "recompute"), tuple(entries), _MFU_NOTE)


def _gains(results: dict[tuple[str, str], Result]) -> Section:
    entries = []
    for model, paper in PAPER_GAIN.items():
        ours = results[model, KEEPING].mfu - results[model, PRESENT_WORK].mfu
        entries.append(Entry((model,), paper, ours, Limit.within(paper, GAIN_POINTS)))
    return Section("what it adds, points", PERCENT, ("model",), tuple(entries), _GAIN_NOTE)


def _kept(results: dict[tuple[str, str], Result]) -> Section:
    entries = []
    for model in PAPER_MFU:
        plan = results[model, KEEPING].plan
        outstanding = [most_outstanding(actions) for actions in plan.schedule.ranks]
        kept = plan.kept_per_stage or ()
        whole = sum(one == most for one, most in zip(kept, outstanding, strict=True))
        for name, value in (
            ("forward passes outstanding on the first stage", outstanding[0]),
            ("of these, kept", kept[0]),
            ("stages", len(kept)),
            ("of these, without recompute", whole),
        ):
            entries.append(Entry((model, name), None, value))
    return Section("what is kept", NUMBER, ("model", "number of"), tuple(entries), _KEPT_NOTE)


def _example() -> Scenario:
    """Four stages and nine microbatches, one outstanding one of each stage kept."""
    return paper_scenario(
        "22B",
        "full",
        "parallelism.pipeline=4",
        "batch.micro=1",
        "batch.global=9",
        "recompute={strategy: full, keep_microbatches: 1}",
    )


def _windows(example: Result) -> Section:
    ranks = example.plan.schedule.ranks
    entries = []
    for stage, actions in enumerate(ranks):
        paper = max(0, len(ranks) - stage)
        ours = most_outstanding(actions)
        entries.append(Entry((str(stage),), paper, ours, Limit.exactly(paper)))
    title = "outstanding backward steps of the example"
    return Section(title, NUMBER, ("stage",), tuple(entries), _EXAMPLE_NOTE)


def _passes(example: Result) -> Iterator[Pass]:
    for stage, actions in enumerate(example.plan.schedule.ranks):
        for action in actions:
            keeps = (action.virtual_stage, action.microbatch) in example.plan.kept
            yield Pass(action, stage, *example.ran.interval_s(action), keeps)
