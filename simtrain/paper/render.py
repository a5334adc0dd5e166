"""What was reproduced as tables for a terminal, with a closing OK or FAILED."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from simtrain.paper.comparison import Comparison, Gain, Row
from simtrain.paper.everything import Everything, Reproduced
from simtrain.paper.render_entries import render_entries


def render(reproduced: Reproduced | Everything) -> RenderableType:
    """The page of `simtrain reproduce`."""
    if isinstance(reproduced, Everything):
        return _render_everything(reproduced)
    if isinstance(reproduced, Comparison):
        return _render_comparison(reproduced)
    return render_entries(reproduced)


def _render_everything(everything: Everything) -> RenderableType:
    """The pages of all targets, and a verdict on them."""
    pages: list[RenderableType] = []
    for name, result in everything.targets.items():
        pages += [Rule(name, align="left", style="dim"), render(result), ""]
    failed = [name for name, result in everything.targets.items() if not result.ok]
    number = len(everything.targets)
    if failed:
        words = f"FAILED: {', '.join(failed)} ({len(failed)} of {number} targets)"
        return Group(*pages, Text(words, style="bold red"))
    return Group(*pages, Text(f"OK: all {number} targets", style="bold green"))


def _render_comparison(comparison: Comparison) -> RenderableType:
    parts: list[RenderableType] = [_times(comparison)]
    if comparison.gains:
        parts.append(_gains(comparison.gains))
    parts.append(verdict(comparison))
    return Group(*parts)


def verdict(comparison: Comparison) -> Text:
    """The closing line, one even where it is FAILED."""
    word, style = ("OK", "bold green") if comparison.ok else ("FAILED", "bold red")
    mean, largest = comparison.mean_abs_error, comparison.max_abs_error
    return Text(
        f"{word}: mean |error| {mean:.2%} (at most {comparison.mean_threshold:.1%}), "
        f"largest {largest:.2%} (at most {comparison.max_threshold:.1%})",
        style=style,
    )


def _times(comparison: Comparison) -> Table:
    facts = sorted({name for row in comparison.rows for name in row.facts}, key=_fact_order)
    table = Table(title=comparison.title, title_justify="left")
    for name in ("model", "strategy"):
        table.add_column(name)
    for name in ("paper\ns", "simulated\ns", "error\n%"):
        table.add_column(name, justify="right")
    for name in facts:
        table.add_column(_heading(name), justify="right")
    for row in comparison.rows:
        table.add_row(*_cells(row, facts))
    return table


def _cells(row: Row, facts: list[str]) -> list[str]:
    times = [f"{row.paper_s:.5g}", f"{row.simulated_s:.5g}", f"{100 * row.error:+.2f}"]
    return [row.model, row.strategy, *times, *(_fact(name, row.facts.get(name)) for name in facts)]


def _fact_order(name: str) -> tuple[str, bool]:
    """Ours after the paper's of the same name."""
    return name.removeprefix("paper_"), not name.startswith("paper_")


def _heading(name: str) -> str:
    if name == "overlapped_s":
        return "simulated,\noverlapped\ns"
    words = name.replace("_", " ").replace("mfu", "MFU").replace("hfu", "HFU")
    return words if name == "pass" else f"{words}\n%"


def _fact(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value or "")
    return f"{value:.5g}" if name.endswith("_s") else f"{100 * value:.1f}"


def _gains(gains: Sequence[Gain]) -> Table:
    table = Table(title="Throughput gain over full recompute", title_justify="left")
    table.add_column("model")
    for name in ("paper\n%", "simulated\n%", "error\npoints"):
        table.add_column(name, justify="right")
    table.add_column("")
    for gain in gains:
        table.add_row(
            gain.model,
            f"{100 * gain.paper:.1f}",
            f"{100 * gain.simulated:.1f}",
            f"{100 * gain.error:+.2f}",
            "" if gain.within else f"[yellow]more than {100 * gain.threshold:.1f} points off",
        )
    return table
