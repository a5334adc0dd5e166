"""Finds the records that a fit leaves out, and why.

A record is left out if no machine can have it: a rate above the datasheet's, or much more work in
much less time. Products and kernels, of which there are many, are left out too if their times
spread by more than their median: of each kind at most a quarter, the noisiest first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from calibrate.fit.base import Data, entry, round_significant
from calibrate.records.schema import (
    AttentionRecord,
    GemmRecord,
    KernelRecord,
    Measurement,
    Sized,
    Timing,
    contradictions,
    name_of,
    rate_of,
)
from simtrain.base.accuracy import ErrorTable
from simtrain.base.entry import Entry, Strict, Text
from simtrain.base.input_file import read_text
from simtrain.base.quantities import BytesPerSecond, FlopsPerSecond
from simtrain.errors import InputError
from simtrain.workload.work import FusedAttention

_MOST_LEFT_OUT = 0.25


@dataclass(frozen=True, slots=True)
class Doubt:
    """A record that is left out of a fit, in words, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sifted:
    """The records that a fit uses, the doubts about others, and how many doubtful ones it uses."""

    kept: list[Measurement]
    doubts: list[Doubt]
    num_noisy: int

    @property
    def doubtful_share(self) -> float:
        doubtful = len(self.doubts) + self.num_noisy
        return doubtful / max(len(self.kept) + len(self.doubts), 1)


def sift(records: Sequence[Measurement], sheet: Datasheet | None) -> Sifted:
    """Divide records into those that a fit uses and those that it leaves out."""
    reasons = dict(_impossible(records, sheet))
    possible = [place for place in range(len(records)) if place not in reasons]
    reasons |= {
        possible[place]: reason
        for place, reason in _contradicting([records[place] for place in possible]).items()
    }
    noisy = _noisy(records, {place for place in possible if place not in reasons})
    counts = Counter(type(record) for record in records)
    for kind in (GemmRecord, KernelRecord):
        of_kind = [each for each in noisy if isinstance(records[each[1]], kind)]
        most = int(_MOST_LEFT_OUT * counts[kind])
        reasons |= {place: reason for _, place, reason in sorted(of_kind, reverse=True)[:most]}
    kept = [record for place, record in enumerate(records) if place not in reasons]
    doubts = [Doubt(_name(records[place]), reason) for place, reason in sorted(reasons.items())]
    num_noisy = len({place for _, place, _ in noisy} - reasons.keys())
    return Sifted(kept, doubts, num_noisy)


def _impossible(
    records: Sequence[Measurement], sheet: Datasheet | None
) -> Iterator[tuple[int, str]]:
    """Records above a peak of the datasheet."""
    if sheet is None:
        return
    peak_flops, memory = sheet.peak_flops.value, sheet.memory_bandwidth.value
    kernels = sorted(r.num_bytes for r in records if isinstance(r, KernelRecord))
    large = kernels[len(kernels) // 2] if kernels else 0
    for place, record in enumerate(records):
        if isinstance(record, GemmRecord) and record.dtype in ("bf16", "fp16"):
            if (rate := rate_of(record)) > peak_flops:
                yield place, _above(rate, peak_flops, "FLOP/s")
        elif isinstance(record, AttentionRecord):
            work = [
                (FusedAttention(record.heads, record.seq_length, record.head_size, back), time)
                for back, time in ((False, record.forward), (True, record.backward))
            ]
            rate = max(op.flops / time.median_s for op, time in work)
            if rate > peak_flops:
                yield place, _above(rate, peak_flops, "FLOP/s")
        elif isinstance(record, KernelRecord):
            # Small kernels may run from a cache, and show the latency.
            rate, is_large = rate_of(record), record.num_bytes >= large
            if is_large and rate > memory:
                yield place, f"{_above(rate, memory, 'B/s')}: a cache served it"


def _above(rate: float, peak: float, unit: str) -> str:
    return f"ran at {rate / 1e12:.4g} T{unit}, above the datasheet's {peak / 1e12:.4g}"


def _contradicting(records: Sequence[Measurement]) -> dict[int, str]:
    """The fewest records without which no time falls as work grows, and what each contradicts."""
    reasons, pairs = dict[int, str](), list(contradictions(records))
    while pairs:
        counts = Counter(place for pair in pairs for place, _ in pair)
        # Of two that contradict each other alone the slow one: other work only slows a machine.
        slow = {small for (small, _), _ in pairs}
        worst = max(counts, key=lambda place: (counts[place], place in slow))
        pair = next(pair for pair in pairs if worst in (pair[0][0], pair[1][0]))
        other = next(record for place, record in pair if place != worst)
        record = next(record for place, record in pair if place == worst)
        reasons[worst] = (
            f"took {record.time.median_s:.3g} s, but {name_of(other)} took "
            f"{other.time.median_s:.3g} s: time grows with work"
        )
        pairs = [pair for pair in pairs if worst not in (pair[0][0], pair[1][0])]
    return reasons


def _noisy(records: Sequence[Measurement], places: set[int]) -> list[tuple[float, int, str]]:
    """How much and where times spread by more than their median, and in words."""
    spreads = [
        (time.spread_s / time.median_s, place)
        for place in places
        for _, time in records[place]
        if isinstance(time, Timing)
    ]
    worst = {place: spread for spread, place in sorted(spreads) if spread > 1}
    return [
        (spread, place, f"its times spread by {spread:.0%} of their median")
        for place, spread in worst.items()
    ]


def _name(record: Measurement) -> str:
    return name_of(record) if isinstance(record, Sized) else f"a record of kind {record.kind}"


_COVERED = 0.9
"""Share of the fit's points that the statement covers."""
_LEAST = 0.05
"""No microbenchmark says more about an iteration, which has work that none of them has."""
_COPIED, _MOST = math.log(2), math.log(100)
"""Logarithms of the factor between two machines of a kind, and of the largest that is stated."""


def uncertainty_entry(shown: Sequence[ErrorTable], sifted: Sifted, num_copied: int) -> Data:
    """The entry `uncertainty`: the relative error that nine of ten times stay below.

    The errors of nine of ten fitted points and the median spread of the records add up as
    independent errors. Doubtful records, and sections copied from another machine, widen the sum.
    """
    ratios = sorted(row.log_ratio for each in shown for row in each.rows)
    fit = ratios[math.ceil(_COVERED * len(ratios)) - 1] if ratios else math.log(2)
    spread = _median_spread(sifted.kept)
    copied = _COPIED if num_copied else 0.0
    off = math.hypot(fit, spread, copied) * (1 + sifted.doubtful_share)
    value = max(_LEAST, math.expm1(min(off, _MOST)))
    parts = [
        f"{_COVERED:.0%} of {len(ratios)} fitted points are within {math.expm1(fit):.0%}",
        f"times spread by {spread:.0%}",
        f"{sifted.doubtful_share:.0%} of the records are doubtful",
    ]
    if num_copied:
        parts.append(f"{num_copied} sections are copied from another machine")
    return entry(round_significant(value, 2), "; ".join(parts))


def _median_spread(records: Sequence[Measurement]) -> float:
    """Median of half the distance between quartiles, relative to the median time."""
    spreads = sorted(
        time.spread_s / time.median_s
        for record in records
        for _, time in record
        if isinstance(time, Timing)
    )
    return spreads[len(spreads) // 2] if spreads else 0.0


TOO_FEW = "E720"
"""Code of the problem that a part has too few records."""
NUM_SIZES, LARGE_SIZES = 4, 2
"""Sizes of a collective that a fit needs, and how many of them must show bandwidth."""
_DATASHEETS = Path(__file__).parents[1] / "datasheets.yaml"
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
    sheets = (Datasheet.model_validate(data) for data in yaml.safe_load(read_text(_DATASHEETS)))
    return next((sheet for sheet in sheets if device in sheet.devices), None)


def require(what: str, measured: int, needed: int, only: str) -> None:
    """Refuse to fit too few points; `only` is the part of a measurement that gives more.

    Raises:
        InputError: E720, fewer than `needed`.
    """
    if measured < needed:
        reason = f"a fit needs {needed} or more"
        fix = f"finish the measurement ({only}): run simtrain calibrate measure in the same folder"
        raise InputError.of(
            TOO_FEW, f"{measured} measured {what} are too few", fix=fix, reason=reason
        )


def far_off(fitted: Sequence[ErrorTable]) -> list[str]:
    """Warnings of parts that are far from their measurements."""
    warnings = []
    for each in fitted:
        if each.mean_factor > _NOTED_FACTOR:
            row, off = each.worst, f"{each.title}: the fit is off by a factor"
            values = f"measured {row.measured:.4g} and fitted {row.predicted:.4g} {each.unit}"
            worst = f"the worst is {row.name}, {values}"
            warnings.append(f"{off} {each.mean_factor:.2f} in the mean; {worst}")
    return warnings
