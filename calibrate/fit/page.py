"""How a fit is shown: its residuals, what it could not use, and what it warns of."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from calibrate.fit.from_figures import Fit
from calibrate.fit.residuals import Residuals
from calibrate.fit.unused import Unused
from simtrain.pages.tables import table_of

_SHOWN_ROWS = 20


def print_fit(fit: Fit, console: Console) -> None:
    """Everything that is to be known of a fit but the profile itself."""
    for residuals in (*fit.residuals, *fit.checks):
        console.print(_table(residuals))
    if fit.unused:
        console.print(_unused_table(fit.unused))
    if fit.num_left_out:
        console.print(f"left out: {fit.num_left_out} that spread by more than their median")
    for note in fit.notes:
        console.print(note, soft_wrap=True)


def _table(residuals: Residuals) -> Table:
    """A part of the fit; of many points the worst are shown."""
    worst = sorted(residuals.rows, key=lambda row: -abs(row.error))[:_SHOWN_ROWS]
    shown = [row for row in residuals.rows if row in worst]
    title = f"{residuals.title}: {residuals.summary()}"
    if len(shown) < len(residuals.rows):
        title += f" (the worst {len(shown)} shown)"
    headings = "figure", f">measured\n{residuals.unit}", f">fitted\n{residuals.unit}", ">error\n%"
    rows = [
        (row.name, f"{row.measured:.4g}", f"{row.fitted:.4g}", f"{100 * row.error:+.1f}")
        for row in shown
    ]
    return table_of(*headings, title=title, rows=rows)


def _unused_table(unused: Sequence[Unused]) -> Table:
    rows = [(one.what, str(one.num_records), one.sizes, one.reached, one.why) for one in unused]
    headings = "what", ">records", "sizes", "reached at most", "why not used"
    return table_of(*headings, title="measured, not used by this profile", rows=rows)
