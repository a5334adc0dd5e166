"""The result of a fit: the data of a profile's file and its text, the errors of its parts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from calibrate.fit.base import Data
from calibrate.fit.doubts import Doubt
from calibrate.tables import comparison_table
from simtrain.base.accuracy import ErrorTable
from simtrain.base.strict_yaml import Positions, validate, yaml_text
from simtrain.hardware.profile import HardwareProfile
from simtrain.units import counted
from simtrain.views.kinds import TEXT
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
# again (`simtrain calibrate measure`, a new folder) and fit that; a scenario changes an entry by
# `hardware`, which its report then says. Each entry has its value, its source, and what it was
# fitted on."""

SOURCES = """\
change the
# sources or the base and fit again. Each entry has its value, its source, and what it was fitted
# on."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted profile as plain data, and its errors.

    Predictions are compared with the measurements that the fit used (`residuals`). The fit left out
    the records of `doubts`. `notes` are of sections that the profile lacks, `warnings` of parts
    that are far off.
    """

    data: Data
    residuals: Sequence[ErrorTable]
    doubts: Sequence[Doubt] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def profile(self) -> HardwareProfile:
        return profile_of(self.data)

    def view(self, next_step: str, details: bool) -> View:
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
        if self.doubts:
            yield "left out", counted(len(self.doubts), "doubtful record")

    def _tables(self) -> Iterator[Table]:
        for comparison in self.residuals:
            rows = comparison.rows
            worst = sorted(rows, key=lambda row: -abs(row.error))[:_SHOWN_ROWS]
            shown = [row for row in rows if row in worst]
            more = f" (the worst {len(shown)} shown)" if len(shown) < len(rows) else ""
            title = f"{comparison.title}: {comparison.summary()}{more}"
            yield comparison_table(
                comparison.title, title, comparison, "figure", predicted="fitted", rows=shown
            )
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
