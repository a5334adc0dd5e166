"""`simtrain report`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simtrain.commands.compare import (
    ChangeOption,
    SensitivityOption,
    differences_between,
    load_compared,
    scenario_column,
)
from simtrain.commands.import_options import reads_other_tools
from simtrain.commands.shared import (
    HtmlFileOption,
    SetOption,
    SeveralScenarios,
    emit,
    refuse,
    status,
)

if TYPE_CHECKING:
    from simtrain.render.html.document import Document
    from simtrain.studies.sensitivity import ResourceCurve
    from simtrain.views.compare import ScenarioColumn

SweepFolderOption = Annotated[
    Path | None, typer.Option("--sweep", help="Report on the results folder of a sweep instead.")
]


@reads_other_tools
def report(
    out: HtmlFileOption,
    scenarios: Annotated[list[str] | None, SeveralScenarios] = None,
    overrides: SetOption = None,
    changes: ChangeOption = None,
    sensitivity: SensitivityOption = True,
    sweep: SweepFolderOption = None,
) -> None:
    """Write a report: one HTML file that opens in a browser and needs no network.

    It shows how long the iteration takes, where the time goes, what to buy first, sliders for less
    and more of each resource, the timeline, memory, operators, a roofline, and the sources of all
    numbers. Several scenarios are compared as by simtrain compare. The file contains every number
    in full precision, like --json of other commands. Scenarios that do not fit in memory are
    reported too.

    With --sweep, it shows the best points, heat map, Pareto front and scaling of a sweep.

    Example: simtrain report table5_175b_full table5_175b_present --out report.html
    """
    from simtrain.base.output_folder import check_writable
    from simtrain.render.html.document import check_html_file, write_document

    if sweep:
        of_iterations = {
            "SCENARIO": scenarios,
            "--set": overrides,
            "--change": changes,
            "--no-sensitivity": not sensitivity,
        }
        refuse(of_iterations, "has no effect with --sweep")
    else:
        refuse({"SCENARIO": not scenarios}, "is missing", "name a scenario, or add --sweep FOLDER")
    check_html_file(out)
    check_writable(out, "the report")
    if sweep:
        with status(f"drawing {sweep}"):
            document = _of_sweep(sweep)
    else:
        document = _of_iterations(scenarios or [], overrides, changes, sensitivity)
    write_document(document, out)
    emit(f"{out}\n")


def _of_sweep(folder: Path) -> Document:
    from simtrain.base.extras import require
    from simtrain.render.figures.sweep import load_results
    from simtrain.render.html.sweep_report import sweep_document
    from simtrain.studies.sweep.recorded import RecordedSweep

    require("simtrain report --sweep", "pyarrow", "matplotlib")
    results, recorded = load_results(folder), RecordedSweep.of(folder)
    return (
        sweep_document(results, recorded.extrapolated_compute)
        if recorded
        else (sweep_document(results))
    )


def _of_iterations(
    scenarios: list[str],
    overrides: list[str] | None,
    changes: list[str] | None,
    sensitivity: bool,
) -> Document:
    from simtrain.render.html.report import ReportedRun, report_document
    from simtrain.studies.unused_settings import settings_without_effect
    from simtrain.studies.warnings import warnings_on
    from simtrain.views.compare import Comparison

    loaded = load_compared(scenarios, overrides or [], changes or [])
    columns = [scenario_column(name, scenario, True, sensitivity) for name, scenario in loaded]
    curves = [_curves_of(column) if sensitivity else () for column in columns]
    with status("writing the report"):
        runs = [
            ReportedRun(
                column.name,
                column.result,
                arguments,
                points,
                (
                    *warnings_on(column.result),
                    *settings_without_effect(scenario).values(),
                ),
            )
            for column, (_, scenario), points, arguments in zip(
                columns, loaded, curves, _arguments(scenarios, overrides, changes), strict=True
            )
        ]
        # A single scenario without better hardware leaves nothing to compare.
        is_compared = sensitivity or len(columns) > 1
        comparison = Comparison(columns, differences_between(columns)) if is_compared else None
        compared = shlex.join(
            [
                *scenarios,
                *_options("--set", overrides),
                *_options("--change", changes),
                *([] if sensitivity else ["--no-sensitivity"]),
            ]
        )
        return report_document(runs, comparison, compared)


def _arguments(
    scenarios: list[str], overrides: list[str] | None, changes: list[str] | None
) -> list[str]:
    """Return the arguments of `simtrain run` for each loaded scenario, in order."""
    same = _options("--set", overrides)
    copies = [[scenarios[0], *same, *_options("--set", changes)]] if changes else []
    return [shlex.join(words) for words in ([[name, *same] for name in scenarios] + copies)]


def _options(option: str, values: list[str] | None) -> list[str]:
    return [word for value in values or () for word in (option, value)]


def _curves_of(column: ScenarioColumn) -> tuple[ResourceCurve, ...]:
    """Simulate a scenario with less and more of each resource."""
    from simtrain.studies.sensitivity import resource_curves

    name = column.name
    with status(f"simulating {name} on other clusters") as show_status:
        return resource_curves(
            column.result, on_progress=lambda description: show_status(f"{name}, {description}")
        )
