"""Refuses measurements that are too few, or that no machine, as its datasheet has it, can have."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field
from ruamel.yaml import YAML

from calibrate.records.schema import (
    FILE_NAME,
    GemmRecord,
    KernelRecord,
    Measurement,
    contradictions,
    is_noisy,
    name_of,
    rate_of,
)
from simtrain.comparison import Comparison
from simtrain.entry import Entry, Strict, Text
from simtrain.errors import InputError, Location, Problem
from simtrain.units import BytesPerSecond, FlopsPerSecond

NUM_SIZES, LARGE_SIZES = 4, 2
"""Sizes of a collective that a fit needs, and how many of them must show bandwidth."""
_DATASHEETS = Path(__file__).parents[1] / "datasheets.yaml"
_AGAIN = "delete what is wrong; python -m calibrate measure in the same folder measures it again"
_WHEN_IDLE = (
    "measure again, into a new folder, when the machine is idle; if that changes nothing, "
    "this machine has no profile"
)
_MOST_NOISY = 0.25
_LARGEST_FACTOR = 4.0
"""Mean factor that refuses a fit: measured sizes are four times the one before, and a fit that is
further off cannot tell one from the next."""
_NOTED_FACTOR = 4 / 3
"""Mean factor that is warned of: full recompute costs a third more time, so that a profile with
parts further off may rank strategies wrongly."""


class Datasheet(Strict):
    """Peaks of a device by its maker: 16-bit products, memory, and links, one way."""

    devices: Annotated[list[Text], Field(min_length=1)]
    peak_flops: Entry[FlopsPerSecond]
    memory_bandwidth: Entry[BytesPerSecond]
    link_bandwidth: Entry[BytesPerSecond]


def datasheet_of(device: str) -> Datasheet | None:
    """The datasheet of a device by its name in CUDA; None if none is known."""
    sheets = (Datasheet.model_validate(data) for data in YAML(typ="safe").load(_DATASHEETS))
    return next((sheet for sheet in sheets if device in sheet.devices), None)


def require(what: str, found: int, needed: int, only: str) -> None:
    """Refuse to fit too few points; `only` is the part of a measurement that gives more.

    Raises:
        InputError: E720, fewer than `needed`.
    """
    if found < needed:
        reason = f"a fit needs {needed} or more"
        fix = f"finish the measurement ({only}): run python -m calibrate measure in the same folder"
        raise InputError.of("E720", f"{found} measured {what} are too few", fix=fix, reason=reason)


def above_peak(what: str, flops_per_s: float, peak_flops: float) -> Problem:
    """The problem of work that ran above the datasheet's peak."""
    message = f"{what} ran at {flops_per_s / 1e12:.4g} TFLOP/s"
    reason = f"the datasheet's peak is {peak_flops / 1e12:.4g} TFLOP/s"
    return Problem("E721", message, None, reason, _AGAIN)


def without_noise(folder: Path, records: Sequence[Measurement]) -> Sequence[Measurement]:
    """The records without products and kernels whose spread is above their median.

    There are many products and kernels; each collective, layer and launch is needed.

    Raises:
        InputError: E721, more than a quarter are noisy: the machine was busy.
    """
    noisy = [record for record in records if is_noisy(record)]
    if len(noisy) > _MOST_NOISY * len(records):
        message = f"{len(noisy)} of {len(records)} records spread by more than their median"
        reason = "the machine did something else at the same time"
        fix = "measure again, into a new folder, when it is idle"
        raise InputError.of("E721", message, Location(str(folder / FILE_NAME)), fix, reason)
    return [r for r in records if r not in noisy or not isinstance(r, GemmRecord | KernelRecord)]


def check_points(folder: Path, records: Sequence[Measurement], datasheet: Datasheet | None) -> None:
    """Refuse records that no machine can have, each by its line (the header is the first).

    Raises:
        InputError: E721, a product above the datasheet's peak; a time that falls as work grows.
    """
    problems = {}
    for line, record in enumerate(records, 2):
        if datasheet and isinstance(record, GemmRecord) and record.dtype in ("bf16", "fp16"):
            peak_flops = datasheet.peak_flops.value
            if rate_of(record) > peak_flops:
                problems[line, "peak"] = above_peak(name_of(record), rate_of(record), peak_flops)
    for (before, small), (at, large) in contradictions(records):
        took, other = (f"{name_of(r)} took {r.time.median_s:.3g} s" for r in (large, small))
        reason = (
            f"{other} (line {before + 2}): time must grow, and other work of a machine only slows "
            f"it; line {before + 2} is the likelier wrong"
        )
        # The first contradiction of each record that took too little time.
        problems.setdefault((at + 2, "time"), Problem("E721", took, None, reason, _AGAIN))
    if problems:
        path = str(folder / FILE_NAME)
        raise InputError(
            replace(problem, location=Location(path, line))
            for (line, _), problem in problems.items()
        )


def check_residuals(fitted: Sequence[Comparison]) -> list[str]:
    """Warnings of parts that are far from their measurements.

    Raises:
        InputError: E724, a part is so far off that the model does not describe this machine.
    """
    problems, warnings = [], []
    for each in fitted:
        if each.mean_factor <= _NOTED_FACTOR:
            continue
        row, off = each.worst, f"{each.title}: the fit is off by a factor"
        values = f"measured {row.measured:.4g} and fitted {row.predicted:.4g} {each.unit}"
        worst = f"the worst is {row.name}, {values}"
        warnings.append(f"{off} {each.mean_factor:.2f} in the mean; {worst}")
        if each.mean_factor > _LARGEST_FACTOR:
            reason = f"above {_LARGEST_FACTOR:g} the model does not describe this machine; {worst}"
            message = f"{off} {each.mean_factor:.3g} in the mean"
            problems.append(Problem("E724", message, reason=reason, fix=_WHEN_IDLE))
    if problems:
        raise InputError(problems)
    return warnings
