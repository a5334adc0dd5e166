"""Terminal page of `simtrain reproduce`: tables, and a closing OK or FAILED."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from simtrain.paper.entries import (
    AllTargets,
    Entry,
    Reproduction,
    Section,
    TargetResult,
    TimeComparison,
    Unit,
)
from simtrain.render.pages.tables import FittedTable, table_of, verdict

Column = tuple[str, Callable[[Entry], str | Text]]
"""Heading of a column (see `table_of`), and the function that returns an entry's cell."""

_MUST_EQUAL = "Each value must equal the paper's."


def paper_page(reproduced: TargetResult | AllTargets) -> RenderableType:
    """Show a reproduced table or figure, or all of them."""
    if isinstance(reproduced, AllTargets):
        return _everything(reproduced)
    if isinstance(reproduced, TimeComparison):
        return _comparison(reproduced)
    return _reproduction(reproduced)


def _everything(everything: AllTargets) -> Group:
    """The pages of all targets, and the overall verdict."""
    pages: list[RenderableType] = []
    for name, result in everything.targets.items():
        pages += [Rule(name, align="left", style="dim"), paper_page(result), ""]
    failed = [name for name, result in everything.targets.items() if not result.ok]
    words = f"all {len(everything.targets)} targets"
    if failed:
        words = f"{', '.join(failed)} ({len(failed)} of {len(everything.targets)} targets)"
    return Group(*pages, verdict(not failed, words))


def _comparison(comparison: TimeComparison) -> Group:
    """Times with their other figures, gains, and the verdict."""
    facts = sorted({name for row in comparison.rows for name in row.facts}, key=_fact_order)
    columns = [(_heading(name), partial(_fact, name)) for name in facts]
    parts = [_table(comparison.times, *columns, title=comparison.title)]
    if comparison.gains:
        gains = comparison.throughput
        column = ("", partial(_gain_remark, 100 * comparison.gain_threshold))
        parts.append(_table(gains, column, title=gains.title))
    return Group(*parts, times_verdict(comparison))


def _gain_remark(points: float, gain: Entry) -> str:
    return "" if gain.is_within else f"more than {points:.1f} points off"


def times_verdict(comparison: TimeComparison) -> Text:
    """The closing line."""
    mean, largest = comparison.mean_abs_error, comparison.max_abs_error
    words = (
        f"mean |error| {mean:.2%} (at most {comparison.mean_threshold:.1%}), "
        f"largest {largest:.2%} (at most {comparison.max_threshold:.1%})"
    )
    return verdict(comparison.ok, words)


def _fact_order(name: str) -> tuple[str, bool]:
    """Sort key: a simulated figure follows the paper's figure of the same name."""
    return name.removeprefix("paper_"), not name.startswith("paper_")


def _heading(name: str) -> str:
    if name == "overlapped_s":
        return ">simulated,\noverlapped\ns"
    words = name.replace("_", " ").replace("mfu", "MFU").replace("hfu", "HFU")
    return f">{words}" if name == "pass" else f">{words}\n%"


def _fact(name: str, row: Entry) -> str:
    value = row.facts.get(name)
    if not isinstance(value, float):
        return str(value or "")
    return f"{value:.3f}" if name.endswith("_s") else f"{100 * value:.1f}"


def _reproduction(reproduction: Reproduction) -> Group:
    """Every section with its note, the values beyond their limits, and the verdict."""
    parts: list[RenderableType] = [Text(f"{reproduction.title}\n", style="bold")]
    for section in reproduction.sections:
        limits = [entry.limit for entry in section.entries]
        are_exact = all(limit and limit.is_exact for limit in limits)
        is_shown = any(limits) and not are_exact
        columns = [("allowed", partial(_allowed, section.unit))] if is_shown else []
        note = " ".join(filter(None, (section.note, _MUST_EQUAL * are_exact)))
        parts.append(Text(section.title, style="italic"))
        parts.append(_wide_table(section) if section.across else _table(section, *columns))
        parts.append(Text(f"{note}\n" if note else "", style="dim"))
    parts += [Text(f"beyond its limit: {miss}", style="red") for miss in reproduction.misses]
    judged, missed = reproduction.num_judged, len(reproduction.misses)
    limits = [one.limit for section in reproduction.sections for one in section.entries]
    is_exact = judged and all(limit.is_exact for limit in limits if limit)
    words = f"all {judged} figures with limits are within them"
    if is_exact:
        words = f"all {judged} figures equal the paper's"
    if missed:
        words = f"{missed} of {judged} figures beyond their limits"
    return Group(*parts, verdict(not missed, words))


def _allowed(unit: Unit, entry: Entry) -> Text:
    text = entry.limit.text(unit) if entry.limit else ""
    return Text(text, style="" if entry.is_within else "red")


def _table(section: Section, *further: Column, title: str | None = None) -> FittedTable:
    """One row per entry, with the further columns on the right."""
    unit = section.unit
    columns: list[Column] = [(_with_unit("simulated", unit), lambda one: unit.text(one.simulated))]
    if any(entry.paper is not None for entry in section.entries):
        error = "points" if unit.name == "fraction" else "%"
        columns = [
            (_with_unit("paper", unit), lambda one: unit.text(one.paper)),
            *columns,
            (f">error\n{error}", lambda one: _signed(section.error(one))),
        ]
    columns += further
    rows = [[*entry.labels, *(cell(entry) for _, cell in columns)] for entry in section.entries]
    headings = [heading for heading, _ in columns]
    optional = [heading for heading, _ in reversed(further)]
    return FittedTable((*section.labels, *headings), rows, tuple(optional), title)


def _with_unit(name: str, unit: Unit) -> str:
    return f">{name}\n{unit.heading}".rstrip()


def _signed(error: float | None) -> str:
    return "" if error is None else f"{100 * error:+.2f}"


def _wide_table(section: Section) -> Table:
    """A table with the labels `across` as columns and the others as rows."""
    across = [section.labels.index(label) for label in section.across]
    down = [place for place in range(len(section.labels)) if place not in across]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for entry in section.entries:
        row = tuple(entry.labels[place] for place in down)
        column = _with_unit(", ".join(entry.labels[place] for place in across), section.unit)
        rows.setdefault(row, {})[column] = section.unit.text(entry.simulated)
    columns = list(next(iter(rows.values())))
    cells = [[*row, *(values[column] for column in columns)] for row, values in rows.items()]
    return table_of(*(section.labels[place] for place in down), *columns, rows=cells)
