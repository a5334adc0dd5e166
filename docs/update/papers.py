"""Figures of `simtrain reproduce`: simulated and published."""

import functools

from calibrate.intervals import judged_runs, left_out
from docs.update.request import Request, percent, signed_percent, table
from simtrain.base.resources import list_profiles
from simtrain.guests.paper import targets
from simtrain.guests.paper.entries import PaperEntry, PaperSection, TimeComparison
from simtrain.hardware.evidence import MeasuredRuns, error_text, validated_on
from simtrain.hardware.likeness import error_model

HEAD = ["model", "strategy", "paper", "simulated", "error"]


@functools.cache
def reproduced(target: str) -> targets.TargetResult:
    """Reproduce a target of `simtrain reproduce`. Cached."""
    return targets.reproduce(target)


def _times(target: str) -> TimeComparison:
    result = reproduced(target)
    assert isinstance(result, TimeComparison)
    return result


def _line(times: PaperSection, row: PaperEntry, label: str = "") -> list[str]:
    error = signed_percent(times.error(row) or 0.0, 2)
    both = f"{row.paper:.2f} s", f"{row.simulated:#.4g} s"
    return [label or row.labels[0], row.labels[1], *both, error]


def table5(request: Request) -> str:
    """Return Table 5; `table5 dp530b` adds the 530B model with data parallelism."""
    times = _times("table5").times
    rows = [_line(times, row) for row in times.entries]
    if request.words:
        times = _times("dp530b").times
        rows += [_line(times, row, "530B, 8-way data parallel") for row in times.entries]
    return table(HEAD, rows)


def judged(request: Request) -> str:
    """Return the errors of all profiles by class of runs: `judged`."""
    head = ["machine", "software", "runs", "number", "mean \\|error\\|", "worst", "seen"]
    rows = []
    for cluster in list_profiles():
        errors = validated_on(cluster)
        for runs in errors.measured_runs if errors else ():
            named = f"`{cluster}`", f"`{runs.software}`", runs.runs
            rows.append([*named, *_errors(runs), runs.seen])
    return table(head, rows)


def interval_checks(request: Request) -> str:
    """Return how intervals hold for runs that were left out: `interval_checks`."""
    head = ["left out", "held", "narrow", "middle", "wide", "in half", "median width", "largest"]
    rows = []
    for each in left_out(error_model(), judged_runs()):
        rows.append([f"each {each.what}", *(percent(share, 0) for share in each.figures)])
    return table(head, rows)


def not_judged(request: Request) -> str:
    """Return the profiles that were compared with no measured iteration: `not_judged`."""
    errors = {cluster: validated_on(cluster) for cluster in list_profiles()}
    names = [f"`{name}`" for name, one in errors.items() if not (one and one.measured_runs)]
    return f"Not compared with a measured iteration: {', '.join(names)}."


def _measured(profile: str, begin: str) -> MeasuredRuns:
    """Return the errors of the runs of a profile whose description begins with some words."""
    errors = validated_on(profile)
    assert errors is not None, profile
    (runs,) = (one for one in errors.measured_runs if one.runs.startswith(begin))
    return runs


_ACCURACY = (
    ("published runs on several nodes of A100s", "a100_sxm4_80gb", "several nodes"),
    ("published runs on one node, not fitted", "a100_sxm4_80gb", "one node"),
    ("NVIDIA's published runs on H100s in bf16, not fitted", "h100_sxm", "bf16"),
    ("the same in fp8", "h100_sxm", "fp8"),
    ("published runs of dense models on B200s in fp8", "b200_sxm", "fp8: Llama"),
    ("the same of dense models on GB200", "gb200", "fp8: Llama"),
    ("the same of dense models on GB300", "gb300", "fp8: Llama"),
    ("published runs of torchtitan on H200s", "h200_sxm", "torchtitan"),
)
"""What the README compares with: its words, the profile, and how the description of runs begins."""
# tests/memory compares these with torch, which documents do not run.
_TORCH = ["memory of layers and small models in torch", "33", "", "0.04 %"]


def accuracy(request: Request) -> str:
    """Return the README's table of errors: Table 5, the 530B model, and measured runs."""
    result = _times("table5")
    means = percent(result.mean_abs_error), percent(result.max_abs_error)
    error = signed_percent(_times("dp530b").errors[0], 2)
    rows = [
        ["Table 5 (A100, 8 to 512 GPUs)", str(len(result.rows)), *means],
        ["530B with 8-way data parallelism, 2,240 A100s", "1", error, ""],
        _TORCH,
    ]
    for label, profile, begin in _ACCURACY:
        rows.append([label, *_errors(_measured(profile, begin))])
    return table(["compared with", "runs", "mean error", "worst"], rows)


def _errors(runs: MeasuredRuns) -> list[str]:
    """Return three cells: the number of runs, the mean of |error|, and the worst error."""
    return [f"{runs.num_runs:,}", _words(runs.mean_error), _words(runs.worst_error)]


def _words(error: float) -> str:
    return error_text(error).replace("-", "−").replace("%", " %")
