"""The result of a fit: the data of a profile's file and its text, the errors of its parts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from rich.console import Console
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from calibrate.fit.entry import Data
from calibrate.tables import comparison_table
from simtrain.comparison import Comparison
from simtrain.hardware.profile import HardwareProfile
from simtrain.pages.tables import table_of
from simtrain.strict_yaml import Positions, validate

_SHOWN_ROWS = 20
_HEADER = """\
# {description}
#
# Written by `python -m calibrate fit {source}`; do not edit: {instead}
"""
_FIGURES = """\
change the
# figures and fit again. Each entry has its value, its source, and what it was fitted on."""
_MEASURED = """\
measure
# again (`python -m calibrate measure`, a new folder) and fit that; a scenario changes an entry by
# `hardware`, which its report then says. Each entry has its value, its source, and what it was
# fitted on."""


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
    (`checks`). `num_left_out` records spread by more than their median and were not used, and no
    number of the profile needs the series `unused`. `notes` are of sections that the profile lacks,
    `warnings` of parts that are far off.
    """

    data: Data
    residuals: Sequence[Comparison]
    num_left_out: int = 0
    checks: Sequence[Comparison] = ()
    unused: Sequence[Unused] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def profile(self) -> HardwareProfile:
        """The validated profile."""
        return profile_of(self.data)

    def print(self, console: Console) -> None:
        """Print all that is known of the fit, without the profile; the worst of many pairs."""
        for comparison in (*self.residuals, *self.checks):
            rows = comparison.rows
            worst = sorted(rows, key=lambda row: -abs(row.error))[:_SHOWN_ROWS]
            shown = [row for row in rows if row in worst]
            more = f" (the worst {len(shown)} shown)" if len(shown) < len(rows) else ""
            title = f"{comparison.title}: {comparison.summary()}{more}"
            table = comparison_table(title, comparison, "figure", predicted="fitted", rows=shown)
            console.print(table)
        if self.unused:
            unused = [tuple(map(str, astuple(series))) for series in self.unused]
            headings = "series", ">records", "sizes", "highest rate", "why not used"
            title = "measured, not used by this profile"
            console.print(table_of(*headings, title=title, rows=unused))
        if self.num_left_out:
            console.print(f"left out: {self.num_left_out} that spread by more than their median")
        for note in self.notes:
            console.print(note, soft_wrap=True)


def profile_of(data: Data) -> HardwareProfile:
    """The profile of plain data.

    Raises:
        InputError: no profile can have these values.
    """
    return validate(HardwareProfile, data, Positions())


def profile_text(data: dict[str, Any], source: str, *, measured: bool = False) -> str:
    """The text of a profile's file, fitted to `source`: a folder if `measured`, or figures."""
    yaml = YAML()
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(_styled(data), stream)
    instead = _MEASURED if measured else _FIGURES
    header = _HEADER.format(description=data["description"], source=source, instead=instead)
    return header + stream.getvalue()


def _styled(value: Any) -> Any:
    """Style data: mappings as blocks, plain lists on one line, quotes around ambiguous text."""
    if isinstance(value, dict):
        styled = CommentedMap((key, _styled(item)) for key, item in value.items())
        if all(isinstance(item, int | float) for item in value.values()) and value:
            styled.fa.set_flow_style()
        return styled
    if isinstance(value, list | tuple):
        items = CommentedSeq(_styled(item) for item in value)
        if not any(isinstance(item, dict) for item in value):
            items.fa.set_flow_style()
        return items
    if isinstance(value, str) and (":" in value or "%" in value or "," in value):
        return DoubleQuotedScalarString(value)
    return value
