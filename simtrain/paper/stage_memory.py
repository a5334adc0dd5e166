"""Figure 9: activation memory of the 530B model by pipeline stage (Appendix B)."""

from __future__ import annotations

import itertools

from simtrain.iteration.plan import Plan
from simtrain.paper.entries import Progress, Reproduction, reported
from simtrain.paper.formulas import Formulas
from simtrain.paper.gpu_memory import replayed_bytes
from simtrain.paper.models import PRESENT, paper_plan, paper_scenario
from simtrain.paper.published import reproduction

MODEL = "530B"
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
    return paper_plan(paper_scenario(MODEL, strategy, *overrides, option))
