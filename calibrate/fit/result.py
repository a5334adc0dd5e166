"""The result of a fit: the data of a profile's file, the errors of its parts, and their page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from rich.console import Console

from calibrate.fit.entry import Data
from calibrate.tables import comparison_table
from simtrain.comparison import Comparison
from simtrain.hardware.profile import HardwareProfile
from simtrain.pages.tables import table_of
from simtrain.strict_yaml import Positions, validate

_SHOWN_ROWS = 20


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

    Args:
        data: the data of the profile's file.
        residuals: predictions compared with the measurements that the fit used.
        num_left_out: records that spread by more than their median, and were not used.
        checks: predictions compared with records that the fit did not use.
        unused: series of records that no number of the profile needs.
        notes: sections that the profile lacks, and why.
        warnings: parts that are far off.
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
