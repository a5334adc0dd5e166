"""What `measure` is going to measure, in which order and how long, before it starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from calibrate.benchmarks.measure import SHARES, points_of
from calibrate.benchmarks.ranks import joined
from calibrate.benchmarks.sizes import BenchmarkPart, Sizes
from calibrate.benchmarks.timing import Timer
from calibrate.records.file import MeasurementPoint, identity, read_records
from calibrate.records.schema import FILE_NAME, Timing
from simtrain.base.plain_data import PlainData, keys
from simtrain.iteration.report.result import Result
from simtrain.views.kinds import COUNT, TEXT, Kind
from simtrain.views.view import Column, Paragraphs, Row, Table, View

_BUDGETS, _BEFORE_S = 3.0, 0.2
"""Time budgets of a timing, and seconds before it: data, warm-up, the reference product. A timing
takes two to five budgets, until two rounds agree."""
_LEAST = 0.5
"""Weight of a part of which a scenario needs next to nothing: its profile is for others too."""
_PART_OF = {"gemm": BenchmarkPart.PRODUCTS} | dict.fromkeys(
    ("intra_node", "inter_node", "collectives"), BenchmarkPart.COLLECTIVES
)
"""Parts by the section of the profile that they measure; kernels measure all others."""
_FITTED = BenchmarkPart.PRODUCTS, BenchmarkPart.KERNELS, BenchmarkPart.COLLECTIVES


@dataclass(frozen=True, slots=True)
class PlannedPart(PlainData):
    """A part of a measurement.

    Args:
        part: its name.
        num_records: records that are still to be measured.
        kinds: their kinds and numbers, in words.
        seconds: the time that they take, or that the part has.
    """

    json_fields: ClassVar = keys("part num_records kinds seconds")

    part: BenchmarkPart
    num_records: int
    kinds: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MeasurementPlan(PlainData):
    """What is going to be measured.

    Args:
        parts: in the order of measuring.
        minutes: the time limit; None without.
    """

    json_fields: ClassVar = keys("parts minutes seconds")

    parts: tuple[PlannedPart, ...]
    minutes: float | None

    @property
    def seconds(self) -> float:
        """The time of all parts."""
        return math.fsum(part.seconds for part in self.parts)

    def view(self) -> View:
        """A row for each part, and the whole time."""
        columns = [
            Column("part", "part", TEXT),
            Column("num_records", "records", COUNT),
            Column("kinds", "of", TEXT),
            Column("seconds", "minutes", Kind(lambda seconds: f"{seconds / 60:.1f}")),
        ]
        rows = [Row((str(p.part), p.num_records, p.kinds, p.seconds)) for p in self.parts]
        limit = "" if self.minutes is None else f", at most {self.minutes:g}"
        words = (
            f"About {self.seconds / 60:.1f} minutes{limit}. Each part has its share of the time; "
            "its most useful records come first, and the same command later measures the rest."
        )
        return View([Table("parts", "To be measured", columns, rows), Paragraphs([words])])


def weights_for(result: Result) -> dict[BenchmarkPart, float]:
    """Weights of the parts, by what the slowest stage of an iteration waits for.

    Products, kernels and collectives share their time in proportion to the exposed time that
    depends on their entries of the profile. Layers and iterations judge the profile, as always.
    """
    waits = dict.fromkeys(_FITTED, 0.0)
    for operator in result.operators().rows:
        if operator.bottleneck:
            for entry, share in operator.bottleneck.shares.items():
                part = _PART_OF.get(entry.partition(".")[0], BenchmarkPart.KERNELS)
                waits[part] += share * operator.exposed_s
    whole, total_s = sum(SHARES[part] for part in _FITTED), math.fsum(waits.values())
    fitted = {part: max(_LEAST, whole * waits[part] / total_s) for part in _FITTED}
    return dict(SHARES) | fitted


def plan_measurement(
    folder: Path,
    device: str,
    sizes: Sizes,
    parts: Collection[BenchmarkPart],
    minutes: float = math.inf,
    weights: Mapping[BenchmarkPart, float] = SHARES,
) -> MeasurementPlan:
    """Plan what `measure` would measure with the same arguments, without measuring anything.

    Raises:
        InputError: as `measure`.
    """
    known = set[str]()
    if (folder / FILE_NAME).exists():
        known = {identity(record) for record in read_records(folder)[1]}
    with joined(device) as ranks:
        timer = Timer(device, sizes.budget_s, ranks)
        points = {
            part: [p for p in points_of([part], sizes, timer) if p.identity not in known]
            for part in BenchmarkPart
            if part in parts
        }
    left_s, planned = 60 * minutes, list[PlannedPart]()
    remaining = {part: weights[part] for part in points}
    for part, missing in points.items():
        share_s = left_s * remaining.pop(part) / (weights[part] + sum(remaining.values()))
        needed_s = math.fsum(_seconds(point, sizes.budget_s) for point in missing)
        seconds = min(needed_s, share_s) if math.isfinite(left_s) else needed_s
        left_s -= seconds
        kinds = Counter(point.kind.model_fields["kind"].default for point in missing)
        words = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        planned.append(PlannedPart(part, len(missing), words, seconds))
    return MeasurementPlan(tuple(planned), minutes if math.isfinite(minutes) else None)


def _seconds(point: MeasurementPoint, budget_s: float) -> float:
    """About the time of a point: that of its timings."""
    fields = point.kind.model_fields.values()
    return _BEFORE_S + _BUDGETS * budget_s * max(
        1, sum(field.annotation is Timing for field in fields)
    )
