"""Figure 8: forward, backward and recompute time of a layer of each model."""

from __future__ import annotations

from simtrain.paper.entries import Progress, Reproduction, reported
from simtrain.paper.models import BASELINE, MODELS, PRESENT
from simtrain.paper.published import reproduction
from simtrain.paper.recompute_tax import layer_times


def fig8(progress: Progress | None = None) -> Reproduction:
    """Simulate one layer per model: baseline, full recompute, and present work."""
    times, overheads = {}, {}
    for model in reported(MODELS, progress):
        whole, sharded = (
            layer_times(model, sequence_parallel=is_sharded) for is_sharded in (False, True)
        )
        bars = {BASELINE: whole["none"], "full": whole["full"], PRESENT: sharded["selective"]}
        for strategy, layer in bars.items():
            times[model, strategy, "forward"] = layer.forward_s
            times[model, strategy, "backward"] = layer.backward_s
            times[model, strategy, "recompute"] = layer.recompute_s
            if strategy != BASELINE:
                overheads[model, strategy] = layer.total_s / bars[BASELINE].total_s - 1
    return reproduction("fig8", times=times, overheads=overheads)
