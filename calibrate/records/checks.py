"""Finds records that no machine can have: noisy ones, and times that fall as work grows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from calibrate.records import schema

Sized = schema.GemmRecord | schema.KernelRecord | schema.CollectiveRecord | schema.HostRecord
"""Records of one size of a series: the time grows with the work."""
_SIZES = "m", "n", "k", "num_bytes", "array_bytes"
"""Fields that differ in a series of records."""
Placed = tuple[int, Sized]
"""A record and its position, from 0."""
_MORE_WORK, _LESS_TIME = 4, 0.5
"""So much more work in so much less time, beyond both spreads, is no noise."""


def doubtful(records: Sequence[schema.Measurement]) -> list[schema.Measurement]:
    """Noisy records, and both of two that contradict: either may be wrong."""
    contradicting = {at for pair in contradictions(records) for at, _ in pair}
    return [r for at, r in enumerate(records) if at in contradicting or is_noisy(r)]


def is_noisy(record: schema.Measurement) -> bool:
    """True if a time spreads by more than its median."""
    timings = (getattr(record, name) for name in type(record).model_fields)
    return any(isinstance(t, schema.Timing) and t.spread_s > t.median_s for t in timings)


def contradictions(records: Sequence[schema.Measurement]) -> Iterator[tuple[Placed, Placed]]:
    """A record, and one of several times its work that took clearly less time."""
    series: dict[tuple[object, ...], list[Placed]] = {}
    for place, record in enumerate(records):
        if isinstance(record, Sized):
            others = (value for name, value in record if name not in (*_SIZES, "time"))
            series.setdefault(tuple(others), []).append((place, record))
    for placed in series.values():
        for small, large in itertools.permutations(placed, 2):
            (_, less), (_, more) = small, large
            grows = all(getattr(more, size, 0) >= getattr(less, size, 0) for size in _SIZES)
            if grows and work_of(more) >= _MORE_WORK * work_of(less):
                slowest_s = more.time.median_s + more.time.spread_s
                if slowest_s < _LESS_TIME * (less.time.median_s - less.time.spread_s):
                    yield small, large


def work_of(record: Sized) -> int:
    """FLOPs of a product; bytes of all others."""
    match record:
        case schema.GemmRecord():
            return 2 * record.batch * record.m * record.n * record.k
        case schema.KernelRecord() | schema.HostRecord():
            return record.num_bytes
        case schema.CollectiveRecord():
            return record.array_bytes


def rate_of(record: Sized) -> float:
    """FLOP/s of a product, bytes/s of all others, latency included."""
    return work_of(record) / record.time.median_s


def name_of(record: Sized) -> str:
    """The timed work and its size, in words."""
    match record:
        case schema.GemmRecord():
            batch = f"{record.batch} of " if record.batch > 1 else ""
            shape = f"{record.m} × {record.n} × {record.k}"
            return f"{batch}{shape} {record.layout} {record.dtype}"
        case schema.KernelRecord():
            return f"{record.name} of {record.num_bytes} bytes"
        case schema.CollectiveRecord():
            return f"{group_of(record)}, {record.array_bytes} bytes"
        case schema.HostRecord():
            return f"{record.what} of {record.num_bytes} bytes"


def group_of(record: schema.CollectiveRecord) -> str:
    """The collective and its group, in words."""
    groups = f"{record.num_groups} times " if record.num_groups > 1 else ""
    nodes = f" on {record.num_nodes} nodes" if record.num_nodes > 1 else ""
    return f"{groups}{record.op} over {record.num_ranks} ranks{nodes}"
