"""Tables and figures of the paper beside simulated ones: `simtrain reproduce`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from simtrain.guests.paper.entries import (
    AllTargets,
    PaperEntry,
    PaperSection,
    Reproduction,
    TargetResult,
    TimeComparison,
    Unit,
)
from simtrain.views.kinds import NUMBER, TEXT, Kind
from simtrain.views.view import (
    Cell,
    Column,
    Heading,
    Headline,
    Paragraphs,
    Part,
    Row,
    Table,
    View,
    remarks,
    verdict,
)

Further = tuple[Column, Callable[[PaperEntry], Any]]
"""A column, and the function that returns an entry's cell."""

_MUST_EQUAL = "Each value must equal the paper's."


def paper_view(reproduced: TargetResult | AllTargets) -> View:
    """Show a reproduced table or figure, or all of them."""
    if isinstance(reproduced, AllTargets):
        return _everything(reproduced)
    return View(_parts(reproduced, ""))


def _parts(reproduced: TargetResult, prefix: str) -> list[Part]:
    if isinstance(reproduced, TimeComparison):
        return _comparison(reproduced, prefix)
    return _reproduction(reproduced, prefix)


def _everything(everything: AllTargets) -> View:
    parts: list[Part] = []
    for name, result in everything.targets.items():
        parts += [Heading(name, is_rule=True), *_parts(result, f"{name}-")]
    failed = [name for name, result in everything.targets.items() if not result.ok]
    words = f"all {len(everything.targets)} targets"
    if failed:
        words = f"{', '.join(failed)} ({len(failed)} of {len(everything.targets)} targets)"
    return View([*parts, verdict(not failed, words)])


def _comparison(comparison: TimeComparison, prefix: str) -> list[Part]:
    facts = sorted({name for row in comparison.rows for name in row.facts}, key=_fact_order)
    further = [(_fact_column(name), partial(_fact, name)) for name in facts]
    parts: list[Part] = [
        _table(f"{prefix}times", comparison.times, *further, title=comparison.title)
    ]
    if comparison.gains:
        gains = comparison.throughput
        remark = Column("remark", "", TEXT), partial(_gain_remark, 100 * comparison.gain_threshold)
        parts.append(_table(f"{prefix}gains", gains, remark, title=gains.title))
    return [*parts, times_verdict(comparison)]


def _gain_remark(points: float, gain: PaperEntry) -> str:
    return "" if gain.is_within else f"more than {points:.1f} points off"


def times_verdict(comparison: TimeComparison) -> Headline:
    """The closing line."""
    mean, largest = comparison.mean_abs_error, comparison.max_abs_error
    words = (
        f"mean |error| {mean:.2%} (at most {comparison.mean_threshold:.1%}), "
        f"largest {largest:.2%} (at most {comparison.max_threshold:.1%})"
    )
    return verdict(comparison.ok, words)


def _fact_order(name: str) -> tuple[str, bool]:
    return name.removeprefix("paper_"), not name.startswith("paper_")


def _fact_column(name: str) -> Column:
    """Return the column of a figure beside a time: seconds, shares in percent, or a text."""
    kind = Kind(partial(_fact_text, name))
    if name == "overlapped_s":
        return Column(name, "simulated,\noverlapped\ns", kind)
    words = name.replace("_", " ").replace("mfu", "MFU").replace("hfu", "HFU")
    return Column(name, words if name == "pass" else f"{words}\n%", kind)


def _fact(name: str, row: PaperEntry) -> Any:
    return row.facts.get(name)


def _fact_text(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value or "")
    return f"{value:.3f}" if name.endswith("_s") else f"{100 * value:.1f}"


def _reproduction(reproduction: Reproduction, prefix: str) -> list[Part]:
    parts: list[Part] = [Heading(reproduction.title)]
    for number, section in enumerate(reproduction.sections, start=1):
        name = f"{prefix}{number}"
        limits = [entry.limit for entry in section.entries]
        are_exact = all(limit and limit.is_exact for limit in limits)
        is_shown = any(limits) and not are_exact
        allowed = Column("allowed", "allowed", TEXT), partial(_allowed, section.unit)
        further = [allowed] if is_shown else []
        note = " ".join(filter(None, (section.note, _MUST_EQUAL * are_exact)))
        parts.append(
            _wide_table(name, section) if section.across else _table(name, section, *further)
        )
        parts.append(remarks([note] if note else []))
    misses = [f"beyond its limit: {miss}" for miss in reproduction.misses]
    parts.append(Paragraphs(misses, style="bad"))
    return [*parts, _verdict(reproduction)]


def _verdict(reproduction: Reproduction) -> Headline:
    judged, missed = reproduction.num_judged, len(reproduction.misses)
    limits = [entry.limit for section in reproduction.sections for entry in section.entries]
    is_exact = judged and all(limit.is_exact for limit in limits if limit)
    words = f"all {judged} figures with limits are within them"
    if is_exact:
        words = f"all {judged} figures equal the paper's"
    if missed:
        words = f"{missed} of {judged} figures beyond their limits"
    return verdict(not missed, words)


def _allowed(unit: Unit, entry: PaperEntry) -> Cell:
    text = entry.limit.text(unit) if entry.limit else ""
    return Cell(text, text, None if entry.is_within else "bad")


def _table(name: str, section: PaperSection, *further: Further, title: str | None = None) -> Table:
    unit = section.unit
    kind = Kind(unit.text)
    columns: list[Further] = [
        (Column("simulated", _with_unit("simulated", unit), kind), lambda entry: entry.simulated)
    ]
    if any(entry.paper is not None for entry in section.entries):
        error = "points" if unit.name == "fraction" else "%"
        columns = [
            (Column("paper", _with_unit("paper", unit), kind), lambda entry: entry.paper),
            *columns,
            (Column("error", f"error\n{error}", Kind(_signed)), section.error),
        ]
    columns += further
    rows = [
        Row([*entry.labels, *(cell(entry) for _, cell in columns)]) for entry in section.entries
    ]
    return Table(
        name,
        section.title if title is None else title,
        [*_label_columns(section.labels), *(column for column, _ in columns)],
        rows,
        optional=[column.name for column, _ in reversed(further)],
    )


def _label_columns(labels: Sequence[str]) -> list[Column]:
    """Return the columns of labels, whose headings may begin with ">" for numbers."""
    return [
        Column(label.lstrip(">"), label.lstrip(">"), NUMBER if label.startswith(">") else TEXT)
        for label in labels
    ]


def _with_unit(name: str, unit: Unit) -> str:
    return f"{name}\n{unit.heading}".rstrip()


def _signed(error: float) -> str:
    return f"{100 * error:+.2f}"


def _wide_table(name: str, section: PaperSection) -> Table:
    """A table with the labels `across` as columns and the others as rows."""
    across = [section.labels.index(label) for label in section.across]
    down = [place for place in range(len(section.labels)) if place not in across]
    rows: dict[tuple[str, ...], dict[str, float]] = {}
    for entry in section.entries:
        row = tuple(entry.labels[place] for place in down)
        column = ", ".join(entry.labels[place] for place in across)
        rows.setdefault(row, {})[column] = entry.simulated
    names = list(next(iter(rows.values())))
    kind = Kind(section.unit.text)
    columns = [
        *_label_columns([section.labels[place] for place in down]),
        *(Column(column, _with_unit(column, section.unit), kind) for column in names),
    ]
    cells = [Row([*row, *(values[column] for column in names)]) for row, values in rows.items()]
    return Table(name, section.title, columns, cells)
