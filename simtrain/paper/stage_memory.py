"""Figure 9: activations memory of the 530B model by pipeline stage (Appendix B)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from simtrain.paper.comparison import Progress
from simtrain.paper.entries import GIB, Entry, Limit, Reproduction, Section
from simtrain.paper.formulas import Formulas
from simtrain.paper.gpu_memory import replayed_bytes
from simtrain.paper.models import PRESENT, paper_plan, paper_scenario
from simtrain.plan import Plan

MODEL = "530B"
WHOLE, SPLIT = "1F1B, whole outputs", "interleaved, outputs split (present work)"
DEALLOCATED, KEPT = "deallocated", "kept"
LAYOUTS = {
    WHOLE: ("selective", "parallelism.interleave=1", "schedule=1f1b"),
    SPLIT: (PRESENT,),
}
CURVES = "activations memory by stage"
SAVED_GIB = 2.73
_SAVING_NOTE = (
    "Paper: Appendix B, 2.73 GiB, which is 2sbh for each of the p microbatches in flight: whole "
    "outputs, under 1F1B and without sequence parallelism. With it each rank holds 1/t of them, "
    "while interleaved more of them are in flight, one of each chunk's forward passes."
)
_SHAPE_NOTE = (
    "Paper: Appendix B and Section 4.3: one microbatch less in flight from stage to stage, and on "
    "stage 0 the masks of the embedding's dropout, sbh bytes for each of p microbatches. The last "
    "stage, with the head and no output, is left out."
)


def fig9(progress: Progress | None = None) -> Reproduction:
    """Replay every stage under both layouts, with and without deallocating outputs."""
    curves = _curves(progress)
    return Reproduction(
        "Figure 9: activations memory of the 530B model by pipeline stage",
        (_savings(curves), _shape(curves), curves),
    )


def _plan(layout: str, deallocate: bool) -> Plan:
    strategy, *overrides = LAYOUTS[layout]
    option = f"memory.deallocate_outputs={str(deallocate).lower()}"
    return paper_plan(paper_scenario(MODEL, strategy, *overrides, option))


def _curves(progress: Progress | None) -> Section:
    entries: list[Entry] = []
    cases = [(layout, outputs) for layout in LAYOUTS for outputs in (DEALLOCATED, KEPT)]
    for number, (layout, outputs) in enumerate(cases):
        if progress:
            progress(f"{layout}, {outputs}", number, len(cases))
        plan = _plan(layout, outputs == DEALLOCATED)
        for stage in range(plan.schedule.num_stages):
            held = replayed_bytes(plan, stage)
            entries.append(Entry((layout, outputs, str(stage)), None, held))
    labels = ("layout", "outputs", "stage")
    return Section(CURVES, GIB, labels, tuple(entries), "", across=labels[:2])


def _savings(curves: Section) -> Section:
    """What deallocating saves on the first stage."""
    saved = {
        layout: curves.value(layout, KEPT, "0") - curves.value(layout, DEALLOCATED, "0")
        for layout in LAYOUTS
    }
    paper = SAVED_GIB * 2**30
    return Section(
        "saved on the first stage by deallocating outputs",
        GIB,
        ("layout",),
        (
            Entry((WHOLE,), paper, saved[WHOLE], Limit.within(paper, 0.005 * 2**30)),
            Entry((SPLIT,), None, saved[SPLIT]),
        ),
        _SAVING_NOTE,
    )


def _shape(curves: Section) -> Section:
    """The line from stage to stage and the spike on the first, under 1F1B."""
    formulas = Formulas.of(_plan(WHOLE, True).scenario)
    held = [curves.value(WHOLE, DEALLOCATED, str(stage)) for stage in range(formulas.p - 1)]
    steps = list(_steps(held[1:]))
    step = float(formulas.layer_bytes * formulas.layers / formulas.p)
    spike = float(formulas.embedding_dropout_bytes)
    entries = (
        Entry(("smallest step from a stage to the next",), step, min(steps), Limit.exactly(step)),
        Entry(("largest step from a stage to the next",), step, max(steps), Limit.exactly(step)),
        Entry(
            ("spike on stage 0, above the line through the others",),
            spike,
            held[0] - held[1] - steps[0],
            Limit.exactly(spike),
        ),
    )
    return Section(f"shape of the curve: {WHOLE}", GIB, ("part",), entries, _SHAPE_NOTE)


def _steps(held: list[float]) -> Iterator[float]:
    return (before - after for before, after in itertools.pairwise(held))
