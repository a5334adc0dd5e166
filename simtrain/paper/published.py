"""Combine simulated values with the published values and limits of published.yaml."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simtrain.base.strict_yaml import load_document
from simtrain.paper.entries import UNITS, PaperEntry, PaperLimit, PaperSection, Reproduction

Ours = Mapping[Any, float | tuple[float, float] | PaperEntry]
"""Simulated values by label or tuple of labels.

A pair is the value of the paper's formula and the simulated value. A `PaperEntry` carries a limit
that only the simulation can determine.
"""


@functools.cache
def published(target: str) -> dict[str, Any]:
    """Return title and sections of a target from published.yaml."""
    entries: dict[str, Any] = _file()[target]
    return entries


@functools.cache
def _file() -> dict[str, Any]:
    return load_document(Path(__file__).with_name("published.yaml")).data


def reproduction(target: str, **ours: Ours) -> Reproduction:
    """Build a reproduction from simulated values by section, in the order given."""
    about = published(target)
    sections = [_section(name, about["sections"][name], values) for name, values in ours.items()]
    return Reproduction(about["title"], sections)


def _section(name: str, about: dict[str, Any], ours: Ours) -> PaperSection:
    entries = []
    for label, value in ours.items():
        labels = (label,) if isinstance(label, str) else label
        entries.append(value if isinstance(value, PaperEntry) else _entry(about, labels, value))
    return PaperSection(
        about["title"],
        UNITS[about["unit"]],
        tuple(about["labels"]),
        tuple(entries),
        about.get("note", ""),
        tuple(about.get("across", ())),
        name,
    )


def _entry(
    about: dict[str, Any], labels: tuple[str, ...], ours: float | tuple[float, float]
) -> PaperEntry:
    unit, rule = UNITS[about["unit"]], about.get("limit")
    entry: Any = about.get("paper", {})
    scale = 1 if unit.name == "fraction" else unit.scale
    paper, simulated = ours if isinstance(ours, tuple) else (None, ours)
    for label in labels:
        entry = entry.get(label, {})
    if isinstance(entry, dict):
        entry, rule = entry.get("value"), entry.get("limit", rule)
    paper = paper if entry is None else entry * scale
    limit = None if paper is None else _limit(rule, paper)
    return PaperEntry(labels, paper, simulated, limit)


def _limit(rule: Any, paper: float) -> PaperLimit | None:
    match rule:
        case "exact":
            return PaperLimit.exactly(paper)
        case {"near": relative}:
            return PaperLimit.near(paper, relative)
        case {"within": difference}:
            return PaperLimit.within(paper, difference)
        case dict():
            return PaperLimit(rule.get("from", float("-inf")), rule.get("to", float("inf")))
    return None
