"""Appendix C: as many microbatches as fit save all activations; the others are recomputed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from simtrain.iteration.plan import Plan
from simtrain.iteration.report.result import Result
from simtrain.paper.entries import Progress, Reproduction, reported
from simtrain.paper.models import PRESENT, paper_scenario
from simtrain.paper.published import reproduction
from simtrain.scenario import Scenario
from simtrain.schedules import Action, most_outstanding
from simtrain.studies.simulation import simulate

PRESENT_WORK, KEEPING = "present work", "keeping what fits"
MODELS = ("175B", "530B")
_KEEP_AUTO = "recompute={strategy: selective, keep_microbatches: auto}"


@dataclass(frozen=True, slots=True)
class ExamplePass:
    """One pass of Figure 10's example, and whether its microbatch saves all activations."""

    action: Action
    stage: int
    start_s: float
    end_s: float
    saves_all: bool


@dataclass(frozen=True, slots=True)
class AppendixC(Reproduction):
    """The reproduction, with the passes of Figure 10's example."""

    example: tuple[ExamplePass, ...]


def appendix_c(progress: Progress | None = None) -> AppendixC:
    """Simulate the 175B and 530B models with and without Appendix C, and Figure 10's example."""
    results: dict[tuple[str, str], Result] = {}
    for case in reported(list(product(MODELS, (PRESENT_WORK, KEEPING))), progress, ", ".join):
        model, variant = case
        overrides = [_KEEP_AUTO] if variant == KEEPING else []
        results[case] = simulate(paper_scenario(model, PRESENT, *overrides))
    gains: dict[str, float] = {}
    kept: dict[tuple[str, str], float] = {}
    for model in MODELS:
        gains[model] = results[model, KEEPING].mfu - results[model, PRESENT_WORK].mfu
        kept |= {(model, name): value for name, value in _kept(results[model, KEEPING].plan)}
    example = simulate(_example())
    windows = most_outstanding(example.plan.schedule).tolist()
    tables = reproduction(
        "appendix-c",
        utilization={case: result.mfu for case, result in results.items()},
        gains=gains,
        kept=kept,
        windows={
            str(stage): (max(0, len(windows) - stage), window)
            for stage, window in enumerate(windows)
        },
    )
    return AppendixC(tables.title, tables.sections, tuple(_passes(example)))


def _kept(plan: Plan) -> Iterator[tuple[str, int]]:
    """Count outstanding microbatches, kept ones, stages, and stages without recompute."""
    outstanding = most_outstanding(plan.schedule).tolist()
    kept = plan.num_saved_per_stage or ()
    yield "forward passes outstanding on the first stage", outstanding[0]
    yield "kept of these", kept[0]
    yield "stages", len(kept)
    whole = sum(number == most for number, most in zip(kept, outstanding, strict=True))
    yield "stages without recompute", whole


def _example() -> Scenario:
    """Load Figure 10's example: 4 stages, 9 microbatches, one kept microbatch per stage."""
    return paper_scenario(
        "22B",
        "full",
        "parallelism.pipeline=4",
        "batch.micro=1",
        "batch.global=9",
        "recompute={strategy: full, keep_microbatches: 1}",
    )


def _passes(example: Result) -> Iterator[ExamplePass]:
    schedule, saves_all = example.plan.schedule, example.plan.pass_order.saves_all.tolist()
    times = zip(*example.iteration.intervals_s(slice(None)), strict=True)
    for place, (start_s, end_s) in enumerate(times):
        action, stage = schedule.action(place), int(schedule.rank[place])
        yield ExamplePass(action, stage, float(start_s), float(end_s), saves_all[place])
