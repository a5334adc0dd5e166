"""Scaling curves: the best throughput with so many GPUs, and what it would be if it were ideal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simtrain.figures import style
from simtrain.figures.sweep.results import Cell, Results, best, short_words
from simtrain.strict_yaml import as_scalar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Scaling:
    """For each panel the best tokens per second by number of GPUs, ascending."""

    curves: dict[Cell, dict[int, float]]

    def to_json(self) -> dict[str, Any]:
        """The curves, in full precision."""
        return {
            as_scalar(panel): {str(count): rate for count, rate in curve.items()}
            for panel, curve in self.curves.items()
        }

    @staticmethod
    def efficiency(curve: dict[int, float]) -> dict[int, float]:
        """Throughput against that of the fewest GPUs times how many more there are."""
        fewest = next(iter(curve))
        alone = curve[fewest] / fewest
        return {count: rate / (alone * count) for count, rate in curve.items()}


def scaling(results: Results) -> Scaling | None:
    """The curves; None where all of a panel's points have as many GPUs, or none were reported."""
    if not results.has("num_gpus", "tokens_per_s"):
        return None
    ran = results.ran
    curves: dict[Cell, dict[int, float]] = {}
    for panel in results.panels:
        found = best(results.of_panel(panel, ran), ["num_gpus"], "tokens_per_s")
        counts = sorted((count, rate) for (count,), rate in found.items() if isinstance(count, int))
        curve = dict(counts)
        if len(curve) > 1:
            curves[panel] = curve
    return Scaling(curves) if curves else None


def draw_scaling(picture: Scaling) -> Figure:
    """All panels in one picture, both axes logarithmic; percentages are of the ideal line."""
    figure, axes = style.new_axes(7.5, 4.6)
    colours = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY)
    for at, (panel, curve) in enumerate(picture.curves.items()):
        _draw_curve(axes, short_words(panel), curve, colours[at % 6])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    style.plain_numbers(axes.yaxis)
    counts = sorted({count for curve in picture.curves.values() for count in curve})
    axes.set_xticks(counts, [f"{count:,}" for count in counts], minor=False)
    axes.set(xlabel="GPUs", ylabel="tokens per second")
    axes.set_title("Best throughput, and what is left of the ideal")
    style.rule_lines(axes)
    style.legend_below(figure, axes, columns=3)
    return figure


def _draw_curve(axes: Axes, name: str, curve: dict[int, float], colour: str) -> None:
    counts = list(curve)
    alone = curve[counts[0]] / counts[0]
    ideal = [alone * count for count in counts]
    axes.plot(
        counts, ideal, "--", color=colour, alpha=0.5, linewidth=1, label=f"{name} ideal".strip()
    )
    axes.plot(counts, list(curve.values()), "o-", color=colour, markersize=4, label=name or "best")
    for count, share in list(Scaling.efficiency(curve).items())[1:]:
        style.annotate(axes, f"{share:.0%}", (count, curve[count]), (0, -11), color=colour)
