"""Figures of `simtrain reproduce`, one per reproduced table or figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.base.values import dataclass
from simtrain.guests.paper.entries import (
    PaperEntry,
    PaperSection,
    Reproduction,
    TargetResult,
    TimeComparison,
)
from simtrain.guests.paper.memory import DEALLOCATED, KEPT, SPLIT, WHOLE
from simtrain.guests.paper.models import BASELINE, PRESENT, paper_scenario
from simtrain.render.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILLION,
    Fill,
    annotate,
    draw_grid_lines,
    footer,
    footer_of,
    legend_below,
    new_axes,
    new_figure,
    picture,
    write_figure,
)
from simtrain.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {
    "sequence": "sequence parallel",
    "selective": "selective recompute",
    PRESENT: "sequence parallel and selective recompute (present work)",
    "full": "full recompute",
}
SHORT = {BASELINE: "baseline", "full": "full\nrecompute", PRESENT: "present\nwork"}


_GROUP_WIDTH = 0.84
_GAP = 0.06
_OUTLINE: dict[str, Any] = {"edgecolor": BLACK, "linewidth": 0.5}
_DIAMOND: dict[str, Any] = {
    "marker": "D",
    "linestyle": "none",
    "markersize": 4,
    "markerfacecolor": "white",
    "markeredgecolor": BLACK,
}


@dataclass(frozen=True, slots=True)
class StackedBar:
    """A stacked bar.

    Args:
        parts: height of each part, from the bottom, by the part's name.
        text: text above the bar.
        name: name below the bar.
        paper: the height in the paper, drawn as a diamond.
    """

    parts: Mapping[str, float]
    text: str
    name: str = ""
    paper: float | None = None

    @property
    def height(self) -> float:
        return sum(self.parts.values())


def draw_bars(
    axes: Axes,
    groups: Mapping[str, Sequence[StackedBar]],
    fills: Mapping[str, Fill],
    paper_label: str = "paper",
) -> None:
    """Draw groups side by side, with a diamond at the paper's height of each bar."""
    for place, bars in enumerate(groups.values()):
        width = _GROUP_WIDTH / len(bars)
        for number, bar in enumerate(bars):
            x = place + (number + 0.5) * width - _GROUP_WIDTH / 2
            _draw_bar(axes, bar, x, width - _GAP / len(bars), fills)
    named = any(bar.name for bars in groups.values() for bar in bars)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.tick_params(axis="x", length=0, pad=24 if named else 4)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    draw_grid_lines(axes)
    for name, (colour, hatch) in fills.items():
        axes.bar(0, 0, color=colour, hatch=hatch, **_OUTLINE, label=name)
    axes.plot([], [], **_DIAMOND, label=paper_label)


def _draw_bar(
    axes: Axes, bar: StackedBar, x: float, width: float, fills: Mapping[str, Fill]
) -> None:
    bottom = 0.0
    for part, height in bar.parts.items():
        colour, hatch = fills[part]
        axes.bar(x, height, width, bottom, color=colour, hatch=hatch, **_OUTLINE)
        bottom += height
    if bar.paper is not None:
        axes.plot(x, bar.paper, **_DIAMOND)
    top = max(bottom, bar.paper or 0)
    white = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    annotate(axes, bar.text, (x, top), (0, 5), bbox=white)
    annotate(axes, bar.name, (x, 0), (0, -4), xycoords=("data", "axes fraction"), va="top")


def draw_fig7(shares: Reproduction) -> Figure:
    """Draw the saved bytes in percent of the baseline, four techniques per model."""
    section = shares.section("shares")
    fills = {
        NAMES["sequence"]: (BLUE, ""),
        NAMES["selective"]: (ORANGE, "//"),
        NAMES["selective+sequence"]: (GREEN, "xx"),
        NAMES["full"]: (GREY, ".."),
    }
    groups = {
        model: [
            StackedBar(
                {NAMES[technique]: 100 * section.value(model, technique)},
                f"{100 * section.value(model, technique):.1f}",
                paper=100 * (section.entry(model, technique).paper or 0),
            )
            for technique in section.names("strategy")
        ]
        for model in section.names("model")
    }
    figure, axes = new_axes()
    draw_bars(axes, groups, fills, "formulas of Table 2")
    axes.set(ylim=(0, 100), ylabel="activation memory,\n% of the tensor-parallel baseline")
    axes.set_title(shares.title)
    legend_below(figure, axes, 2)
    return figure


def draw_fig8(times: Reproduction) -> Figure:
    """Draw forward, backward and recompute, three strategies per model, with the overhead."""
    section, overheads = times.section("times"), times.section("overheads")
    fills = {
        "forward": (SKY, ".."),
        "backward": (BLUE, ""),
        "recompute": (VERMILLION, "//"),
    }
    strategies = section.names("strategy")
    groups = {
        model: [_bar(section, overheads, model, strategy) for strategy in strategies]
        for model in section.names("model")
    }
    figure, axes = new_axes(7.5, 4.6)
    draw_bars(axes, groups, fills, "baseline plus the overhead that the paper states")
    axes.set_ylim(0, 1.12 * max(bar.height for bars in groups.values() for bar in bars))
    axes.set_ylabel("time per layer, ms")
    axes.set_title("Figure 8: time of one transformer layer, and overhead over the baseline")
    legend_below(figure, axes, 4)
    return figure


def _bar(times: PaperSection, overheads: PaperSection, model: str, strategy: str) -> StackedBar:
    """Build a bar of Figure 8; its diamond is the baseline plus the paper's overhead."""
    parts = {part: 1e3 * times.value(model, strategy, part) for part in times.names("part")}
    text = f"{sum(parts.values()):.1f}"
    if strategy == BASELINE:
        return StackedBar(parts, text, SHORT[strategy])
    entry = overheads.entry(model, strategy)
    baseline = sum(1e3 * times.value(model, BASELINE, part) for part in times.names("part"))
    paper = None if entry.paper is None else baseline * (1 + entry.paper)
    return StackedBar(parts, f"{text}\n+{100 * entry.simulated:.1f} %", SHORT[strategy], paper)


_MEMORY_FILLS = {
    "parameters, gradients, optimizer states": (BLUE, ""),
    "the embedding's parameters, gradients and states": (SKY, "//"),
    "activations of the first stage": (ORANGE, ".."),
}


def draw_fig1(bars: Reproduction) -> Figure:
    """Draw model states and activations of baseline and present work, and the GPU's capacity."""
    states, ends = bars.section("states"), bars.section("embeddings")
    activations, totals = bars.section("activations"), bars.section("totals")
    groups: dict[str, list[StackedBar]] = {}
    for entry in activations.entries:
        model, strategy = entry.labels
        read = (states.entry(model).paper or 0) + (entry.paper or 0)
        sizes = states.value(model), ends.value(model), entry.simulated
        parts = {name: size / GIB for name, size in zip(_MEMORY_FILLS, sizes, strict=True)}
        text = f"{sum(parts.values()):.1f}"
        groups.setdefault(model, []).append(StackedBar(parts, text, SHORT[strategy], read / GIB))
    figure, axes = new_axes()
    draw_bars(axes, groups, _MEMORY_FILLS, "read from the paper's bars")
    limit = totals.entries[0].limit
    capacity = (limit.lowest if limit else 0) / GIB
    axes.axhline(capacity, color=VERMILLION, linestyle="--", label=f"A100: {capacity:g} GiB")
    axes.set_ylabel("memory per GPU, GiB")
    axes.set_title("Figure 1: model states and activations of each model")
    legend_below(figure, axes, 3)
    return figure


def draw_fig9(curves: Reproduction) -> Figure:
    """Draw activations per stage under both layouts, with outputs kept and deallocated."""
    section = curves.section("curves")
    figure = new_figure(7.5, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    top = max(entry.simulated for entry in section.entries) / GIB
    stages = [int(stage) for stage in section.names("stage")]
    for axes, layout in zip(panels, (WHOLE, SPLIT), strict=True):
        for outputs, colour, marker in ((KEPT, VERMILLION, "s"), (DEALLOCATED, BLUE, "o")):
            values_gib = [section.value(layout, outputs, str(stage)) / GIB for stage in stages]
            label = f"outputs {outputs}"
            axes.plot(stages, values_gib, marker, ls="-", color=colour, ms=3, lw=1, label=label)
        first = [section.value(layout, outputs, "0") / GIB for outputs in (KEPT, DEALLOCATED)]
        saved = f"{first[0]:.2f} and {first[1]:.2f} GiB, {first[0] - first[1]:.2f} GiB saved"
        axes.set(ylim=(0, 1.05 * top), xlabel="pipeline stage")
        axes.set_title(f"{layout}\nstage 0: {saved}", fontsize=9)
        draw_grid_lines(axes)
    panels[0].set_ylabel("activation memory, GiB")
    figure.suptitle("Figure 9: activation memory of the 530B model by stage", fontsize=10)
    legend_below(figure, panels[0], 2)
    return figure


def draw_errors(comparison: TimeComparison) -> Figure:
    """Draw one bar per row: its error in percent, with both times on the left."""
    rows = comparison.rows[::-1]
    figure, axes = new_axes(7.5, 1.5 + 0.3 * len(rows))
    errors = [100 * error for error in comparison.errors[::-1]]
    axes.barh(range(len(rows)), errors, 0.6, color=BLUE, edgecolor=BLACK, linewidth=0.5)
    limit = 100 * comparison.max_threshold
    for side in (-limit, limit):
        axes.axvline(side, color=VERMILLION, linestyle="--", linewidth=1)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    for place, error in enumerate(errors):
        text = f"{error:+.2f} %".replace("-", "−")
        right = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center"}
        annotate(axes, text, (1, place), (32, 0), **right)
    widest = 1.25 * max(limit, *map(abs, errors))
    axes.set(xlim=(-widest, widest), ylim=(-0.7, len(rows) - 0.3), title=comparison.title)
    axes.set_xlabel(f"error of the simulated time, % of the published time (dashed: ±{limit:g} %)")
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.tick_params(axis="y", length=0)
    draw_grid_lines(axes, "x")
    return figure


def _name(row: PaperEntry) -> str:
    which = f" {row.facts['pass']}" if "pass" in row.facts else ""
    times = f"{_seconds(row.simulated)} (paper {_seconds(row.paper or 0)})"
    return f"{' '.join(row.labels)}{which}\n{times}"


def _seconds(time_s: float) -> str:
    return f"{1e3 * time_s:.2f} ms" if time_s < 0.1 else f"{time_s:.2f} s"


_DRAWINGS: dict[str, Callable[[Any], Figure]] = {
    "fig1": draw_fig1,
    "fig7": draw_fig7,
    "fig8": draw_fig8,
    "fig9": draw_fig9,
}


def is_drawn(target: str) -> bool:
    """Whether there is a picture of a target: of the paper's figures and tables of times."""
    return target in _DRAWINGS or target in ("table4", "table5", "dp530b")


@picture
def draw(target: str, reproduced: TargetResult) -> Figure:
    """Draw the figure of a target."""
    if isinstance(reproduced, TimeComparison):
        return draw_errors(reproduced)
    return _DRAWINGS[target](reproduced)


def write_paper_figure(target: str, reproduced: TargetResult, folder: Path) -> tuple[Path, ...]:
    """Write `folder/TARGET.png` and `.svg`.

    Raises:
        InputError: the folder cannot be written to.
    """
    subject = f"simtrain reproduce {target}"
    # Figure 7 depends on the model alone.
    cluster = paper_scenario("22B", PRESENT).cluster
    origin = footer(subject, {}) if target == "fig7" else footer_of(subject, cluster)
    return write_figure(draw(target, reproduced), folder / target, origin)
