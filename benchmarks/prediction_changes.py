"""Compare the figures of two records of predictions."""

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rich import box
from rich.table import Table

ROUNDING = 1e-12
"""The largest relative difference that counts as rounding."""

WIDTH = 80
ERROR = "error"
"""The key under which a record has error codes instead of figures."""

SWEEP = "sweep"
"""The key under which a record has the row of a sweep."""

# Keys of a record that only group figures. Names of figures omit them.
_GROUPS = {"simulate", "memory", "stages"}


class Verdict(Enum):
    """The outcome of comparing one value."""

    SAME = "same"
    ROUNDING = "rounding"
    MOVED = "moved"
    ONLY_OLD = "only in the old revision"
    ONLY_NEW = "only in the new revision"


@dataclass(frozen=True, slots=True)
class Change:
    """Verdict on one value of a figure in two revisions.

    `relative` is (new - old) / |old|. It is infinite if only the old value is 0, and None if the
    values are equal or are not numbers. For rounding the denominator is the scale (see `changes`).
    """

    figure: str
    verdict: Verdict
    relative: float | None = None


def changes(old: Any, new: Any, path: tuple[str, ...] = (), scale: float = 0.0) -> Iterator[Change]:
    """Compare two JSON values, and yield one change per number, text, flag or null in them.

    Integers, texts and flags are the same or have moved. A difference of floats is rounding if it
    is at most `ROUNDING` times the larger absolute value, or times `scale`. For a dictionary of
    floats (a breakdown) the scale is the sum of its values: a part that is the remainder of a sum
    has the rounding error of the sum.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _changes_of_keys(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        length = max(len(old), len(new))
        for index in range(length):
            if index >= len(old):
                yield from _one_sided(new[index], path, Verdict.ONLY_NEW)
            elif index >= len(new):
                yield from _one_sided(old[index], path, Verdict.ONLY_OLD)
            else:
                yield from changes(old[index], new[index], path, scale)
    else:
        yield _change_of_value(old, new, _name(path), scale)


def _changes_of_keys(
    old: dict[str, Any], new: dict[str, Any], path: tuple[str, ...]
) -> Iterator[Change]:
    if (ERROR in old) != (ERROR in new):
        yield Change(_name((*path, ERROR)), Verdict.MOVED)
        return
    scale = max(_sum_of_floats(old), _sum_of_floats(new))
    for key in old | new:
        if key not in new:
            yield from _one_sided(old[key], (*path, key), Verdict.ONLY_OLD)
        elif key not in old:
            yield from _one_sided(new[key], (*path, key), Verdict.ONLY_NEW)
        else:
            yield from changes(old[key], new[key], (*path, key), scale)


def _sum_of_floats(values: dict[str, Any]) -> float:
    """Return the sum of the absolute values of a dictionary that contains only floats, else 0."""
    if not all(type(value) is float for value in values.values()):
        return 0.0
    return math.fsum(map(abs, values.values()))


def _one_sided(value: Any, path: tuple[str, ...], verdict: Verdict) -> Iterator[Change]:
    """Yield one change per value below a key that only one revision has."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _one_sided(inner, (*path, key), verdict)
    elif isinstance(value, list):
        for inner in value:
            yield from _one_sided(inner, path, verdict)
    else:
        yield Change(_name(path), verdict)


def _name(path: tuple[str, ...]) -> str:
    return ".".join(key for key in path if key not in _GROUPS)


def _change_of_value(old: Any, new: Any, figure: str, scale: float) -> Change:
    # The repr of a float has all its bits, and distinguishes 1.0 from 1 and 0.0 from -0.0.
    if type(old) is type(new) and repr(old) == repr(new):
        return Change(figure, Verdict.SAME)
    if not (_is_number(old) and _is_number(new)):
        return Change(figure, Verdict.MOVED)
    difference = new - old
    scale = max(abs(old), abs(new), scale)
    if isinstance(old, float) and isinstance(new, float) and abs(difference) <= ROUNDING * scale:
        return Change(figure, Verdict.ROUNDING, difference / scale if scale else 0.0)
    relative = difference / abs(old) if old else math.copysign(math.inf, difference)
    return Change(figure, Verdict.MOVED, None if math.isnan(relative) else relative)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass
class Differences:
    """All differences of a figure with the same verdict; `largest_in` is the name of a scenario."""

    number: int = 0
    relative: list[float] = field(default_factory=list)
    largest_in: str = ""

    def add(self, relative: float | None, scenario: str) -> None:
        """Count one difference."""
        self.number += 1
        if relative is None:
            self.largest_in = self.largest_in or scenario
            return
        if not self.relative or abs(relative) > abs(self.largest):
            self.largest_in = scenario
        self.relative.append(relative)

    @property
    def largest(self) -> float:
        """Return the relative difference with the largest absolute value."""
        return max(self.relative, key=abs)

    @property
    def median(self) -> float:
        """Return the median of the relative differences, with their signs."""
        return statistics.median(self.relative)


@dataclass
class Comparison:
    """All differences of two revisions, by figure.

    `num_scenarios` counts the scenarios that both revisions have, `num_points` the points of
    sweeps. `errors` counts the scenarios that raise an error, by the error codes in the old and in
    the new revision; "" means no error.
    """

    num_scenarios: int = 0
    num_points: int = 0
    moved_scenarios: set[str] = field(default_factory=set)
    num_values: Counter[str] = field(default_factory=Counter)
    differences: dict[Verdict, dict[str, Differences]] = field(
        default_factory=lambda: {verdict: {} for verdict in Verdict if verdict != Verdict.SAME}
    )
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    only_old: list[str] = field(default_factory=list)
    only_new: list[str] = field(default_factory=list)

    def add(self, scenario: str, old: Any, new: Any) -> None:
        """Compare the records of one scenario."""
        is_point = SWEEP in old
        self.num_points += is_point
        self.num_scenarios += not is_point
        for change in changes(old, new):
            self.num_values[change.figure] += 1
            if change.verdict is Verdict.SAME:
                continue
            found = self.differences[change.verdict].setdefault(change.figure, Differences())
            found.add(change.relative, scenario)
            if change.verdict is Verdict.MOVED:
                self.moved_scenarios.add(scenario)
        errors = _error_of(old), _error_of(new)
        if any(errors):
            self.errors[errors] += 1

    @property
    def nothing_moved(self) -> bool:
        """Return whether both revisions have the same figures, equal or within rounding."""
        return not any(
            found for verdict, found in self.differences.items() if verdict is not Verdict.ROUNDING
        )

    @property
    def largest_in(self) -> str | None:
        """Return the scenario with the largest finite relative change of a figure, if one moved."""
        moved = self.differences[Verdict.MOVED].values()
        numeric = [one for one in moved if one.relative and math.isfinite(one.largest)]
        if numeric:
            return max(numeric, key=lambda one: abs(one.largest)).largest_in
        return next((one.largest_in for one in moved), None)


def _error_of(record: Any) -> str:
    return ", ".join(record.get("simulate", {}).get(ERROR, ()))


def compare(old: Mapping[str, str], new: Mapping[str, str]) -> Comparison:
    """Compare the records of two revisions. Each record is a JSON text, by the scenario's name."""
    comparison = Comparison(
        only_old=[name for name in old if name not in new],
        only_new=[name for name in new if name not in old],
    )
    for name, text in old.items():
        if name in new:
            comparison.add(name, json.loads(text), json.loads(new[name]))
    return comparison


def moved_table(comparison: Comparison) -> Table:
    """Return a table of the figures that moved, grouped by the section of the record."""
    table = Table(box=box.SIMPLE_HEAD, width=WIDTH, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("figure", overflow="fold", ratio=1)
    for name, unit in (("values", ""), ("moved", ""), ("median", "%"), ("largest", "%")):
        table.add_column(f"{name}\n{unit}", justify="right", no_wrap=True)
    table.add_column("largest in", overflow="fold", max_width=19)
    sections: dict[str, list[tuple[str, Differences]]] = defaultdict(list)
    for figure, moved in comparison.differences[Verdict.MOVED].items():
        sections[figure.rpartition(".")[0]].append((figure, moved))
    for section, figures in sections.items():
        if section:
            table.add_row(section)
        for figure, moved in figures:
            table.add_row(
                " " * bool(section) + figure.rpartition(".")[2],
                f"{comparison.num_values[figure]:,}",
                f"{moved.number:,}",
                _percent(moved.median) if moved.relative else "-",
                _percent(moved.largest) if moved.relative else "-",
                moved.largest_in,
            )
    return table


def _percent(relative: float) -> str:
    return f"{100 * relative:+.2g}" if math.isfinite(relative) else "from 0"


def summary_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the lines below the table: rounding, one-sided names, errors, and the result at the
    end.
    """
    if rounding := comparison.differences[Verdict.ROUNDING]:
        largest = max(abs(found.largest) for found in rounding.values())
        figures = ", ".join(f"{figure} ({found.number:,})" for figure, found in rounding.items())
        yield f"Rounding of at most {largest:.1e} (relative) in {figures}"
    for verdict in (Verdict.ONLY_OLD, Verdict.ONLY_NEW):
        for figure, found in comparison.differences[verdict].items():
            yield f"Figure {verdict.value}: {figure} ({found.number:,} values)"
    for verdict, names in (
        (Verdict.ONLY_OLD, comparison.only_old),
        (Verdict.ONLY_NEW, comparison.only_new),
    ):
        if names:
            yield f"Scenarios {verdict.value}, not compared: {', '.join(names)}"
    for (old, new), number in comparison.errors.most_common():
        change = f"{old}, as before" if old == new else f"{new or 'none'}, before: {old or 'none'}"
        yield f"{number:,} scenarios raise an error: {change}"
    differing = {name for found in comparison.differences.values() for name in found}
    num_same = len(comparison.num_values.keys() - differing)
    num_values, num_figures = sum(comparison.num_values.values()), len(comparison.num_values)
    yield f"{num_values:,} values compared; unchanged figures: {num_same} of {num_figures}"
    yield result_line(comparison)


def result_line(comparison: Comparison) -> str:
    """Return the result in one line."""
    points = f" and {comparison.num_points:,} points of sweeps" if comparison.num_points else ""
    start = f"{comparison.num_scenarios:,} scenarios{points}:"
    if num_moved := len(comparison.differences[Verdict.MOVED]):
        moved = f"{num_moved} figure{'s' * (num_moved > 1)} moved"
        return f"{start} {moved}, in {len(comparison.moved_scenarios):,} of them"
    if not comparison.nothing_moved:
        return f"{start} nothing moved, but some figures exist in one revision only"
    if comparison.differences[Verdict.ROUNDING]:
        return f"{start} nothing moved beyond rounding"
    return f"{start} nothing moved"
