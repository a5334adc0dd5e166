"""Which worker, stage or sequence a step waits for: `simtrain straggler`."""

from __future__ import annotations

from simtrain.traces.stragglers.what_if import StragglerReport
from simtrain.units import format_seconds
from simtrain.views.kinds import FOUR_DIGITS, SECONDS, SHARE, TEXT
from simtrain.views.view import Column, Facts, Row, Table, Verdict, View, remarks


def straggler_view(report: StragglerReport) -> View:
    """Show the step, the suspects, and the one that costs most."""
    facts = Facts(
        [
            ("step", f"{format_seconds(report.measured_s)}, {report.num_workers} workers"),
            ("replayed", _replayed(report)),
            ("slowdown by stragglers", f"{report.slowdown:.3f}"),
            ("slowdown by gaps", f"{report.launch_delays:.3f}"),
        ]
    )
    columns = [
        Column("kind", "suspect", TEXT),
        Column("name", "which", TEXT),
        Column("passes", "passes\nx typical", FOUR_DIGITS),
        Column("without_s", "step\nwithout it", SECONDS),
        Column("saving", "saves", SHARE),
        Column("alone", "slowdown\nif alone", FOUR_DIGITS),
    ]
    rows = [
        Row((each.kind, each.name, each.passes, each.without_s, each.saving, each.alone))
        for each in report.suspects
    ]
    notes = remarks(
        [
            "Typical is the mean of all passes of a kind. Without a suspect its passes are "
            "typical; for the slowdown if alone, all other ops are."
        ]
    )
    table = Table("suspects", "The worst of each kind", columns, rows)
    return View([facts, table, notes, _verdict(report)])


def _replayed(report: StragglerReport) -> str:
    error = f"passes start and end within {report.largest_pass_error:.1%} of the step"
    return f"{format_seconds(report.replayed_s)}, {error}"


def _verdict(report: StragglerReport) -> Verdict:
    culprit = report.culprit
    if culprit is None:
        return Verdict(True, "no worker, stage or sequence costs half a percent of the step")
    words = f"{culprit.name}: without it the step takes {format_seconds(culprit.without_s)}"
    if culprit.kind == "uneven sequences":
        words = (
            f"uneven sequences: with equal ones the step takes {format_seconds(culprit.without_s)}"
        )
    return Verdict(True, f"{words}, {culprit.saving:.1%} less", doubt="STRAGGLER")
