"""Table 4: forward and backward time of one layer of the 22B model."""

from __future__ import annotations

from simtrain.hardware.load import profile_of
from simtrain.paper.comparison import Comparison, Progress, Row
from simtrain.scenario import load_scenario
from simtrain.simulation import simulate_layer

TABLE4_MS = {
    "baseline": (7.7, 11.9),
    "sequence": (7.2, 11.8),
    "full": (7.7, 19.5),
    "selective": (7.7, 13.2),
    "selective+sequence": (7.2, 13.1),
}
"""Milliseconds forward and backward, recompute included."""
PASSES = ("forward", "backward")
TABLE4_MEAN, TABLE4_MAX = 0.02, 0.04


def table4(progress: Progress | None = None) -> Comparison:
    """Simulate one layer under each strategy, forward and backward."""
    rows: list[Row] = []
    for number, (strategy, published_ms) in enumerate(TABLE4_MS.items()):
        if progress:
            progress(strategy, number, len(TABLE4_MS))
        scenario = load_scenario(f"table4_{strategy.replace('+', '_')}")
        profile = profile_of(scenario)
        passes = simulate_layer(scenario, profile)
        for name, milliseconds, time in zip(PASSES, published_ms, passes, strict=True):
            rows.append(Row("22B", strategy, milliseconds / 1e3, time.duration_s, {"pass": name}))
    title = "Table 4: one layer of the 22B model (the profile was fitted on it)"
    return Comparison(title, rows, TABLE4_MEAN, TABLE4_MAX)
