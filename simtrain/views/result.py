"""Time, breakdown and memory of an iteration: `simtrain run`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from simtrain.base.values import dataclass, replace
from simtrain.hardware.interval import Interval
from simtrain.iteration.memory.report import FitVerdict, MemoryFit
from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.headline import iteration_line
from simtrain.iteration.report.remarks import remarks_on
from simtrain.iteration.report.result import Result
from simtrain.scenario.section import DEFAULT_MODULES
from simtrain.units import counted, format_seconds, format_seconds_range
from simtrain.views.kinds import BAR, NUMBER, SECONDS, SHARE, WHOLE_TEXT
from simtrain.views.memory import memory_sentence, peaks_table
from simtrain.views.view import (
    Cell,
    Column,
    Facts,
    Headline,
    Paragraphs,
    Part,
    Row,
    Table,
    TimelinePicture,
    Tone,
    View,
    remarks,
)

if TYPE_CHECKING:
    from simtrain.studies.variation import DrawnTimes

_RANGE = "min to max\nover stages"


def result_view(result: Result, more: Iterable[str] = (), drawn: DrawnTimes | None = None) -> View:
    """Show time, breakdown and memory.

    `more` are further remarks, on settings; `drawn` is the iteration drawn many times.
    """
    memory = result.memory
    parts: list[Part] = []
    if drawn:
        from simtrain.views.variation import variation_parts

        parts = variation_parts(drawn)
    return View(
        [
            main_facts(result, drawn),
            *parts,
            breakdown_table(result),
            peaks_table(memory),
            TimelinePicture(result),
            result_remarks(result, more),
            result_headline(result, drawn),
        ]
    )


@dataclass(frozen=True, slots=True)
class MainFigures:
    """Time and rates of an iteration: those of its mean time if it is drawn."""

    iteration_time_s: float
    interval: Interval
    tokens_per_s: float
    mfu: float
    hfu: float

    @classmethod
    def of(cls, result: Result, drawn: DrawnTimes | None) -> MainFigures:
        slowdown, interval = drawn.slowdown if drawn else 1.0, result.interval
        return cls(
            drawn.time.mean if drawn else result.iteration_time_s,
            replace(interval, p5_s=interval.p5_s * slowdown, p95_s=interval.p95_s * slowdown),
            result.tokens_per_s / slowdown,
            result.mfu / slowdown,
            result.hfu / slowdown,
        )


_TONES: dict[MemoryFit, Tone] = {
    MemoryFit.SURELY: "good",
    MemoryFit.PERHAPS: "doubt",
    MemoryFit.NOT: "bad",
}


def fit_tone(fit: FitVerdict) -> Tone:
    """Return the colour of an answer: whether it fits."""
    return _TONES[fit.state]


def result_headline(result: Result, drawn: DrawnTimes | None = None) -> Headline:
    """Return the line of an iteration; of drawn ones, that of their mean."""
    figures = MainFigures.of(result, drawn)
    line = iteration_line(result.scenario, figures, figures.interval, result.fit)
    return Headline(line, fit_tone(result.fit))


def main_facts(result: Result, drawn: DrawnTimes | None = None) -> Facts:
    """The settings, the iteration time with its interval, and the rates."""
    scenario, figures = result.scenario, MainFigures.of(result, drawn)
    interval, within = figures.interval, figures.interval.within_words
    time_s, tokens_per_s = figures.iteration_time_s, figures.tokens_per_s
    basis = f"mean of {counted(drawn.draws, 'drawn iteration')}, " if drawn else ""
    fused = ["fused attention"] if scenario.attention_backend == "fused" else []
    modules = scenario.recompute.modules
    named = [] if modules == DEFAULT_MODULES else [f"recomputes {' '.join(modules)}"]
    settings = [scenario.strategy, *named, PurePath(scenario.schedule).name, *fused]
    return Facts(
        (
            ("scenario", f"{scenario.name} ({', '.join(settings)})"),
            ("parameters", result.parameters_in_words),
            ("software", _stack(result)),
            ("cluster", f"{scenario.cluster}, GPUs used: {scenario.num_gpus}"),
            ("iteration time", Cell(time_s, f"{format_seconds(time_s)}, {basis}{within}")),
            ("90 % interval", f"{interval.ends}; {interval.basis}"),
            (token_rate_label([result]), Cell(tokens_per_s, f"{tokens_per_s:,.0f}")),
            ("MFU / HFU", f"{figures.mfu:.1%} / {figures.hfu:.1%}{_peak(result)}"),
        )
    )


def token_rate_label(results: Sequence[Result]) -> str:
    """Name the rate: programs without tokens, such as image models, have samples."""
    has_tokens = any(result.scenario.model.seq_length > 1 for result in results)
    return "tokens per second" if has_tokens else "samples per second"


def _peak(result: Result) -> str:
    """Say to which peak MFU is relative, if products also run in another data type than bf16."""
    return " of the bf16 peak" if len(result.mfu_by_peak) > 1 else ""


def _stack(result: Result) -> str:
    """The assumed software stack, and the scenario's own settings of it."""
    software = result.scenario.software
    overridden = ", ".join(software.overridden)
    return f"{software.stack} ({overridden}: the scenario's)" if overridden else software.stack


def breakdown_table(result: Result) -> Table:
    """Time by cause: mean over the stages, and the range between stages.

    People see the causes that take time on a stage; data have them all.
    """
    total_s = result.iteration_time_s
    parts = []
    for name, label in CAUSE_LABELS.items():
        seconds = getattr(result.breakdown, name)
        of_stages = [getattr(stage, name) for stage in result.stages]
        parts.append((label, seconds, seconds / total_s, min(of_stages), max(of_stages)))
    is_pipeline = len(result.stages) > 1
    columns = [
        Column("part", "part", WHOLE_TEXT),
        Column("time_s", "time", SECONDS, "the mean over the stages" * is_pipeline),
        Column("share", "%", SHARE, "of the iteration"),
        *[Column("", _RANGE, NUMBER)] * is_pipeline,
        Column("", "", BAR),
    ]
    rows = []
    for label, time_s, share, least_s, most_s in parts:
        if most_s:
            ends = [format_seconds_range(least_s, most_s)] * is_pipeline
            rows.append(Row((label, time_s, share, *ends, share)))
    names = ("part", "time_s", "share", "least_s", "most_s")
    return Table(
        "breakdown",
        "Where the time goes" + ", mean over the stages" * is_pipeline,
        columns,
        rows,
        end=Row(("iteration", total_s, 1.0, *[None] * (len(columns) - 3))),
        optional=("", _RANGE),
        data=[dict(zip(names, part, strict=True)) for part in parts],
    )


def result_remarks(result: Result, more: Iterable[str] = ()) -> Paragraphs:
    """What the figures rest on and leave out; `more` has further remarks, on settings."""
    said = [*remarks_on(result), *_extrapolation(result)]
    return remarks([memory_sentence(result.memory), *said, result.evidence.sentence, *more])


def _extrapolation(result: Result) -> list[str]:
    if not result.extrapolated_compute:
        return []
    return [
        f"{result.extrapolated_compute:.1%} of compute time uses shapes outside the fitted range; "
        "--show ops lists them."
    ]
