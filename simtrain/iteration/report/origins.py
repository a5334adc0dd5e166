"""Traces a figure of a result back to the numbers behind it: `simtrain run X --show sources`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from simtrain.base.plain_data import Number, PlainData, Sentence, keys, name, with_whole_numbers
from simtrain.base.values import dataclass, field
from simtrain.hardware.interval import Interval
from simtrain.iteration.memory.report import PeakInterval
from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.operators import (
    SLOWDOWN,
    EntrySource,
    Operator,
    StageOperators,
    launch_entries,
    source_of,
)
from simtrain.units import counted, format_bytes

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result

FigureName = Literal["iteration_time", "mfu", "hfu", "peak_memory"]
FIGURES: tuple[FigureName, ...] = get_args(FigureName)
TOP = 3
"""Operators that are listed per cause, if their share is not below `_LEAST_SHARE`."""
_LEAST_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class NumberOrigin(PlainData):
    """A number, and the numbers that it is computed from.

    Args:
        name: name of the number.
        value: in base units.
        unit: s, B, FLOP, FLOP/s, or none.
        remark: its formula or meaning.
        parts: the numbers that it is computed from.
        entries: for each profile entry behind it, the fraction of the number that is proportional
            to the entry.
        operator: the operator, if the number is an operator's time.
    """

    json_fields: ClassVar = keys(
        """name value unit remark=remark_text remark_numbers entries=used_entries
        parts=named_parts shape=operator.shape count=operator.count basis=operator.basis limit
        entry=operator.bottleneck.entry"""
    )
    json_omits_none: ClassVar = frozenset(
        keys("remark remark_numbers entries parts shape count basis limit entry")
    )

    name: str
    value: float
    unit: Literal["s", "B", "FLOP", "FLOP/s", ""]
    remark: str = ""
    parts: tuple[NumberOrigin, ...] = ()
    entries: dict[str, float] = field(default_factory=dict)
    operator: Operator | None = None

    @property
    def remark_text(self) -> str | None:
        return str(self.remark) if self.remark else None

    @property
    def remark_numbers(self) -> list[dict[str, Any]] | None:
        return self.remark.numbers_json() if isinstance(self.remark, Sentence) else None

    @property
    def used_entries(self) -> dict[str, float] | None:
        return self.entries or None

    @property
    def named_parts(self) -> tuple[NumberOrigin, ...] | None:
        return self.parts or None

    @property
    def limit(self) -> str | None:
        bottleneck = self.operator and self.operator.bottleneck
        return str(bottleneck.limit) if bottleneck else None


@dataclass(frozen=True, slots=True)
class Explained(PlainData):
    """A figure with its origins, and the entries that these name.

    Args:
        scenario: name of the scenario.
        origin: the figure.
        sources: the profile entries behind it, by name.
        interval: of a time, where the measured one lies, and the runs that this follows from.
        peak_interval: the same of the peak, if it is the figure, or one's own runs have peaks.
    """

    json_fields: ClassVar = keys(
        "scenario **origin sources interval_s=interval peak_interval_bytes=peak_interval"
    )
    json_omits_none: ClassVar = frozenset({"interval_s", "peak_interval_bytes"})

    scenario: str
    origin: NumberOrigin
    sources: dict[str, EntrySource]
    interval: Interval | None = None
    peak_interval: PeakInterval | None = None


def explain_figure(result: Result, figure: FigureName, top: int = TOP) -> Explained:
    """Trace a figure of a result back to profile entries and their sources.

    Of each cause the `top` operators are listed; the others are summed up.
    """
    match figure:
        case "iteration_time":
            origin = _iteration_time(result, top)
        case "peak_memory":
            origin = _peak_memory(result)
        case "mfu" | "hfu":
            origin = _utilization(result, figure, top)
    sources = {name: source_of(name, result.seconds) for name in sorted(_entries(origin))}
    interval = result.interval if figure == "iteration_time" else None
    has_peak = figure == "peak_memory" or (interval and result.peak_errors.basis)
    peak = result.memory_report.peak_interval if has_peak else None
    return Explained(result.scenario.name or "unnamed", origin, sources, interval, peak)


def _entries(origin: NumberOrigin) -> set[str]:
    return {*origin.entries}.union(*map(_entries, origin.parts))


def _iteration_time(result: Result, top: int) -> NumberOrigin:
    table = result.operators()
    causes = [_of_cause(result, table, name, label, top) for name, label in CAUSE_LABELS.items()]
    parts = _sorted([cause for cause in causes if cause.value > 1e-9 * table.iteration_time_s])
    remark: str = "where it goes"
    if table.num_stages > 1:
        remark = with_whole_numbers(
            f"where the time of stage {table.stage} goes, the slowest of {table.num_stages}"
        )
    return NumberOrigin("iteration_time", table.iteration_time_s, "s", remark, parts)


def _of_cause(
    result: Result, table: StageOperators, name: str, label: str, top: int
) -> NumberOrigin:
    part_s = getattr(table.breakdown, name)
    rows = table.of_cause(name.removesuffix("_s"))
    entries = launch_entries(result.seconds) if name == "launch_s" and part_s else {}
    remark: str = "the stage waits for other stages" if name == "bubble_s" else ""
    slowed_s = math.fsum(row.total_s - row.alone_s for row in rows)
    if name in ("compute_s", "recompute_s") and slowed_s > 1e-9 * part_s:
        share = slowed_s / part_s
        entries = {SLOWDOWN: share}
        remark = Sentence(
            Number(share, f"{share:.1%}"), " of it because collectives run beside kernels"
        )
    parts = _largest(rows, table.iteration_time_s, top)
    return NumberOrigin(label, part_s, "s", remark, parts, entries)


def _largest(
    rows: Sequence[Operator], iteration_time_s: float, top: int
) -> tuple[NumberOrigin, ...]:
    shown = [row for row in rows if row.exposed_s >= _LEAST_SHARE * iteration_time_s][:top]
    shown = shown or [*rows[:1]]
    origins = [
        NumberOrigin(
            row.name,
            row.exposed_s,
            "s",
            entries=row.bottleneck.shares if row.bottleneck else {},
            operator=row,
        )
        for row in shown
    ]
    others = rows[len(shown) :]
    if others:
        rest_s = math.fsum(row.exposed_s for row in others)
        number = Number(len(others), counted(len(others), "op"))
        remark = Sentence(number, ", listed by run --show ops --format csv")
        origins.append(NumberOrigin("other ops", rest_s, "s", remark))
    return tuple(origins)


def _utilization(result: Result, figure: Literal["mfu", "hfu"], top: int) -> NumberOrigin:
    flops = NumberOrigin(
        "model FLOPs", result.model_flops, "FLOP", "of the model's matrix products"
    )
    if figure == "hfu":
        remark = "of all matrix products that run, those run again included"
        flops = NumberOrigin("hardware FLOPs", result.hardware_flops, "FLOP", remark)
    peak, entries = result.profile.gpu.peak_flops.value, {"gpu.peak_flops": 1.0}
    parts = (
        flops,
        NumberOrigin("GPUs", result.scenario.num_gpus, ""),
        NumberOrigin("peak of a GPU", peak, "FLOP/s", entries=entries),
        _iteration_time(result, top),
    )
    remark = f"{flops.name} / (GPUs × peak × iteration_time)"
    return NumberOrigin(figure, getattr(result, figure), "", remark, parts)


def _peak_memory(result: Result) -> NumberOrigin:
    report, memory = result.memory, result.profile.memory
    stage = report.fullest
    components = stage.components_bytes
    tensors = stage.peak_bytes - components["allocator"]
    fixed = memory.allocator_reserve.value
    inside = {
        "buffers": [NumberOrigin(name, size, "B") for name, size in stage.buffers_bytes.items()],
        "allocator": [
            NumberOrigin(
                "driver, CUDA and NCCL", fixed, "B", entries={"memory.allocator_reserve": 1.0}
            ),
            NumberOrigin(
                "fragmentation",
                components["allocator"] - fixed,
                "B",
                Sentence(
                    Number(memory.fragmentation.value, f"{memory.fragmentation.value:.2g}"),
                    " of ",
                    Number(tensors, format_bytes(tensors)),
                    " of tensors",
                ),
                entries={"memory.fragmentation": 1.0},
            ),
        ],
    }
    parts = [
        NumberOrigin(name, size, "B", parts=_sorted(inside.get(name, ())))
        for name, size in sorted(components.items(), key=lambda item: -item[1])
        if size
    ]
    remark = Sentence(
        "of stage ",
        Number(stage.stage, str(stage.stage)),
        ", the fullest, in ",
        name(stage.peak_name),
        *((" (", name(stage.peak_op), ")") if stage.peak_op else ()),
        "; a GPU has ",
        Number(report.capacity_bytes, format_bytes(report.capacity_bytes)),
        "" if report.fits else ", it does not fit",
    )
    return NumberOrigin("peak_memory", stage.peak_bytes, "B", remark, tuple(parts))


def _sorted(parts: Sequence[NumberOrigin]) -> tuple[NumberOrigin, ...]:
    return tuple(sorted(parts, key=lambda part: -part.value))
