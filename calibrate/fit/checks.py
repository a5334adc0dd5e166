"""Refuses to fit measurements that are too few, or that no machine can have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from calibrate.fit.datasheets import Datasheet
from calibrate.fit.residuals import Residuals
from calibrate.records.schema import (
    FILE_NAME,
    CollectiveRecord,
    GemmRecord,
    HostRecord,
    KernelRecord,
    Measurement,
    Timing,
)
from simtrain.errors import InputError, Location, Problem

_AGAIN = "delete what is wrong; python -m calibrate measure in the same folder measures it again"
NUM_SIZES, LARGE_SIZES = 4, 2
"""Arrays of a collective that a fit needs, and how many of them long enough to show bandwidth."""
_MOST_NOISY = 0.25
_MORE_WORK, _LESS_TIME = 4, 0.5
"""So much more work in so much less time, spreads allowed for, is no noise."""
_LARGEST_FACTOR = 4.0
"""In the mean: one measured size is four times the one before, so that a fit which is further off
cannot tell one from the next."""
_NOTED_FACTOR = 4 / 3
"""In the mean: full recomputation costs a third more time, so that a profile whose parts are
further off may rank strategies wrongly."""


def require(what: str, found: int, needed: int, only: str) -> None:
    """Refuse to fit too few points; `only` is the part of a measurement that gives more.

    Raises:
        InputError: E720, fewer than `needed`.
    """
    if found >= needed:
        return
    reason = f"a fit needs {needed} or more"
    fix = f"finish the measurement ({only}): python -m calibrate measure in the same folder goes on"
    raise InputError([Problem("E720", f"{found} measured {what} are too few", None, reason, fix)])


def without_noise(folder: Path, records: Sequence[Measurement]) -> Sequence[Measurement]:
    """The records without products and kernels whose spread is above their median.

    Of those there are many; of collectives, layers and launches each is needed.

    Raises:
        InputError: E721, there are so many of them that the machine was busy with something else.
    """
    noisy = [record for record in records if _is_noisy(record)]
    if len(noisy) > _MOST_NOISY * len(records):
        message = f"{len(noisy)} of {len(records)} records spread by more than their median"
        reason = "the machine did something else at the same time"
        fix = "measure again, into a new folder, when it is idle"
        raise InputError([Problem("E721", message, Location(str(folder / FILE_NAME)), reason, fix)])
    return [r for r in records if r not in noisy or not isinstance(r, GemmRecord | KernelRecord)]


def check_points(folder: Path, records: Sequence[Measurement], datasheet: Datasheet | None) -> None:
    """Refuse what no machine can have, each record by its line.

    Raises:
        InputError: E721, a product above the datasheet's peak; a time that falls as work grows.
    """
    problems = [
        Problem("E721", message, Location(f"{folder / FILE_NAME}", line), reason, _AGAIN)
        for line, message, reason in (*_too_fast(records, datasheet), *_falling(records))
    ]
    if problems:
        raise InputError(problems)


def check_residuals(fitted: Sequence[Residuals]) -> list[str]:
    """Warnings of parts that are far from what they were fitted on.

    Raises:
        InputError: E724, some are so far off that the model says nothing of this machine.
    """
    problems = [_describes_nothing(r) for r in fitted if r.mean_factor > _LARGEST_FACTOR]
    if problems:
        raise InputError(problems)
    return [
        f"{r.title}: the fit is off by a factor {r.mean_factor:.2f} in the mean; the worst is "
        f"{_worst(r)}"
        for r in fitted
        if r.mean_factor > _NOTED_FACTOR
    ]


def _describes_nothing(residuals: Residuals) -> Problem:
    factor = f"a factor {residuals.mean_factor:.3g} in the mean"
    return Problem(
        "E724",
        f"{residuals.title}: the fit is off by {factor}",
        reason=f"above {_LARGEST_FACTOR:g} the model does not describe this machine; the worst is "
        f"{_worst(residuals)}",
        fix="measure again, into a new folder, when the machine is idle; where that changes "
        "nothing, this machine has no profile",
    )


def _worst(residuals: Residuals) -> str:
    row, unit = residuals.worst, residuals.unit
    return f"{row.name}, measured {row.measured:.4g} and fitted {row.fitted:.4g} {unit}"


def doubtful(records: Sequence[Measurement]) -> list[Measurement]:
    """What a fit would leave out or refuse: noisy records, and both of two that contradict.

    That time falls as work grows may be the fault of either.
    """
    contradicting = {at for pair in _contradictions(records) for at, _ in pair}
    return [r for at, r in enumerate(records) if at in contradicting or _is_noisy(r)]


Found = Iterator[tuple[int, str, str]]
"""Line (the header is the first), what is wrong, and why."""


def _is_noisy(record: Measurement) -> bool:
    timings = (getattr(record, name) for name in type(record).model_fields)
    return any(isinstance(t, Timing) and t.spread_s > t.median_s for t in timings)


def _too_fast(records: Sequence[Measurement], datasheet: Datasheet | None) -> Found:
    for line, record in enumerate(records, 2):
        if datasheet and isinstance(record, GemmRecord) and record.dtype in ("bf16", "fp16"):
            rate, peak = 2 * _work(record) / record.time.median_s, datasheet.peak_flops.value
            if rate > peak:
                message = f"{_name(record)} ran at {rate / 1e12:.4g} TFLOP/s"
                yield line, message, f"the datasheet's peak is {peak / 1e12:.4g} TFLOP/s"


def _falling(records: Sequence[Measurement]) -> Found:
    seen: set[int] = set()
    for (at, small), (number, large) in _contradictions(records):
        if number not in seen:
            seen.add(number)
            yield (
                number + 2,
                _took(large),
                f"{_took(small)} (line {at + 2}): time must grow, and what else a machine does "
                f"only slows; line {at + 2} is the likelier wrong",
            )


def _contradictions(records: Sequence[Measurement]) -> Iterator[tuple[Placed, Placed]]:
    """A record, and one of several times its work that took clearly less time."""
    sized = [(number, record) for number, record in enumerate(records) if isinstance(record, Sized)]
    for small, large in itertools.permutations(sized, 2):
        if _is_larger(large[1], small[1]) and _is_faster(large[1].time, small[1].time):
            yield small, large


Sized = GemmRecord | KernelRecord | CollectiveRecord | HostRecord
Placed = tuple[int, Sized]
"""A record and its position, from 0."""


def _is_larger(large: Sized, small: Sized) -> bool:
    """The same thing, no side smaller, and several times the work."""
    if _key(large) != _key(small) or _work(large) < _MORE_WORK * _work(small):
        return False
    if isinstance(large, GemmRecord) and isinstance(small, GemmRecord):
        return large.m >= small.m and large.n >= small.n and large.k >= small.k
    return True


def _is_faster(large: Timing, small: Timing) -> bool:
    return large.median_s + large.spread_s < _LESS_TIME * (small.median_s - small.spread_s)


def _key(record: Sized) -> tuple[object, ...]:
    match record:
        case GemmRecord():
            return "gemm", record.layout, record.dtype, record.batch, record.accumulate
        case KernelRecord():
            return "kernel", record.name
        case CollectiveRecord():
            return "collective", record.op, record.num_ranks, record.num_groups, record.num_nodes
        case HostRecord():
            return "host", record.what


def _work(record: Sized) -> int:
    """Multiply-adds of a product; bytes of all others."""
    match record:
        case GemmRecord():
            return record.batch * record.m * record.n * record.k
        case KernelRecord() | HostRecord():
            return record.num_bytes
        case CollectiveRecord():
            return record.array_bytes


def _took(record: Sized) -> str:
    return f"{_name(record)} took {record.time.median_s:.3g} s"


def _name(record: Sized) -> str:
    match record:
        case GemmRecord():
            batch = f"{record.batch} of " if record.batch > 1 else ""
            shape = f"{record.m} × {record.n} × {record.k}"
            return f"{batch}{shape} {record.layout} {record.dtype}"
        case KernelRecord():
            return f"{record.name} of {record.num_bytes} bytes"
        case CollectiveRecord():
            return f"{record.op} of {record.array_bytes} bytes over {record.num_ranks} ranks"
        case HostRecord():
            return f"{record.what} of {record.num_bytes} bytes"
