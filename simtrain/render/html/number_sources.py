"""Sources of the numbers in reports: the command that prints each number, and its meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberSource:
    """Source of a kind of numbers.

    Args:
        places: a regular expression that matches the JSON pointers of the numbers. Its last group
            is the pointer of the same number in the JSON of the command.
        command: the command that prints the numbers with `--json`; none for numbers that only
            the page has. X is replaced by the scenario, CLUSTER by its hardware profile, FIGURE
            by the first group of `places`, FOLDER by the results of a sweep, and INDEX by a point.
        meaning: what the numbers are computed from.
        has_parts: whether the section Sources shows the parts of their main figure, down to
            profile entries.
        prefix: the pointer in the command's JSON begins with it.
    """

    places: str
    command: str
    meaning: str
    has_parts: bool = False
    prefix: str = ""


def _sources(
    command: str,
    root: str,
    meanings: Mapping[str, str],
    *,
    has_parts: bool = False,
    prefix: str = "",
) -> Iterator[NumberSource]:
    """Yield the sources of numbers below `root`, whose pointers from there have `meanings`."""
    for pointer, meaning in meanings.items():
        yield NumberSource(f"{root}({pointer})", command, meaning, has_parts, prefix)


_RUN, _POINT = r"/runs/\d+", r"/panels/\d+/points/\d+"
_MFU = "Model FLOPs / (GPUs × peak FLOP/s of bf16 × iteration time)."
_HFU = "MFU, with the FLOPs of recompute added."
_TOKENS_PER_S = "Sequences of the global batch × sequence length / iteration time."
_ENTRY = "An entry of the hardware profile, which states its source."

NUMBER_SOURCES = (
    *_sources(
        "run X",
        f"{_RUN}/result",
        {
            "/iteration_time_s": "The end of the last task of the simulated timeline.",
            r"/interval_s/\w+": "A quantile of the measured time, from the errors of other "
            "predictions of its kind.",
            "/mfu": _MFU,
            r"/mfu_by_peak/\w+": "Model FLOPs / (GPUs × peak FLOP/s of this data type × iteration "
            "time).",
            "/hfu": _HFU,
            "/tokens_per_s": _TOKENS_PER_S,
            "/(?:extrapolated_compute|host_bound)": "A share of the time of the operators of all "
            "passes.",
            r"/(?:breakdown_s|stages_s/\d+)/\w+": "A part of a stage's time in the timeline. The "
            "breakdown is the mean over the stages.",
            "/memory/.*": "Bytes of the tensors that exist at the stage's peak, and the "
            "allocator's allowance.",
        },
        has_parts=True,
    ),
    *_sources(
        "run X",
        f"{_RUN}/result",
        {
            r"/num_\w+": "A count that follows from the scenario.",
            "/settings/.*": "A setting: of the scenario, or its default.",
            "/validated_on/.*": "Predicted iteration times compared with measured ones, as the "
            "cited source says.",
            "/.*": "A fact about the simulated iteration.",
        },
    ),
    *_sources(
        "run X --ops",
        f"{_RUN}/operators",
        {"/limits/.*": "A limit of one GPU, from the hardware profile.", "/entries/.*": _ENTRY},
    ),
    *_sources(
        "run X --ops",
        f"{_RUN}/operators",
        {
            "/.*": "A sum over equal ops of one rank. The row names the entries of the hardware "
            "profile."
        },
        has_parts=True,
    ),
    *_sources(
        "explain X FIGURE",
        rf"{_RUN}/explained/(\w+)",
        {
            "/sources/.*": _ENTRY,
            "/.*": "A part of a figure. It lists its profile entries; the table below has their "
            "sources.",
        },
    ),
    *_sources(
        "profile show CLUSTER", f"{_RUN}/profile", {"/.*": "A fact about the hardware profile."}
    ),
    *_sources(
        "",
        f"{_RUN}/timeline",
        {
            "/.*": "A bar of the simulated timeline. simtrain run X --trace writes the same tasks "
            "to a file."
        },
        has_parts=True,
    ),
    *_sources(
        "",
        _RUN,
        {
            r"/curves/\d+/points/\d+/(?:factor|label/.*)": "The factor of a resource, or an entry "
            "of the hardware profile with it.",
            r"/curves/\d+/.*": "A figure of a simulation with this factor times as much of one "
            "resource of the hardware profile.",
            "/name": "The scenario, by the name that the report was given.",
        },
    ),
    *_sources(
        "compare X",
        "/comparison",
        {
            r"/differences/\d+/.*": "The second scenario's breakdown minus the first one's.",
            r"/scenarios/\d+/with_more/.*": "The iteration time saved, from a simulation with more "
            "of one resource of the cluster.",
            r"/scenarios/\d+/.*": "A figure of one scenario. The parts of its critical path add up "
            "to the iteration time.",
        },
    ),
    *_sources(
        "",
        "/made_with",
        {
            "/.*": "The version of simtrain and the file of the hardware profile that computed the "
            "numbers."
        },
    ),
)
"""Sources of a report on iterations, in order of precedence: the first match applies."""

SWEEP_SOURCES = (
    *_sources(
        'query FOLDER "select * from results where index = INDEX"',
        _POINT,
        {
            "/iteration_time_s": "The end of the last task of the point's simulated timeline.",
            "/tokens_per_s": _TOKENS_PER_S,
            "/mfu": _MFU,
            "/hfu": _HFU,
            "/peak_bytes": "Bytes of the fullest stage: tensors at its peak, and the allocator's "
            "allowance.",
            "/capacity_bytes": "Memory of a GPU, an entry of the hardware profile.",
            "/num_gpus": "The product of all degrees of parallelism.",
            r"/breakdown_\w+": "A part of the iteration time, the mean over the stages.",
            r"/gpu_hours_\w+": "GPUs × time to train on these tokens.",
            r"/price_\w+": "GPU hours × the price of a GPU-hour, an entry of the hardware profile.",
            "/.*": "The value of an axis of the sweep at this point.",
        },
        prefix="/rows/0",
    ),
    *_sources(
        "plot FOLDER",
        "",
        {
            r"/fronts/[^/]*/\d+/time": "The iteration time in seconds, or GPU-seconds per million "
            "tokens if points differ in GPUs or tokens.",
            r"/fronts/[^/]*/\d+/.*": "A point that no other point beats in both time and memory.",
            "/scaling/.*": "The tokens per second of the fastest point with this number of GPUs.",
            "/scaling_efficiency/.*": "Tokens per second per GPU / those of the fewest GPUs.",
            "/heat_map/.*": "The best point with these values of both axes.",
            "/num_points/.*": "A count of points.",
        },
    ),
    *_sources("profile show FIGURE", "/profiles/([^/]+)", {"/.*": "An entry, with its source."}),
    *_sources(
        "",
        "",
        {
            "/sweep": "The name of the sweep.",
            r"/panels/\d+/name": "The scenario that the sweep changes.",
            "/most_points": "The page lists no more points of each scenario.",
            r"/points/\d+/extrapolated_compute": "A share of the kernel time of all passes: shapes "
            "outside the range that the profile was fitted on. `simtrain run --json` prints it for "
            "a scenario with the point's settings.",
            r"/points/\d+/.*": "What sweep.json has about a point.",
            "/made_with/.*": "The version of simtrain and the files of hardware profiles that "
            "computed the numbers.",
        },
    ),
)
"""Sources of a report on a sweep, in order of precedence: the first match applies."""
