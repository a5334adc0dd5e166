"""Memory of the paper's models: Figures 1 and 9, and Appendix C."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from itertools import product

from simtrain.guests.paper.entries import (
    PaperEntry,
    PaperLimit,
    Progress,
    Reproduction,
    reported,
    reproduction,
)
from simtrain.guests.paper.layer import Formulas
from simtrain.guests.paper.models import BASELINE, MODELS, PRESENT, paper_plan, paper_scenario
from simtrain.hardware.load import profile_of
from simtrain.iteration.memory.buffers import model_states
from simtrain.iteration.memory.working import MemoryReplay, pass_memory
from simtrain.iteration.plan import Plan
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.schedules import most_outstanding
from simtrain.studies.simulation import simulate


def fig1(progress: Progress | None = None) -> Reproduction:
    """Reproduce the bars of Figure 1, their equations, and the replayed first stage."""
    states, embeddings, equations, activations, totals = {}, {}, {}, {}, {}
    for model in reported(MODELS, progress):
        layers, ends, capacity = _states_bytes(paper_scenario(model, BASELINE))
        states[model], embeddings[model] = layers, ends
        for strategy in (BASELINE, PRESENT):
            labels, plan = (model, strategy), paper_plan(paper_scenario(model, strategy))
            activations[labels] = activations_bytes = replayed_bytes(plan, 0)
            paper = float(Formulas.of(plan.scenario).first_stage_bytes)
            equations[labels] = paper, _layers_bytes(plan)
            fits = strategy == PRESENT
            limit = PaperLimit(highest=capacity) if fits else PaperLimit(lowest=capacity)
            totals[labels] = PaperEntry(labels, None, layers + ends + activations_bytes, limit)
    return reproduction(
        "fig1",
        states=states,
        embeddings=embeddings,
        equations=equations,
        activations=activations,
        totals=totals,
    )


def replayed_bytes(plan: Plan, stage: int) -> int:
    """Return the peak of a stage's activations in bytes, from the replayed schedule."""
    replay = MemoryReplay.of(plan)
    return int(replay.running_bytes[slice(*replay.moments.stage_starts[stage:][:2])].max())


def _states_bytes(scenario: Scenario) -> tuple[int, int, int]:
    """Return bytes of the first stage: states of its layers, other states; and a GPU's capacity."""
    plan = paper_plan(scenario)
    parameters = plan.stage_parameters[0]
    layers = model_states(plan.step_options, parameters.layers).total_bytes
    whole = model_states(plan.step_options, parameters.total).total_bytes
    return layers, whole - layers, profile_of(scenario).gpu.memory_capacity.value


def _layers_bytes(plan: Plan) -> int:
    """Return the layers' activations in all forward passes outstanding on the first stage."""
    layers = plan.layers_pass(plan.scenario.chunks_layers[0], "F")
    return int(most_outstanding(plan.schedule)[0]) * pass_memory(layers).remaining_bytes


_FIGURE_9_MODEL = "530B"
WHOLE, SPLIT = "1F1B, whole outputs", "interleaved, outputs split (present work)"
DEALLOCATED, KEPT = "deallocated", "kept"
LAYOUTS = {
    WHOLE: ("selective", "parallelism.interleave=1", "schedule=1f1b"),
    SPLIT: (PRESENT,),
}


def fig9(progress: Progress | None = None) -> Reproduction:
    """Replay every stage under both layouts, with and without deallocating outputs."""
    curves = {}
    cases = [(layout, outputs) for layout in LAYOUTS for outputs in (DEALLOCATED, KEPT)]
    for layout, outputs in reported(cases, progress, ", ".join):
        plan = _plan(layout, outputs == DEALLOCATED)
        for stage in range(plan.schedule.num_stages):
            curves[layout, outputs, str(stage)] = replayed_bytes(plan, stage)
    savings = {
        layout: curves[layout, KEPT, "0"] - curves[layout, DEALLOCATED, "0"] for layout in LAYOUTS
    }
    # Under 1F1B: the step between consecutive stages, and the spike on the first stage.
    formulas = Formulas.of(_plan(WHOLE, True).scenario)
    first_stages = [curves[WHOLE, DEALLOCATED, str(stage)] for stage in range(formulas.p - 1)]
    steps = [before - after for before, after in itertools.pairwise(first_stages[1:])]
    step = float(formulas.layer_bytes * formulas.layers / formulas.p)
    spike = float(formulas.embedding_dropout_bytes), first_stages[0] - first_stages[1] - steps[0]
    shape = {
        "smallest step from one stage to the next": (step, min(steps)),
        "largest step from one stage to the next": (step, max(steps)),
        "spike on stage 0, above the line through the others": spike,
    }
    return reproduction("fig9", savings=savings, shape=shape, curves=curves)


def _plan(layout: str, deallocate: bool) -> Plan:
    strategy, *overrides = LAYOUTS[layout]
    option = f"memory.deallocate_outputs={str(deallocate).lower()}"
    return paper_plan(paper_scenario(_FIGURE_9_MODEL, strategy, *overrides, option))


PRESENT_WORK, KEEPING = "present work", "keeping what fits"
_KEPT_MODELS = ("175B", "530B")
_KEEP_AUTO = "recompute={strategy: selective, keep_microbatches: auto}"


def appendix_c(progress: Progress | None = None) -> Reproduction:
    """Simulate the 175B and 530B models with and without Appendix C, and Figure 10's example."""
    results: dict[tuple[str, str], Result] = {}
    for case in reported(list(product(_KEPT_MODELS, (PRESENT_WORK, KEEPING))), progress, ", ".join):
        model, variant = case
        overrides = [_KEEP_AUTO] if variant == KEEPING else []
        results[case] = simulate(paper_scenario(model, PRESENT, *overrides))
    gains: dict[str, float] = {}
    kept: dict[tuple[str, str], float] = {}
    for model in _KEPT_MODELS:
        gains[model] = results[model, KEEPING].mfu - results[model, PRESENT_WORK].mfu
        kept |= {(model, name): value for name, value in _kept(results[model, KEEPING].plan)}
    windows = most_outstanding(paper_plan(_example()).schedule).tolist()
    return reproduction(
        "appendix-c",
        utilization={case: result.mfu for case, result in results.items()},
        gains=gains,
        kept=kept,
        windows={
            str(stage): (len(windows) - stage, window) for stage, window in enumerate(windows)
        },
    )


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
    return paper_scenario(
        "22B",
        "full",
        "parallelism.pipeline=4",
        "batch.micro=1",
        "batch.global=9",
        "recompute={strategy: full, keep_microbatches: 1}",
    )
