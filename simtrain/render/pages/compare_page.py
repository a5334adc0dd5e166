"""Terminal page of `simtrain compare`: scenarios side by side, causes, and sensitivity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simtrain.base.strict_yaml import as_scalar
from simtrain.hardware.evidence import evidence_of, sentences_of
from simtrain.hardware.upgrades import RESOURCES
from simtrain.iteration.report.breakdown import CAUSE_LABELS, KIND_LABELS
from simtrain.iteration.report.difference import Difference
from simtrain.iteration.report.remarks import mfu_remarks
from simtrain.iteration.report.result import Result
from simtrain.render.pages.tables import Bar, FittedTable, notes, properties
from simtrain.studies.sensitivity import FACTOR, Sensitivity
from simtrain.units import format_bytes, format_seconds, four_digits

_MOST_OTHERS = 3
"""Scenarios in a table of 80 columns, besides the first."""
_ROUNDING = 1e-12
"""Shares of the iteration time below this are rounding errors."""
Cell = TypeVar("Cell")


@dataclass(frozen=True, slots=True)
class ScenarioColumn:
    """A scenario of the page.

    Args:
        name: the name or path that the user wrote, with changes.
        result: the simulated iteration.
        sensitivity: iteration times with more of each resource, if they were computed.
    """

    name: str
    result: Result
    sensitivity: Sensitivity | None = None


def compare_page(scenarios: Sequence[ScenarioColumn], differences: Sequence[Difference]) -> Group:
    """Show the scenarios; `differences` are those of the others from the first, in order."""
    named = {_letter(number): one for number, one in enumerate(scenarios)}
    parts: list[RenderableType] = [properties((name, one.name) for name, one in named.items())]
    for columns in _groups(named):
        parts.append(_side_by_side(columns))
        fields = _changed_fields(columns)
        parts += [fields] if fields.row_count else []
    for letter, difference in zip([*named][1:], differences, strict=True):
        parts.append(Group(_causes(letter, difference), *_sentences(letter, difference)))
    parts += [_critical_paths(columns) for columns in _groups(named)]
    parts += [_resources(columns) for columns in _groups(named) if _sensitivities(columns)]
    remarks = notes(_remarks(named))
    return Group(*(item for part in parts for item in (part, "")), *remarks)


def _letter(number: int) -> str:
    """Return the letter of a scenario: A to Z, then A1 and so on."""
    return f"{ascii_uppercase[number % 26]}{number // 26 or ''}"


def _groups(named: dict[str, Cell]) -> Iterator[dict[str, Cell]]:
    """Split the scenarios into groups that fit a table; the first scenario is in each group."""
    (first, *others), step = named, _MOST_OTHERS
    for start in range(0, len(others) or 1, step):
        yield {name: named[name] for name in (first, *others[start : start + step])}


def _side_by_side(columns: dict[str, ScenarioColumn]) -> FittedTable:
    results = [one.result for one in columns.values()]
    rows = [
        ("iteration time", *(format_seconds(one.iteration_time_s) for one in results)),
        ("tokens per second", *(f"{one.tokens_per_s:,.0f}" for one in results)),
        ("MFU", *(f"{one.mfu:.1%}" for one in results)),
        ("peak memory", *(format_bytes(one.memory.fullest.peak_bytes) for one in results)),
        ("GPUs", *(f"{one.scenario.num_gpus:,}" for one in results)),
    ]
    return FittedTable(["", *_headings(columns)], rows, title="Side by side")


def _headings(columns: dict[str, ScenarioColumn], suffix: str = "") -> list[str]:
    return [f">{name}{suffix}" for name in columns]


def _changed_fields(columns: dict[str, ScenarioColumn]) -> Table:
    table = Table(title="Fields that differ", title_justify="left")
    for heading in ("field", *columns):
        table.add_column(heading, overflow="fold")
    for name, values in _fields([one.result for one in columns.values()]).items():
        table.add_row(name, *map(Text, values))
    return table


def _fields(results: Sequence[Result]) -> dict[str, list[str]]:
    """Return the values of each field in which any scenario differs from the first."""
    first, *others = results
    changed = [Difference(first, other).changed_fields for other in others]
    values_of_first = {name: both[0] for one in changed for name, both in one.items()}
    return {
        name: [_written(value), *(_written(one.get(name, (None, value))[1]) for one in changed)]
        for name, value in values_of_first.items()
    }


def _written(value: object) -> str:
    return "" if value is None else as_scalar(value)


def _causes(letter: str, difference: Difference) -> FittedTable:
    base_s, other_s = difference.base.breakdown_s, difference.other.breakdown_s
    total_s, other_total_s = difference.base.iteration_time_s, difference.other.iteration_time_s
    rows = [
        (
            CAUSE_LABELS[f"{name}_s"],
            _time(base_s[name], total_s),
            _time(other_s[name], other_total_s),
            *_change(cause_s, total_s),
        )
        for name, cause_s in difference.causes_s.items()
        if max(base_s[name] / total_s, other_s[name] / other_total_s) >= _ROUNDING
    ]
    times = format_seconds(total_s), format_seconds(other_total_s)
    return FittedTable(
        ("cause", ">A", f">{letter}", ">difference", ">of A"),
        rows,
        title=f"Why {letter} differs from A (mean over stages)",
        end=("iteration", *times, *_change(difference.difference_s, total_s)),
    )


def _time(seconds: float, total_s: float) -> str:
    """Format a part of the total; a rounding error is 0."""
    return format_seconds(seconds if seconds >= _ROUNDING * total_s else 0.0)


def _change(seconds: float, total_s: float) -> tuple[str, str]:
    """Format a change with its sign, and in percent of the total; nothing for rounding errors."""
    if abs(seconds) < _ROUNDING * total_s:
        return "", ""
    return ("+" if seconds > 0 else "") + format_seconds(seconds), f"{seconds / total_s:+.1%}"


def _sentences(letter: str, difference: Difference) -> list[str]:
    if not difference.changed_fields:
        return [f"{letter} and A are the same scenario."]
    sentences = [
        f"{letter} takes {difference.time} than A: {difference.causes} (percent of A's time)."
    ]
    if not difference.has_same_model:
        sentences.append(f"{letter} and A train different models.")
    if difference.tokens_ratio != 1:
        speed = difference.other.tokens_per_s / difference.base.tokens_per_s
        sentences.append(
            f"An iteration of {letter} has {four_digits(difference.tokens_ratio)} times the tokens "
            f"of A, and {four_digits(speed)} times the tokens per second."
        )
    return sentences


def _critical_paths(columns: dict[str, ScenarioColumn]) -> FittedTable:
    """Show the seconds that each kind of task takes on the critical path."""
    paths = [one.result.critical_path_s for one in columns.values()]
    kinds = dict.fromkeys(kind for path in paths for kind in path)
    rows = [
        (KIND_LABELS[kind], *(format_seconds(path[kind]) if kind in path else "" for path in paths))
        for kind in sorted(kinds, key=lambda kind: -max(path.get(kind, 0.0) for path in paths))
    ]
    totals = (format_seconds(one.result.iteration_time_s) for one in columns.values())
    headings = ["kind of task", *_headings(columns)]
    return FittedTable(headings, rows, title="Critical path", end=("iteration", *totals))


def _sensitivities(columns: dict[str, ScenarioColumn]) -> list[Sensitivity]:
    return [one.sensitivity for one in columns.values() if one.sensitivity]


def _resources(columns: dict[str, ScenarioColumn]) -> FittedTable:
    """Show the share of the iteration that better hardware saves, by resource."""
    sensitivities = _sensitivities(columns)
    largest = max(max(sensitivities[0].saved.values()), 1e-9)
    rows: list[Sequence[RenderableType]] = [
        (
            RESOURCES[name].label,
            *(f"{one.saved[name]:.2%}" for one in sensitivities),
            Bar(max(share, 0.0) / largest),
        )
        for name, share in sensitivities[0].saved.items()
    ]
    return FittedTable(
        [f"{FACTOR - 1:.0%} better", *_headings(columns, " shorter"), ""],
        rows,
        optional=("",),
        title="What to buy first, one resource at a time",
    )


def _remarks(named: dict[str, ScenarioColumn]) -> Iterable[str]:
    if any(one.sensitivity for one in named.values()):
        yield (
            f"{FACTOR - 1:.0%} better: bandwidths, rates and memory times {FACTOR}; latencies and "
            f"the host's time per kernel divided by {FACTOR}. Each iteration is simulated again."
        )
    yield from mfu_remarks(one.result.scenario for one in named.values())
    for name, one in named.items():
        if one.sensitivity:
            yield f"{name}: {one.sensitivity.memory_remark}"
    for name, one in named.items():
        if not one.result.memory.fits:
            yield f"{name} does not fit in memory."
    results = [one.result for one in named.values()]
    yield from sentences_of(evidence_of(one.profile, one.scenario.cluster) for one in results)
