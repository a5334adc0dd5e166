"""A reproduced table or figure as tables for a terminal, with its closing OK or FAILED."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simtrain.paper.entries import PERCENT, Entry, Reproduction, Section


def render_entries(reproduction: Reproduction) -> RenderableType:
    """The page of `simtrain reproduce` for what is no table of times."""
    parts: list[RenderableType] = [Text(f"{reproduction.title}\n", style="bold")]
    for section in reproduction.sections:
        parts.append(Text(section.title, style="italic"))
        parts.append(_wide_table(section) if section.across else _table(section))
        parts.append(Text(f"{section.note}\n" if section.note else "", style="dim"))
    parts += [Text(f"beyond its limit: {miss}", style="red") for miss in reproduction.misses]
    return Group(*parts, _verdict(reproduction))


def _verdict(reproduction: Reproduction) -> Text:
    judged, missed = reproduction.num_judged, len(reproduction.misses)
    if missed:
        return Text(f"FAILED: {missed} of {judged} figures beyond their limits", style="bold red")
    return Text(f"OK: all {judged} figures that are judged within their limits", style="bold green")


def _table(section: Section) -> Table:
    """One entry a row."""
    is_compared = any(entry.paper is not None for entry in section.entries)
    is_judged = any(entry.limit is not None for entry in section.entries)
    unit = section.unit
    columns = [f"simulated\n{unit.heading}".rstrip()]
    if is_compared:
        error = "points" if unit is PERCENT else "%"
        columns = [f"paper\n{unit.heading}".rstrip(), *columns, f"error\n{error}"]
    table = _with_columns(section.labels, columns)
    if is_judged:
        table.add_column("allowed")
    for entry in section.entries:
        cells = _compared(section, entry) if is_compared else [unit.text(entry.simulated)]
        table.add_row(*entry.labels, *cells, *([_allowed(section, entry)] if is_judged else []))
    return table


def _compared(section: Section, entry: Entry) -> list[str]:
    unit, error = section.unit, section.error(entry)
    paper = "" if entry.paper is None else unit.text(entry.paper)
    return [paper, unit.text(entry.simulated), "" if error is None else f"{100 * error:+.2f}"]


def _allowed(section: Section, entry: Entry) -> str:
    if entry.limit is None:
        return ""
    text = entry.limit.text(section.unit)
    return text if entry.is_within else f"[red]{text}"


def _wide_table(section: Section) -> Table:
    """The labels `across` side by side, the others down."""
    across = [section.labels.index(label) for label in section.across]
    down = [place for place in range(len(section.labels)) if place not in across]
    rows: dict[tuple[str, ...], dict[tuple[str, ...], float]] = {}
    for entry in section.entries:
        row = tuple(entry.labels[place] for place in down)
        column = tuple(entry.labels[place] for place in across)
        rows.setdefault(row, {})[column] = entry.simulated
    columns = list(next(iter(rows.values())))
    headings = [f"{', '.join(column)}\n{section.unit.heading}" for column in columns]
    table = _with_columns([section.labels[place] for place in down], headings)
    for row, values in rows.items():
        table.add_row(*row, *(section.unit.text(values[column]) for column in columns))
    return table


def _with_columns(labels: list[str] | tuple[str, ...], numbers: list[str]) -> Table:
    table = Table()
    for label in labels:
        table.add_column(label)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table
