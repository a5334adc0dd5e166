"""Figures of one layer: saved activations (Table 2, Figure 7) and time (Figure 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.paper.entries import PaperSection, Reproduction
from simtrain.paper.figures.bars import StackedBar, draw_bars
from simtrain.paper.figures.names import NAMES, SHORT
from simtrain.paper.models import BASELINE
from simtrain.render.figures.labels import set_logarithmic
from simtrain.render.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILLION,
    annotate,
    draw_grid_lines,
    legend_below,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MODEL_MARKERS = {"22B": (SKY, "o"), "175B": (ORANGE, "s"), "530B": (GREEN, "^"), "1T": (BLUE, "v")}
_MIB = 2**20


def draw_table2(table: Reproduction) -> Figure:
    """Draw saved bytes on a logarithmic scale: a row per strategy, a marker per model."""
    section = table.section("activations")
    figure, axes = new_axes(7.5, 5.2)
    strategies = section.names("strategy")
    for model in section.names("model"):
        colour, marker = _MODEL_MARKERS[model]
        entries = [section.entry(model, strategy) for strategy in strategies]
        shift = 0.33 - 0.22 * section.names("model").index(model)
        rows = [row + shift for row in range(len(strategies), 0, -1)]
        ours = [entry.simulated / _MIB for entry in entries]
        paper = [(entry.paper or 0) / _MIB for entry in entries]
        axes.plot(ours, rows, marker, color=colour, mec=BLACK, mew=0.5, ms=5, label=model)
        axes.plot(paper, rows, "|", color=BLACK, ms=8, mew=0.8)
        for value, row in zip(ours, rows, strict=True):
            text = f"{value:,.1f}".removesuffix(".0")
            annotate(axes, text, (value, row), (7, 0), ha="left", va="center")
    axes.plot([], [], "|", color=BLACK, ms=8, mew=0.8, label="formula of Table 2")
    # The margin is for the numbers to the right of the markers.
    set_logarithmic(axes.xaxis, [entry.simulated / _MIB for entry in section.entries], margin=1.5)
    axes.set_yticks(range(len(strategies), 0, -1), [_two_lines(NAMES[name]) for name in strategies])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("activation memory per layer and GPU, MiB (logarithmic)")
    axes.set_title("Table 2: activations that one transformer layer saves for the backward pass")
    draw_grid_lines(axes, "x")
    legend_below(figure, axes, 5)
    return figure


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


def _two_lines(name: str) -> str:
    return name.replace(" and ", " and\n").replace(" (", "\n(", 1)
