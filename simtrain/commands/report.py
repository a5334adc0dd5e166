"""`simtrain report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.compare import (
    ChangeOption,
    ScenariosArgument,
    SensitivityOption,
    comparison_json,
    load_compared,
    scenario_column,
)
from simtrain.commands.shared import SetOption, emit, status


def report(
    scenarios: ScenariosArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")],
    overrides: SetOption = None,
    changes: ChangeOption = None,
    sensitivity: SensitivityOption = True,
) -> None:
    """Write a report: one HTML file that opens in a browser, without a network.

    It shows how long the iteration takes, where the time goes, the timeline, memory, operators, a
    roofline, and the sources of all numbers. Several scenarios are also compared, as by simtrain
    compare. Every number is in the file in full precision, as --json of other commands prints it.
    A scenario that does not fit is reported too.

    Example: simtrain report table5_175b_full table5_175b_present --out report.html
    """
    from simtrain.html.document import check_html_file, write_document
    from simtrain.html.report import report_document
    from simtrain.html.run_data import ReportedRun
    from simtrain.no_effect import settings_without_effect
    from simtrain.report.difference import compare as compare_with_first

    check_html_file(out)
    loaded = load_compared(scenarios, overrides or [], changes or [])
    is_comparison = len(loaded) > 1
    columns = [
        scenario_column(name, one, True, sensitivity and is_comparison) for name, one in loaded
    ]
    with status(f"writing {out}"):
        runs = [
            ReportedRun(column.name, column.result, settings_without_effect(scenario))
            for column, (_, scenario) in zip(columns, loaded, strict=True)
        ]
        comparison = None
        if is_comparison:
            differences = compare_with_first([column.result for column in columns])
            comparison = comparison_json(columns, differences)
        write_document(report_document(runs, comparison), out)
    emit(f"{out}\n")
