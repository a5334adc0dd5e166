"""The parts of a figure, down to profile entries: `simtrain run --show sources`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simtrain.base.plain_data import Number, Sentence
from simtrain.iteration.report.operators import EntrySource, Operator
from simtrain.iteration.report.origins import Explained, NumberOrigin
from simtrain.units import counted, format_bytes, format_seconds, four_digits, gib
from simtrain.views.kinds import TEXT
from simtrain.views.operators import rate_of
from simtrain.views.view import Branch, Cell, Column, Paragraphs, Part, Row, Table, View

_LEAST_PART = 0.05
"""Entries behind a smaller share of a number are not shown; JSON has them."""


def origins_view(explained: Explained, profile: str) -> View:
    """The figure, what it is computed from, and the profile entries with their sources."""
    figure = figure_branch(explained.origin)
    parts: list[Part] = [Paragraphs([f"{explained.scenario}:"], style=None), figure]
    if interval := explained.interval:
        parts.append(Branch("measured time", f": {interval.ends} in 90 %; {interval.basis}"))
    if peak := explained.peak_interval:
        expect = f"expect {gib(peak.expected_bytes)} GiB"
        parts.append(Branch("measured peak", f": {peak.ends} in 90 %; {peak.basis}: {expect}"))
    shown = _shown_entries(explained.origin)
    if shown:
        used = [each for each in explained.sources.values() if each.entry in shown]
        entries = [
            Branch(each.entry, f" = {shown_value(each.entry, each.value, profile)}", [_cited(each)])
            for each in used
        ]
        parts.append(Branch("", f"Entries of the hardware profile {profile}", entries))
    return View(parts)


def figure_branch(origin: NumberOrigin) -> Branch:
    """A figure and what it is computed from."""
    return Branch(origin.name, _said(origin, origin), _parts(origin, origin))


def entries_table(sources: Iterable[EntrySource], profile: str) -> Table:
    """Entries of a hardware profile with what their values come from."""
    columns = (
        Column("entry", "entry", TEXT),
        Column("value", "value", TEXT, "in the profile"),
        Column("source", "source", TEXT),
        Column("fitted_on", "fitted on", TEXT),
    )
    rows = []
    for source in sorted(sources, key=lambda source: source.entry):
        value = Cell(source.value, shown_value(source.entry, source.value, profile))
        fitted_on = source.fitted_on or "not fitted: published"
        rows.append(Row((source.entry, value, source.source, fitted_on), entry=source.entry))
    return Table("entries", f"Entries of the hardware profile {profile}", columns, rows)


def _parts(origin: NumberOrigin, whole: NumberOrigin) -> list[Branch]:
    """Return the parts of an origin, with their shares of a whole of the same unit."""
    branches = []
    for part in origin.parts:
        of = whole if part.unit == whole.unit else part
        used = [_used(part)] if _shares(part) else []
        branches.append(Branch(part.name, _said(part, of), [*used, *_parts(part, of)]))
    return branches


def _shares(origin: NumberOrigin) -> dict[str, float]:
    return {name: share for name, share in origin.entries.items() if share >= _LEAST_PART}


def _shown_entries(origin: NumberOrigin) -> set[str]:
    return {*_shares(origin)}.union(*map(_shown_entries, origin.parts))


def _used(origin: NumberOrigin) -> Branch:
    words = ", ".join(f"{name} ({share:.0%})" for name, share in _shares(origin).items())
    return Branch("", f"from {words}", is_soft=True)


def _said(origin: NumberOrigin, whole: NumberOrigin) -> Sentence:
    words: list[str | Number] = [" = ", Number(origin.value, _value(origin))]
    if origin.unit and origin is not whole:
        share = origin.value / whole.value
        words += [" (", Number(share, f"{share:.1%}"), ")"]
    remark = _about(origin.operator) if origin.operator else origin.remark
    return Sentence(*words, *([": ", remark] if remark else []))


def _value(origin: NumberOrigin) -> str:
    match origin.unit:
        case "s":
            return format_seconds(origin.value)
        case "B":
            return format_bytes(origin.value)
        case "FLOP" | "FLOP/s":
            return f"{origin.value:.4g} {origin.unit}"
    return f"{origin.value:.1%}" if origin.value < 1 else f"{origin.value:,.0f}"


def _about(row: Operator) -> str:
    rate = rate_of(row)
    words = [f"{row.count:,} × {row.shape}", *([rate] if rate else [])]
    if row.bottleneck:
        words.append(f"limited by {row.bottleneck.limit}")
    if row.basis == "extrapolated":
        words.append("extrapolated: outside the range that the profile was fitted on")
    return ", ".join(words)


def _cited(source: EntrySource) -> Branch:
    fitted_on = f"; fitted on {source.fitted_on}" if source.fitted_on else ""
    return Branch("", source.source + fitted_on)


def shown_value(name: str, value: Any, profile: str) -> str:
    """An entry's value with its unit, which follows from its name."""
    last = name.rpartition(".")[2]
    if not isinstance(value, float | int):
        return f"{counted(len(value), 'row')}, listed by simtrain show {profile}"
    if last.endswith("_flops"):
        return f"{four_digits(value / 1e12)} TFLOP/s"
    if last in ("issue", "host_call") or last.endswith(("latency", "overhead")):
        return format_seconds(value)
    if last in ("allocator_reserve", "memory_capacity") or last.endswith("workspace"):
        return format_bytes(value)
    if last.endswith("bandwidth") or name.startswith("memory_bound.kernels."):
        return f"{four_digits(value / 1e9)} GB/s"
    return four_digits(value)
