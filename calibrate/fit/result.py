"""The result of a fit: the data of a profile's file and its text, the errors of its parts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from calibrate.fit.base import Data
from calibrate.fit.doubts import Doubt
from calibrate.fit.links import fits_inside
from calibrate.fit.network import load_of
from calibrate.records.nccl_tests import bus_factor
from calibrate.records.schema import CollectiveRecord, GemmRecord, Measurement, group_of, rate_of
from calibrate.tables import comparison_table
from simtrain.base.accuracy import Comparison
from simtrain.base.strict_yaml import Positions, validate, yaml_text
from simtrain.hardware.profile import HardwareProfile
from simtrain.units import counted
from simtrain.views.kinds import NUMBER, TEXT
from simtrain.views.view import Column, Facts, Paragraphs, Row, Table, View

_AMBIGUOUS = {*":%,"}
"""Text with one of these characters is in quotes."""
_SHOWN_ROWS = 20
_NAMED = 3
"""Parts that are named without details."""
_HEADER = """\
# {description}
#
# Written by `python -m calibrate fit {source}`; do not edit: {instead}
"""
FIGURES = """\
change the
# figures and fit again. Each entry has its value, its source, and what it was fitted on."""
MEASURED = """\
measure
# again (`python -m calibrate measure`, a new folder) and fit that; a scenario changes an entry by
# `hardware`, which its report then says. Each entry has its value, its source, and what it was
# fitted on."""

SOURCES = """\
change the
# sources or the base and fit again. Each entry has its value, its source, and what it was fitted
# on."""


@dataclass(frozen=True, slots=True)
class Unused:
    """Records of one series: their sizes, their highest rate, and why no fit uses them."""

    what: str
    num_records: int
    sizes: str
    reached: str
    why: str


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted profile as plain data, and its errors.

    Predictions are compared with the measurements that the fit used (`residuals`) and with others
    (`checks`). The fit left out the records of `doubts`, and no number of
    the profile needs the series `unused`. `notes` are of sections that the profile lacks,
    `warnings` of parts that are far off.
    """

    data: Data
    residuals: Sequence[Comparison]
    doubts: Sequence[Doubt] = ()
    checks: Sequence[Comparison] = ()
    unused: Sequence[Unused] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def profile(self) -> HardwareProfile:
        return profile_of(self.data)

    def view(self, next_step: str, details: bool = False) -> View:
        """Warn, and say what was fitted, how well, and what to do next.

        Args:
            next_step: what to do with the profile.
            details: also show the figures of each part, the worst of many, and what was left out.
        """
        warnings = Paragraphs([f"Warning: {text}" for text in self.warnings], style="bad")
        summary = Facts([*self._summary(), ("next", next_step)])
        more = [] if details else ["All figures: --details."]
        notes = Paragraphs([*self.notes, *more], style=None)
        return View([warnings, summary, notes, *(self._tables() if details else ())])

    def _summary(self) -> Iterator[tuple[str, str]]:
        errors = sorted(abs(row.error) for part in self.residuals for row in part.rows)
        if errors:
            titles = [part.title for part in self.residuals]
            more = f" and {len(titles) - _NAMED} more" if titles[_NAMED:] else ""
            named = ", ".join(titles[:_NAMED])
            yield "fitted", f"{counted(len(errors), 'figure')} of {named}{more}"
            nine_of_ten = errors[math.ceil(0.9 * len(errors)) - 1]
            worst = max(self.residuals, key=lambda part: part.mean_abs_error)
            yield (
                "how well",
                f"mean |error| {math.fsum(errors) / len(errors):.1%}, nine of ten within "
                f"{nine_of_ten:.1%}; worst part: {worst.title}, {worst.mean_abs_error:.1%}",
            )
        left_out = [
            *([counted(len(self.doubts), "doubtful record")] if self.doubts else []),
            *([f"{counted(len(self.unused), 'kind')} of records"] if self.unused else []),
        ]
        if left_out:
            yield "left out", ", ".join(left_out)

    def _tables(self) -> Iterator[Table]:
        for comparison in (*self.residuals, *self.checks):
            rows = comparison.rows
            worst = sorted(rows, key=lambda row: -abs(row.error))[:_SHOWN_ROWS]
            shown = [row for row in rows if row in worst]
            more = f" (the worst {len(shown)} shown)" if len(shown) < len(rows) else ""
            title = f"{comparison.title}: {comparison.summary()}{more}"
            yield comparison_table(
                comparison.title, title, comparison, "figure", predicted="fitted", rows=shown
            )
        if self.unused:
            names = ("series", "records", "sizes", "highest rate", "why not used")
            columns = [Column(name, name, NUMBER if name == "records" else TEXT) for name in names]
            unused = [Row([*map(str, astuple(series))]) for series in self.unused]
            yield Table("unused", "measured, not used by this profile", columns, unused)
        if self.doubts:
            columns = [Column(name, name, TEXT) for name in ("record", "reason")]
            doubts = [Row((doubt.name, doubt.reason)) for doubt in self.doubts]
            yield Table("doubts", "set aside", columns, doubts)


def profile_of(data: Data) -> HardwareProfile:
    """The profile of plain data.

    Raises:
        InputError: no profile can have these values.
    """
    return validate(HardwareProfile, data, Positions())


def profile_text(data: Data, sources: str, instead: str = FIGURES) -> str:
    """The text of a profile's file.

    Args:
        data: the profile.
        sources: the words after `fit` that it was fitted with.
        instead: what to change instead of the file; by default the figures.
    """
    header = _HEADER.format(description=data["description"], source=sources, instead=instead)
    return header + yaml_text(data, _in_a_line, lambda text: bool(_AMBIGUOUS & {*text}))


def _in_a_line(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(isinstance(item, int | float) for item in value.values())
    return not any(isinstance(item, dict) for item in value)


def unused_series(
    records: Sequence[Measurement], dtype: str, per_node: int, missing_for_network: Sequence[str]
) -> Iterator[Unused]:
    """The series of products and collectives that no fit used: no measurement vanishes unseen.

    Products of `dtype` and of fp8 are fitted, and collectives of nodes of `per_node` ranks if
    `missing_for_network` is empty.
    """
    products: dict[str, list[GemmRecord]] = {}
    collectives: dict[tuple[str, str], list[CollectiveRecord]] = {}
    for record in records:
        if isinstance(record, GemmRecord) and record.dtype not in (dtype, "fp8"):
            products.setdefault(record.dtype, []).append(record)
        elif isinstance(record, CollectiveRecord):
            why = _reason(record, per_node, missing_for_network)
            if why:
                collectives.setdefault((group_of(record), why), []).append(record)
    for other, gemms in products.items():
        sides = [side for r in gemms for side in (r.m, r.n, r.k)]
        reached = f"{max(map(rate_of, gemms)) / 1e12:.4g} TFLOP/s"
        why = f"a profile has measured products in fp8 and one other data type, here {dtype}"
        sizes = f"sides {min(sides)} to {max(sides)}"
        yield Unused(f"{other} products", len(gemms), sizes, reached, why)
    for (what, why), series in collectives.items():
        num_bytes = [record.array_bytes for record in series]
        algbw = max(map(rate_of, series)) / 1e9
        busbw = algbw * bus_factor(series[0].op, series[0].num_ranks)
        reached = f"algbw {algbw:.4g}, busbw {busbw:.4g} GB/s"
        sizes = f"{min(num_bytes)} to {max(num_bytes)} bytes"
        yield Unused(what, len(series), sizes, reached, why)


def _reason(
    record: CollectiveRecord, per_node: int, missing_for_network: Sequence[str]
) -> str | None:
    """Why no fit uses the record; None if one does."""
    if record.num_nodes == 1:
        return None if fits_inside(record) else "a transfer of a profile is between two ranks"
    if record.op == "all_to_all":
        return "across nodes an all-to-all follows from the adapters' rates and intra_node"
    if load_of(record, per_node) is None:
        return "simtrain has no model of such a group"
    if missing_for_network:
        return f"inter_node needs also {', '.join(missing_for_network)}"
    return None
