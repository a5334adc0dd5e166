"""`simtrain report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.shared import (
    SetOption,
    emit,
    shipped_scenarios,
    simulate_with_status,
    status,
)


def report(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO...",
            help="Scenario files, or names of scenarios that come with simtrain.",
            autocompletion=shipped_scenarios,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")],
    overrides: SetOption = None,
) -> None:
    """Write a report: one HTML file that opens in a browser, without a network.

    It shows how long the iteration takes, where the time goes, and whether it fits in memory.
    Every number on it is in the file in full precision, as --json of other commands prints it.
    A scenario that does not fit is reported too.

    Example: simtrain report table5_175b_full table5_175b_present --out report.html
    """
    from simtrain.html.document import check_html_file, write_document
    from simtrain.html.report import ReportedRun, report_document
    from simtrain.no_effect import settings_without_effect
    from simtrain.scenario import load_scenario

    check_html_file(out)
    loaded = [(name, load_scenario(name, overrides or ())) for name in scenarios]
    runs = [
        ReportedRun(name, simulate_with_status(one, allow_oom=True), settings_without_effect(one))
        for name, one in loaded
    ]
    with status(f"writing {out.name}"):
        write_document(report_document(runs), out)
    emit(f"{out}\n")
