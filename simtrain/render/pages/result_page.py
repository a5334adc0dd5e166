"""Terminal page of `simtrain run`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from rich.console import Group, RenderableType
from rich.table import Table

from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.remarks import evidence_for, remarks_on
from simtrain.iteration.report.result import Result
from simtrain.render.pages.memory_page import memory_verdict, peak_remarks, peaks_table
from simtrain.render.pages.tables import Bar, FittedTable, notes, properties
from simtrain.render.pages.timeline_strip import TimelineStrip
from simtrain.scenario.recompute_section import DEFAULT_MODULES
from simtrain.units import format_seconds


def result_page(result: Result, more: Iterable[str] = ()) -> RenderableType:
    """Show time, breakdown and memory; `more` has further remarks, on settings."""
    parts = (_headline(result), _breakdown_table(result), peaks_table(result.memory))
    spaced = (item for part in parts for item in (part, ""))
    return Group(
        *spaced,
        TimelineStrip(result),
        *notes([*peak_remarks(result.memory), *remarks_on(result), *_extrapolation(result), *more]),
        *notes([evidence_for(result).sentence]),
        memory_verdict(result.memory),
    )


def _headline(result: Result) -> Table:
    scenario = result.scenario
    fused = ["fused attention"] if scenario.attention_backend == "fused" else []
    modules = scenario.recompute.modules
    named = [] if modules == DEFAULT_MODULES else [f"recomputes {' '.join(modules)}"]
    settings = [scenario.strategy, *named, PurePath(scenario.schedule).name, *fused]
    rows = (
        ("scenario", f"{scenario.name} ({', '.join(settings)})"),
        ("parameters", result.parameters_in_words),
        ("software", _stack(result)),
        ("cluster", f"{scenario.cluster}, GPUs used: {scenario.num_gpus}"),
        ("iteration time", format_seconds(result.iteration_time_s)),
        ("tokens per second", f"{result.tokens_per_s:,.0f}"),
        ("MFU / HFU", f"{result.mfu:.1%} / {result.hfu:.1%}{_peak(result)}"),
    )
    return properties(rows)


def _peak(result: Result) -> str:
    """Say to which peak MFU is relative, if products also run in another data type than bf16."""
    return " of the bf16 peak" if len(result.mfu_by_peak) > 1 else ""


def _stack(result: Result) -> str:
    """The assumed software stack, and the scenario's own settings of it."""
    software = result.scenario.software
    own = ", ".join(software.overridden)
    return f"{software.stack} ({own}: the scenario's)" if own else software.stack


def _breakdown_table(result: Result) -> FittedTable:
    """Time by cause: mean over the stages, and the range between stages."""
    span = ">min to max\nover stages"
    mean, total_s = result.breakdown, result.iteration_time_s
    rows = []
    for name, label in CAUSE_LABELS.items():
        seconds = getattr(mean, name)
        of_stages = [getattr(stage, name) for stage in result.stages]
        cells = (
            label,
            format_seconds(seconds),
            f"{seconds / total_s:.1%}",
            f"{format_seconds(min(of_stages))} to {format_seconds(max(of_stages))}",
            Bar(seconds / total_s),
        )
        rows.append(cells)
    return FittedTable(
        ("part", ">time", ">%", span, ""),
        rows,
        optional=(span, ""),
        title="Where the time goes, mean over the stages",
        end=("iteration", format_seconds(total_s), "100.0%", "", ""),
    )


def _extrapolation(result: Result) -> list[str]:
    if not result.extrapolated_compute:
        return []
    return [
        f"{result.extrapolated_compute:.1%} of compute time uses shapes outside the fitted range; "
        "--ops lists them."
    ]
