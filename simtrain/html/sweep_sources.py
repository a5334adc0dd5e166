"""Sources of the numbers in a report on a sweep."""

from __future__ import annotations

from simtrain.html.number_sources import NumberSource

_QUERY = 'query FOLDER "select * from results where index = INDEX"'
_MEANINGS = {
    "iteration_time_s": "The end of the last task of the point's simulated timeline.",
    "tokens_per_s": "Sequences of the global batch × sequence length / iteration time.",
    "mfu": "Model FLOPs / (GPUs × peak FLOP/s of bf16 × iteration time).",
    "hfu": "MFU, with the FLOPs of recompute added.",
    "peak_bytes": "Bytes of the fullest stage: tensors at its peak, and the allocator's allowance.",
    "capacity_bytes": "Memory of a GPU, an entry of the hardware profile.",
    "num_gpus": "The product of all degrees of parallelism.",
    r"breakdown_\w+": "A part of the iteration time, the mean over the stages.",
    r"gpu_hours_\w+": "GPUs × time to train on these tokens.",
    r"price_\w+": "GPU hours × the price of a GPU-hour, an entry of the hardware profile.",
}
"""What the columns of a sweep's results are computed from."""

SWEEP_SOURCES = (
    *(
        NumberSource(rf"/panels/\d+/points/\d+(/{column})", _QUERY, meaning, prefix="/rows/0")
        for column, meaning in _MEANINGS.items()
    ),
    NumberSource(
        r"/panels/\d+/points/\d+(/.*)",
        _QUERY,
        "The value of an axis of the sweep at this point.",
        prefix="/rows/0",
    ),
    NumberSource(r"/panels/\d+(/name)", "", "The scenario that the sweep changes."),
    NumberSource(
        r"/fronts(/[^/]*/\d+/time)",
        "plot FOLDER",
        "The iteration time in seconds, or GPU-seconds per million tokens if points differ in "
        "GPUs or tokens.",
        prefix="/fronts",
    ),
    NumberSource(
        r"/fronts(/[^/]*/\d+/.*)",
        "plot FOLDER",
        "A point that no other point beats in both time and memory.",
        prefix="/fronts",
    ),
    NumberSource(
        r"/scaling(/.*)",
        "plot FOLDER",
        "The tokens per second of the fastest point with this number of GPUs.",
        prefix="/scaling",
    ),
    NumberSource(
        r"/scaling_efficiency(/.*)",
        "plot FOLDER",
        "Tokens per second per GPU / those of the fewest GPUs.",
        prefix="/scaling_efficiency",
    ),
    NumberSource(
        r"/heat_map(/.*)",
        "plot FOLDER",
        "The best point with these values of both axes.",
        prefix="/heat_map",
    ),
    NumberSource(r"/num_points(/.*)", "plot FOLDER", "A count of points.", prefix="/num_points"),
    NumberSource(r"(/most_points)", "", "The page lists no more points of each scenario."),
    NumberSource(
        r"/points/\d+(/extrapolated_compute)",
        "",
        "A share of the kernel time of all passes: shapes outside the range that the profile was "
        "fitted on. `simtrain run --json` prints it for a scenario with the point's settings.",
    ),
    NumberSource(r"/points/\d+(/.*)", "", "What sweep.json has about a point."),
    NumberSource(r"/profiles/([^/]+)(/.*)", "profile show FIGURE", "An entry, with its source."),
    NumberSource(
        r"/made_with(/.*)",
        "",
        "The version of simtrain and the files of hardware profiles that computed the numbers.",
    ),
    NumberSource(r"(/sweep)", "", "The name of the sweep."),
)
"""Sources of a report on a sweep, in order of precedence: the first match applies."""
