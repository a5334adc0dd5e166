"""Figure 8: forward, backward and recompute time of a layer of each model."""

from __future__ import annotations

from simtrain.hardware.load import profile_of
from simtrain.paper.comparison import Progress
from simtrain.paper.entries import MILLISECONDS, PERCENT, Entry, Limit, Reproduction, Section
from simtrain.paper.models import BASELINE, MODELS, PRESENT, paper_scenario
from simtrain.simulation import simulate_layer

BARS = (BASELINE, "full", PRESENT)
PARTS = ("forward", "backward", "recompute")
TIMES, OVERHEADS = "time of a layer", "overhead over the baseline"
OVERHEAD_POINTS = {"full": 0.02, PRESENT: 0.015}
PAPER_OVERHEADS = {
    ("22B", "full"): 0.39,
    ("22B", PRESENT): 0.04,
    ("530B", "full"): 0.36,
    ("530B", PRESENT): 0.02,
    ("1T", "full"): 0.36,
    ("1T", PRESENT): 0.02,
}
"""Table 4 for the 22B model, Section 6.2 for the two largest; none is given for 175B."""
_TIMES_NOTE = (
    "The paper draws these bars without figures (the 22B model's are Table 4). Recompute is what "
    "it adds to the backward pass, its exposed collectives included."
)
_OVERHEADS_NOTE = (
    "Paper: Table 4 (22B), to which the profile was fitted, and Section 6.2 (530B and 1T), in "
    "whole points. Limit: that rounding and 1 % of each of the two times (2 points) or, where they "
    "are nearly the same work, of one of them (1.5)."
)


def fig8(progress: Progress | None = None) -> Reproduction:
    """Simulate one layer of each model as the baseline, with full recompute, and as proposed."""
    times, overheads = [], []
    for number, model in enumerate(MODELS):
        if progress:
            progress(model, number, len(MODELS))
        parts = {strategy: _parts_s(model, strategy) for strategy in BARS}
        baseline_s = sum(parts[BASELINE])
        for strategy in BARS:
            for name, part_s in zip(PARTS, parts[strategy], strict=True):
                times.append(Entry((model, strategy, name), None, part_s))
        for strategy in BARS[1:]:
            paper = PAPER_OVERHEADS.get((model, strategy))
            limit = None if paper is None else Limit.within(paper, OVERHEAD_POINTS[strategy])
            ours = sum(parts[strategy]) / baseline_s - 1
            overheads.append(Entry((model, strategy), paper, ours, limit))
    labels = ("model", "strategy")
    sections = (
        Section(TIMES, MILLISECONDS, (*labels, "part"), tuple(times), _TIMES_NOTE, ("part",)),
        Section(OVERHEADS, PERCENT, labels, tuple(overheads), _OVERHEADS_NOTE),
    )
    return Reproduction("Figure 8: forward, backward and recompute of a layer", sections)


def _parts_s(model: str, strategy: str) -> tuple[float, float, float]:
    """Forward pass, backward pass without recompute, and what recompute adds to it."""
    forward_s, backward_s = _passes_s(model, strategy)
    kept = "sequence" if strategy == PRESENT else BASELINE
    _, kept_s = _passes_s(model, kept)
    return forward_s, kept_s, backward_s - kept_s


def _passes_s(model: str, strategy: str) -> tuple[float, float]:
    scenario = paper_scenario(model, strategy)
    forward, backward = simulate_layer(scenario, profile_of(scenario))
    return forward.duration_s, backward.duration_s
