"""Figure 8: forward, backward and recompute time of a layer of each model."""

from __future__ import annotations

from simtrain.hardware.load import profile_of
from simtrain.paper.entries import Progress, Reproduction, reported
from simtrain.paper.models import BASELINE, MODELS, PRESENT, paper_scenario
from simtrain.paper.published import reproduction
from simtrain.simulation import simulate_layer

BARS = (BASELINE, "full", PRESENT)
PARTS = ("forward", "backward", "recompute")


def fig8(progress: Progress | None = None) -> Reproduction:
    """Simulate one layer per model: baseline, full recompute, and present work."""
    times, overheads = {}, {}
    for model in reported(MODELS, progress):
        parts = {strategy: _parts_s(model, strategy) for strategy in BARS}
        for strategy in BARS:
            for name, part_s in zip(PARTS, parts[strategy], strict=True):
                times[model, strategy, name] = part_s
        for strategy in BARS[1:]:
            overheads[model, strategy] = sum(parts[strategy]) / sum(parts[BASELINE]) - 1
    return reproduction("fig8", times=times, overheads=overheads)


def _parts_s(model: str, strategy: str) -> tuple[float, float, float]:
    """Return the times of the forward pass, the backward pass without recompute, and recompute."""
    forward_s, backward_s = _passes_s(model, strategy)
    kept = "sequence" if strategy == PRESENT else BASELINE
    _, kept_s = _passes_s(model, kept)
    return forward_s, kept_s, backward_s - kept_s


def _passes_s(model: str, strategy: str) -> tuple[float, float]:
    scenario = paper_scenario(model, strategy)
    forward, backward = simulate_layer(scenario, profile_of(scenario))
    return forward.duration_s, backward.duration_s
