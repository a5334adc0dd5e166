"""Published figures of any unit beside ours, and the limits within which they count as reproduced.

Tables of iteration times have errors and verdicts of their own: see `comparison`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Unit:
    """How a quantity is written: `name` in JSON, and on the page in `heading`, `scale` of it."""

    name: str
    heading: str
    scale: float
    format: str

    def text(self, value: float) -> str:
        """The value as the page prints it."""
        return format(value / self.scale, self.format)


BYTES = Unit("bytes", "bytes", 1, ",.0f")
GIB = Unit("bytes", "GiB", 2**30, ".3f")
GIGABYTES = Unit("bytes", "GB", 1e9, ".2f")
FLOPS = Unit("FLOPs", "GFLOPs", 1e9, ",.3f")
MILLISECONDS = Unit("s", "ms", 1e-3, ".2f")
PERCENT = Unit("fraction", "%", 0.01, ".2f")
NUMBER = Unit("number", "", 1, ".6g")


@dataclass(frozen=True, slots=True)
class Limit:
    """The lowest and the highest value of ours that agrees with the paper's."""

    lowest: float = float("-inf")
    highest: float = float("inf")

    @classmethod
    def exactly(cls, paper: float) -> Limit:
        """Ours must be equal."""
        return cls(paper, paper)

    @classmethod
    def within(cls, paper: float, tolerance: float) -> Limit:
        """Ours may differ by `tolerance`, in the same unit."""
        return cls(paper - tolerance, paper + tolerance)

    @classmethod
    def near(cls, paper: float, relative: float) -> Limit:
        """Ours may differ by a fraction of the paper's value."""
        return cls.within(paper, relative * paper)

    def holds(self, value: float) -> bool:
        """Whether a value lies within."""
        return self.lowest <= value <= self.highest

    def text(self, unit: Unit) -> str:
        """The limit as the page prints it."""
        if self.lowest == self.highest:
            return "exact"
        lowest, highest = unit.text(self.lowest), unit.text(self.highest)
        if self.lowest == float("-inf"):
            return f"at most {highest}"
        return f"at least {lowest}" if self.highest == float("inf") else f"{lowest} to {highest}"

    def to_json(self) -> dict[str, float]:
        """Its ends, as far as it has them."""
        ends = {"lowest": self.lowest, "highest": self.highest}
        return {name: value for name, value in ends.items() if abs(value) != float("inf")}


@dataclass(frozen=True, slots=True)
class Entry:
    """One figure: what it is of, by the labels of its section, the paper's value, and ours.

    `paper` is None where the paper gives none, `limit` where ours is shown and not judged.
    """

    labels: tuple[str, ...]
    paper: float | None
    simulated: float
    limit: Limit | None = None

    @property
    def is_within(self) -> bool:
        """Whether ours keeps its limit; what has none always does."""
        return self.limit is None or self.limit.holds(self.simulated)


@dataclass(frozen=True, slots=True)
class Section:
    """Entries of one quantity; `note` says where the paper's values and the limits come from.

    Where nothing is compared, the page can show the values of the labels `across` side by side.
    """

    title: str
    unit: Unit
    labels: tuple[str, ...]
    entries: tuple[Entry, ...]
    note: str
    across: tuple[str, ...] = ()

    def error(self, entry: Entry) -> float | None:
        """Relative error; for fractions, and where the paper has zero, the difference."""
        if entry.paper is None:
            return None
        difference = entry.simulated - entry.paper
        return difference if self.unit is PERCENT or not entry.paper else difference / entry.paper

    def value(self, *labels: str) -> float:
        """Our value of the entry with these labels."""
        return self.entry(*labels).simulated

    def entry(self, *labels: str) -> Entry:
        """The entry with these labels."""
        return next(entry for entry in self.entries if entry.labels == labels)

    def names(self, label: str) -> tuple[str, ...]:
        """The different values of a label, in order."""
        place = self.labels.index(label)
        return tuple(dict.fromkeys(entry.labels[place] for entry in self.entries))

    def misses(self) -> Iterator[str]:
        """What lies beyond its limit, in words."""
        for entry in self.entries:
            if entry.limit and not entry.is_within:
                ours, limit = self.unit.text(entry.simulated), entry.limit.text(self.unit)
                what = ", ".join((self.title, *entry.labels))
                yield f"{what}: {ours} {self.unit.heading} (allowed: {limit})"

    def rows(self) -> Iterator[dict[str, Any]]:
        """The entries in full precision, in the unit that JSON names."""
        for entry in self.entries:
            yield {
                "quantity": self.title,
                "unit": self.unit.name,
                **dict(zip(self.labels, entry.labels, strict=True)),
                "paper": entry.paper,
                "simulated": entry.simulated,
                "error": self.error(entry),
                "limit": entry.limit.to_json() if entry.limit else None,
                "within": entry.is_within,
            }


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A table or figure of the paper beside ours, section by section."""

    title: str
    sections: Sequence[Section]

    def section(self, title: str) -> Section:
        """The section of a title."""
        return next(section for section in self.sections if section.title == title)

    @property
    def num_judged(self) -> int:
        """Entries that have a limit."""
        return sum(entry.limit is not None for s in self.sections for entry in s.entries)

    @property
    def misses(self) -> tuple[str, ...]:
        """What lies beyond its limit, in words; empty when all is reproduced."""
        return tuple(miss for section in self.sections for miss in section.misses())

    @property
    def ok(self) -> bool:
        """Whether everything is within its limit."""
        return not self.misses

    def to_json(self) -> dict[str, Any]:
        """Plain data in full precision."""
        return {
            "title": self.title,
            "rows": [row for section in self.sections for row in section.rows()],
            "notes": {section.title: section.note for section in self.sections},
            "num_judged": self.num_judged,
            "misses": list(self.misses),
            "ok": self.ok,
        }
