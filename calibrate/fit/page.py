"""The page of a fit: its errors, the records that it does not use, and its notes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from calibrate.fit.result import Fit
from calibrate.fit.unused import Unused
from calibrate.tables import comparison_table
from simtrain.comparison import Comparison
from simtrain.pages.tables import table_of

_SHOWN_ROWS = 20


def print_fit(fit: Fit, console: Console) -> None:
    """Print all that is known of a fit, without the profile itself."""
    for comparison in (*fit.residuals, *fit.checks):
        console.print(_table(comparison))
    if fit.unused:
        console.print(_unused_table(fit.unused))
    if fit.num_left_out:
        console.print(f"left out: {fit.num_left_out} that spread by more than their median")
    for note in fit.notes:
        console.print(note, soft_wrap=True)


def _table(comparison: Comparison) -> Table:
    """The pairs of a comparison; the worst of many."""
    worst = sorted(comparison.rows, key=lambda row: -abs(row.error))[:_SHOWN_ROWS]
    shown = [row for row in comparison.rows if row in worst]
    title = f"{comparison.title}: {comparison.summary()}"
    if len(shown) < len(comparison.rows):
        title += f" (the worst {len(shown)} shown)"
    return comparison_table(title, comparison, "figure", predicted="fitted", rows=shown)


def _unused_table(unused: Sequence[Unused]) -> Table:
    rows = [(one.what, str(one.num_records), one.sizes, one.reached, one.why) for one in unused]
    headings = "series", ">records", "sizes", "highest rate", "why not used"
    return table_of(*headings, title="measured, not used by this profile", rows=rows)
