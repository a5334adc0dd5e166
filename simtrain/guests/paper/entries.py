"""Published and simulated numbers, and the limits within which they count as reproduced.

published.yaml has the published values and their limits."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from simtrain.base.accuracy import ErrorStatistics
from simtrain.base.plain_data import PlainData, keys
from simtrain.base.strict_yaml import load_document
from simtrain.base.values import dataclass, field

Item = TypeVar("Item")
Progress = Callable[[str, int, int], None]
"""Receives the name of the next simulation, the number done, and the total."""


def reported(
    items: Sequence[Item], progress: Progress | None, name: Callable[[Item], str] = str
) -> Iterator[Item]:
    """Yield the items and report each as the next simulation."""
    for number, item in enumerate(items):
        if progress:
            progress(name(item), number, len(items))
        yield item


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of a quantity: `name` in JSON; on the page `heading`, which equals `scale` units."""

    name: str
    heading: str
    scale: float
    format: str

    def text(self, value: float | None) -> str:
        """Format a value for the page; None gives an empty text."""
        return "" if value is None else format(value / self.scale, self.format)


BYTES = Unit("bytes", "bytes", 1, ",.0f")
GIB = Unit("bytes", "GiB", 2**30, ".3f")
GIGABYTES = Unit("bytes", "GB", 1e9, ".2f")
FLOPS = Unit("FLOPs", "GFLOPs", 1e9, ",.3f")
MILLISECONDS = Unit("s", "ms", 1e-3, ".2f")
SECONDS = Unit("s", "s", 1, ".3f")
SHORT_SECONDS = Unit("s", "ms", 1e-3, ".3f")
PERCENT = Unit("fraction", "%", 0.01, ".2f")
GAIN = Unit("fraction", "%", 0.01, ".1f")
NUMBER = Unit("number", "", 1, ".6g")
_SHORT_S = 0.1
_OF_SECTIONS = (BYTES, GIB, GIGABYTES, FLOPS, MILLISECONDS, PERCENT, NUMBER)
UNITS = {unit.heading: unit for unit in _OF_SECTIONS}


_ROUNDING = 1e-11
"""Ranges below this share of their value only allow for errors of floating point."""


@dataclass(frozen=True, slots=True)
class PaperLimit:
    """Lowest and highest simulated value that counts as reproduced."""

    lowest: float = float("-inf")
    highest: float = float("inf")

    @classmethod
    def exactly(cls, paper: float) -> PaperLimit:
        """Return the limit of a simulated value that must equal the paper's."""
        return cls(paper, paper)

    @classmethod
    def within(cls, paper: float, tolerance: float) -> PaperLimit:
        """Return the limit `paper` ± `tolerance`, both in the same unit."""
        return cls(paper - tolerance, paper + tolerance)

    @classmethod
    def near(cls, paper: float, relative: float) -> PaperLimit:
        """Return the limit `paper` ± a fraction of it."""
        return cls.within(paper, relative * paper)

    def holds(self, value: float) -> bool:
        return self.lowest <= value <= self.highest

    @property
    def is_exact(self) -> bool:
        """Whether only the paper's value is allowed, but for errors of floating point."""
        return math.isclose(self.lowest, self.highest, rel_tol=_ROUNDING)

    def text(self, unit: Unit) -> str:
        if self.is_exact:
            return "exact"
        lowest, highest = unit.text(self.lowest), unit.text(self.highest)
        if lowest == highest:
            return f"{lowest} ± {(self.highest - self.lowest) / 2:g} {unit.name}"
        if self.lowest == float("-inf"):
            return f"at most {highest}"
        return f"at least {lowest}" if self.highest == float("inf") else f"{lowest} to {highest}"

    @property
    def ends(self) -> dict[str, float]:
        ends = {"lowest": self.lowest, "highest": self.highest}
        return {name: value for name, value in ends.items() if math.isfinite(value)}


@dataclass(frozen=True, slots=True)
class PaperEntry:
    """One number: published and simulated.

    Args:
        labels: values of the section's labels.
        paper: the paper's value; None if the paper has none.
        simulated: the simulated value.
        limit: allowed simulated values; None if there is no limit.
        facts: other numbers from the same simulation, by JSON name.
    """

    labels: tuple[str, ...]
    paper: float | None
    simulated: float
    limit: PaperLimit | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_within(self) -> bool:
        return self.limit is None or self.limit.holds(self.simulated)


@dataclass(frozen=True, slots=True)
class PaperSection:
    """Entries of one quantity.

    Args:
        title: the quantity.
        unit: its unit.
        labels: names of the entries' labels.
        entries: the numbers.
        note: sources of the paper's values and of the limits.
        across: labels that become columns of the page's table, if the section has no paper values.
        name: identifies the section in its `Reproduction`.
    """

    title: str
    unit: Unit
    labels: tuple[str, ...]
    entries: tuple[PaperEntry, ...]
    note: str = ""
    across: tuple[str, ...] = ()
    name: str = ""

    def error(self, entry: PaperEntry) -> float | None:
        """Return the relative error, or the difference for fractions and if the paper has zero."""
        if entry.paper is None:
            return None
        difference = entry.simulated - entry.paper
        if self.unit.name == "fraction" or not entry.paper:
            return difference
        # Both forms are equal except for rounding; each keeps the last digits of published JSON.
        return (
            entry.simulated / entry.paper - 1
            if self.unit in (SECONDS, SHORT_SECONDS)
            else difference / entry.paper
        )

    def named(self, entry: PaperEntry) -> dict[str, str]:
        return dict(zip(self.labels, entry.labels, strict=True))

    def value(self, *labels: str) -> float:
        return self.entry(*labels).simulated

    def entry(self, *labels: str) -> PaperEntry:
        return next(entry for entry in self.entries if entry.labels == labels)

    def names(self, label: str) -> tuple[str, ...]:
        """Return the distinct values of a label in the entries' order."""
        place = self.labels.index(label)
        return tuple(dict.fromkeys(entry.labels[place] for entry in self.entries))

    def misses(self) -> Iterator[str]:
        for entry in self.entries:
            if entry.limit and not entry.is_within:
                ours, limit = self.unit.text(entry.simulated), entry.limit.text(self.unit)
                what = ", ".join((self.title, *entry.labels))
                yield f"{what}: {ours} {self.unit.heading} (allowed: {limit})"

    def rows(self) -> Iterator[dict[str, Any]]:
        for entry in self.entries:
            yield {
                "quantity": self.title,
                "unit": self.unit.name,
                **self.named(entry),
                "paper": entry.paper,
                "simulated": entry.simulated,
                "error": self.error(entry),
                "limit": entry.limit.ends if entry.limit else None,
                "within": entry.is_within,
            }


class PaperVerdict(PlainData, ABC):
    """A result with limits: `misses` describes the numbers outside of them, `facts` is its JSON."""

    json_fields: ClassVar = keys("**facts misses ok")

    @property
    @abstractmethod
    def misses(self) -> tuple[str, ...]: ...

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]: ...

    @property
    def ok(self) -> bool:
        return not self.misses


@dataclass(frozen=True)
class Reproduction(PaperVerdict):
    """A reproduced table or figure of the paper, in sections."""

    title: str
    sections: Sequence[PaperSection]

    def section(self, name: str) -> PaperSection:
        return next(section for section in self.sections if section.name == name)

    @property
    def num_judged(self) -> int:
        return sum(entry.limit is not None for s in self.sections for entry in s.entries)

    @property
    def misses(self) -> tuple[str, ...]:
        return tuple(miss for section in self.sections for miss in section.misses())

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "rows": [row for section in self.sections for row in section.rows()],
            "notes": {section.title: section.note for section in self.sections},
            "num_judged": self.num_judged,
        }


@dataclass(frozen=True)
class TimeComparison(ErrorStatistics, PaperVerdict):
    """A table of times with limits of the mean and the largest error.

    A gain is the difference of two similar times, which magnifies their errors. Therefore gains
    have a threshold of their own and do not affect the verdict.

    Args:
        title: the table.
        rows: times in seconds, labelled by model and strategy.
        mean_threshold, max_threshold: limits of the mean and of the largest |relative error|.
        gains: throughput gains as fractions, labelled by model.
        gain_threshold: limit of a gain's difference.
    """

    title: str
    rows: Sequence[PaperEntry]
    mean_threshold: float
    max_threshold: float
    gains: Sequence[PaperEntry] = ()
    gain_threshold: float = 0.0

    @property
    def times(self) -> PaperSection:
        is_short = all(row.simulated < _SHORT_S for row in self.rows)
        unit = SHORT_SECONDS if is_short else SECONDS
        return PaperSection(self.title, unit, ("model", "strategy"), tuple(self.rows))

    @property
    def throughput(self) -> PaperSection:
        return PaperSection(
            "Throughput gain over full recompute", GAIN, ("model",), tuple(self.gains)
        )

    @property
    def errors(self) -> list[float]:
        return [self.times.error(row) or 0.0 for row in self.rows]

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "rows": [
                {**self.times.named(row), **row.facts}
                | {"paper_s": row.paper, "simulated_s": row.simulated, "error": error}
                for row, error in zip(self.rows, self.errors, strict=True)
            ],
            "gains": [
                {**self.throughput.named(gain), "paper": gain.paper, "simulated": gain.simulated}
                | {"error": self.throughput.error(gain), "threshold": self.gain_threshold}
                | {"within": gain.is_within}
                for gain in self.gains
            ],
            "mean_abs_error": self.mean_abs_error,
            "max_abs_error": self.max_abs_error,
            "mean_threshold": self.mean_threshold,
            "max_threshold": self.max_threshold,
        }


TargetResult = TimeComparison | Reproduction
"""Result of one target of `simtrain reproduce`."""


@dataclass(frozen=True)
class AllTargets(PaperVerdict):
    """Results of all targets of `simtrain reproduce`."""

    targets: Mapping[str, TargetResult]

    @property
    def misses(self) -> tuple[str, ...]:
        return tuple(
            f"{name}: {miss}" for name, result in self.targets.items() for miss in result.misses
        )

    @property
    def facts(self) -> dict[str, Any]:
        return {"targets": self.targets}


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
