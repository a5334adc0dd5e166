"""Figures of memory per GPU: Figure 1, Figure 9, and sharded model states of ZeRO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.paper.entries import Reproduction
from simtrain.paper.figures.bars import StackedBar, draw_bars
from simtrain.paper.figures.names import SHORT
from simtrain.paper.stage_memory import DEALLOCATED, KEPT, SPLIT, WHOLE
from simtrain.paper.zero_example import ALL_STATES, SMALL_GPU_GB
from simtrain.render.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    VERMILLION,
    annotate,
    draw_grid_lines,
    legend_below,
    new_axes,
    new_figure,
)
from simtrain.units import GIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FILLS = {
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
        parts = {name: size / GIB for name, size in zip(_FILLS, sizes, strict=True)}
        text = f"{sum(parts.values()):.1f}"
        groups.setdefault(model, []).append(StackedBar(parts, text, SHORT[strategy], read / GIB))
    figure, axes = new_axes()
    draw_bars(axes, groups, _FILLS, "read from the paper's bars")
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


def draw_zero(example: Reproduction) -> Figure:
    """Draw model states per GPU by ZeRO stage and number of replicas."""
    section = example.section("divided")
    figure, axes = new_axes(7.5, 4.0)
    styles = {
        "0": ("no ZeRO", BLACK, "o"),
        "1": ("stage 1: optimizer states", ORANGE, "s"),
        "2": ("stage 2: also gradients", SKY, "^"),
        "3": ("stage 3: also parameters", GREEN, "D"),
    }
    for stage, (label, colour, marker) in styles.items():
        entries = [entry for entry in section.entries if entry.labels[0] == stage]
        replicas = [int(entry.labels[1]) for entry in entries]
        values_gb = [entry.simulated / 1e9 for entry in entries]
        axes.plot(replicas, values_gb, marker, ls="-", color=colour, ms=5, lw=1.2, label=label)
        annotate(axes, f"{values_gb[-1]:.2f}", (replicas[-1], values_gb[-1]), (0, 6))
    axes.axhline(SMALL_GPU_GB, color=VERMILLION, ls="--", label=f"GPU with {SMALL_GPU_GB} GB")
    paper = example.section("parts").entry(ALL_STATES).paper or 0
    axes.plot(1, paper / 1e9, "D", ms=6, mfc="white", mec=BLACK, label="24 GB in the paper's text")
    axes.set_xscale("log", base=2)
    replicas = [int(number) for number in section.names("replicas")]
    axes.set_xticks(replicas, [str(number) for number in replicas])
    axes.set(ylim=(0, 35), xlabel="replicas", ylabel="model states per GPU, GB")
    axes.set_title("ZeRO: model states of GPT-2 1.5B, 16 bytes per parameter")
    draw_grid_lines(axes, "both")
    legend_below(figure, axes, 3)
    return figure
