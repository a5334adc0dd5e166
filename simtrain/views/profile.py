"""A hardware profile, each entry with its source and fitted range: `simtrain show`."""

from __future__ import annotations

import functools
import operator
import pathlib
from itertools import groupby
from typing import Any, ClassVar

from simtrain.base.entry import Entry
from simtrain.base.plain_data import PlainData, keys
from simtrain.base.resources import find_profile
from simtrain.base.strict_yaml import load_document
from simtrain.base.values import dataclass
from simtrain.hardware.algorithms import Protocol
from simtrain.hardware.cluster import CollectiveCurve, Level
from simtrain.hardware.entries import entries_of
from simtrain.hardware.evidence import Evidence, ValidatedOn, error_text, evidence_of, validated_on
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import HardwareProfile, Ranges, Tile
from simtrain.units import with_micro_sign
from simtrain.views.kinds import TEXT
from simtrain.views.view import Cell, Column, Heading, Paragraphs, Row, Table, View


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """One entry; `written` is its value as written in the file."""

    section: str
    name: str
    written: Any
    entry: Entry[Any]

    @property
    def facts(self) -> dict[str, Any]:
        """The entry in base units: bytes, seconds, FLOP/s and their quotients."""
        shown = self.entry.model_dump(mode="json", exclude_none=True)
        return {"value": shown.pop("value"), "written": self.written, **shown}


@dataclass(frozen=True, slots=True)
class ProfilePage(PlainData):
    """A profile and its entries, in the file's order of sections.

    Args:
        validated_on: errors of predicted iterations against measured ones; None if unknown.
        evidence: what predictions with the profile rest on.
    """

    json_fields: ClassVar = keys(
        """name=profile.name description=profile.description calibrated=evidence.judged evidence
        num_entries num_fitted validated_on entries=entries_by_name"""
    )

    profile: HardwareProfile
    entries: tuple[ShownEntry, ...]
    validated_on: ValidatedOn | None
    evidence: Evidence

    @property
    def num_entries(self) -> int:
        return len(self.entries)

    @property
    def num_fitted(self) -> int:
        return sum(shown.entry.fitted_on is not None for shown in self.entries)

    @property
    def entries_by_name(self) -> dict[str, Any]:
        return {f"{shown.section}.{shown.name}": shown.facts for shown in self.entries}


def load_page(name_or_path: str | pathlib.Path) -> ProfilePage:
    """Load the page of a profile, by name or path.

    Raises:
        InputError: as `load_profile` does.
    """
    profile = load_profile(name_or_path)
    written = load_document(find_profile(name_or_path)).data
    entries = []
    for dotted, entry in entries_of(profile):
        section, _, name = dotted.partition(".")
        as_written = functools.reduce(operator.getitem, dotted.split("."), written)
        entries.append(ShownEntry(section, name, as_written["value"], entry))
    name = str(name_or_path)
    return ProfilePage(profile, tuple(entries), validated_on(name), evidence_of(profile, name))


def profile_view(page: ProfilePage) -> View:
    """Show the profile's evidence, and one table per section."""
    profile = page.profile
    said = [profile.description, page.evidence.sentence, *validation_lines(page.validated_on)]
    sections = groupby(page.entries, key=lambda entry: entry.section)
    tables = [_section_table(section, [*entries]) for section, entries in sections]
    return View([Heading(profile.name), Paragraphs(said, style=None), *tables])


_SEEN = {
    "blind": "Blind: nothing was chosen after looking at them",
    "seen": "Seen: no number is fitted to them",
    "fitted": "Fitted: numbers of the software stack follow from them",
}
"""What a class of measured runs says about errors, by `MeasuredRuns.seen`."""


def validation_lines(errors: ValidatedOn | None) -> list[str]:
    """State the errors of predicted iteration times against measured ones."""
    if errors is None:
        return ["Validated on: compared with no measured iteration that simtrain knows of."]
    lines = [f"Validated on: {errors.summary}"]
    for runs in errors.measured_runs:
        lines.append(
            f"- {runs.runs}. Runs: {runs.num_runs}, mean |error| {error_text(runs.mean_error)}, "
            f"worst {error_text(runs.worst_error)}, with {runs.software}. {_SEEN[runs.seen]}; "
            f"{runs.remark}. "
            f"Source: {runs.source}."
        )
    return lines


def _section_table(section: str, entries: list[ShownEntry]) -> Table:
    columns = (
        Column("entry", "entry", TEXT),
        Column("value", "value", TEXT, "as written in the profile"),
        Column("source", "source, and what it was fitted on", TEXT),
    )
    rows = []
    for shown in entries:
        fitted_on = f"\nfitted on: {shown.entry.fitted_on}" if shown.entry.fitted_on else ""
        value = Cell(str(shown.written), _shown(shown))
        text = shown.entry.source + fitted_on
        rows.append(Row((shown.name, value, text), entry=f"{section}.{shown.name}"))
    return Table(section, section, columns, rows, widths=(3, 4, 7))


def _shown(shown: ShownEntry) -> str:
    match shown.entry.value:
        case Ranges() as seen:
            return "\n".join(f"{name} {low} to {high}" for name, (low, high) in seen)
        case list() as items:
            return "\n".join(_shown_item(item) for item in items)
        case _:
            return with_micro_sign(str(shown.written))


def _shown_item(item: Tile | CollectiveCurve | Level | Protocol) -> str:
    match item:
        case Tile():
            return f"{item.m} × {item.n}: {item.relative_speed:g}"
        case Level():
            return f"{item.name}: {item.nodes} nodes, uplinks {item.oversubscription:g}:1"
        case Protocol():
            steps = [
                f"{item.base_latency * 1e6:g} µs",
                f"{item.node_step * 1e6:g} µs per step within a node",
            ]
            if item.network_step is not None:
                steps.append(f"{item.network_step * 1e6:g} µs per network step")
            return f"{item.name}: {', '.join(steps)}, {item.efficiency:.0%}"
    latency_us, reached = item.latency * 1e6, item.efficiency
    return f"{item.num_ranks} ranks: {latency_us:g} µs, {min(reached):.0%} to {max(reached):.0%}"
