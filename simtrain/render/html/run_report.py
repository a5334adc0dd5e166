"""Simulate scenarios and write the report on them: `simtrain report`, and the same from Python."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from simtrain.base.output_folder import as_path, check_writable
from simtrain.base.strict_yaml import as_scalar
from simtrain.errors import InputError, wrong_type
from simtrain.iteration.report.difference import compare
from simtrain.iteration.report.result import Result
from simtrain.render.html.document import HtmlDocument, check_html_file, write_document
from simtrain.render.html.report import ReportedRun, report_document
from simtrain.scenario import Scenario
from simtrain.studies.sensitivity import sensitivity as sensitivity_of
from simtrain.studies.simulation import result_of, scenario_of
from simtrain.studies.variation.run import draw_if_varied
from simtrain.studies.warnings import warnings_on
from simtrain.views.compare import ScenarioColumn, ScenarioComparison

ProgressCallback = Callable[[str], None]


class Subject(NamedTuple):
    """What a report is on.

    Args:
        name: its name in the report.
        scenario: a scenario, or its result.
        arguments: what follows `simtrain run` to simulate it again.
    """

    name: str
    scenario: Scenario | Result
    arguments: str


def report(
    scenarios: Scenario | Result | Iterable[Scenario | Result],
    out: str | Path,
    *,
    sensitivity: bool = True,
    on_progress: ProgressCallback = lambda description: None,
) -> Path:
    """Write a report: one HTML file that opens in a browser and needs no network.

    Args:
        scenarios: scenarios, or results of `simulate`; several are compared with the first.
        out: the file to write, such as "report.html"; an existing one is replaced.
        sensitivity: simulate each also with more of each resource of the cluster.
        on_progress: receives a description of the next simulation.

    Returns:
        The path of the file.

    Raises:
        InputError: a scenario is illegal, or the file cannot be written.
    """
    subjects = _subjects(scenarios)
    file = as_path(out)
    check_html_file(file)
    check_writable(file, "the report")
    compared = subjects[0].arguments if len(subjects) == 1 else ""
    write_document(subjects_document(subjects, compared, sensitivity, on_progress), file)
    return file


def subjects_document(
    subjects: Sequence[Subject],
    compared: str,
    with_sensitivity: bool,
    on_progress: ProgressCallback,
) -> HtmlDocument:
    """Simulate the subjects and build the report on them.

    Args:
        subjects: scenarios or results.
        compared: what follows `simtrain compare` to compare them; by default their names.
        with_sensitivity: as for `report`.
        on_progress: as for `report`.
    """
    columns, runs = [], []
    for subject in subjects:
        column, run = _simulated(subject, with_sensitivity, on_progress)
        columns.append(column)
        runs.append(run)
    on_progress("writing the report")
    # A single scenario without better hardware leaves nothing to compare.
    if not with_sensitivity and len(columns) == 1:
        return report_document(runs, None, compared)
    results = [column.result for column in columns]
    differences = compare(*results) if len(results) > 1 else ()
    return report_document(runs, ScenarioComparison(columns, differences), compared)


def _simulated(
    subject: Subject, with_sensitivity: bool, on_progress: ProgressCallback
) -> tuple[ScenarioColumn, ReportedRun]:
    """Simulate a subject, and also with more of each resource if wanted."""
    name, scenario, arguments = subject

    def report_on(clusters: str, resource: str) -> None:
        on_progress(f"simulating {name} on {clusters}, {resource}")

    on_progress(f"simulating {name}")
    result = result_of(scenario)
    better = None
    if with_sensitivity:
        better = sensitivity_of(scenario, on_progress=partial(report_on, "better hardware"))
    remarks = tuple(warnings_on(result))
    drawn = draw_if_varied(result)
    column = ScenarioColumn(name, result, better, drawn)
    return column, ReportedRun(name, result, arguments, remarks, drawn)


def _subjects(scenarios: Scenario | Result | Iterable[Scenario | Result]) -> list[Subject]:
    """Return the subjects of a report from Python; refuse other objects (E114)."""
    # A scenario is iterable, and so is a name.
    is_one = isinstance(scenarios, Scenario | Result | str) or not isinstance(scenarios, Iterable)
    listed: list[Any] = [scenarios] if is_one else [*scenarios]  # type: ignore[misc]
    subjects = []
    for each in listed:
        if not isinstance(each, Scenario | Result):
            fix = "write scenarios, as load_scenario returns, or results of simulate"
            raise wrong_type(each, "Scenario or Result", fix)
        scenario = scenario_of(each)
        name = scenario.name or "unnamed"
        words = [name]
        for field, value in scenario.changed_values.items():
            words += ["--set", f"{field}={as_scalar(value)}"]
        subjects.append(Subject(name, each, shlex.join(words)))
    if not subjects:
        fix = "write a list of scenarios or of results"
        raise InputError.of("E114", "there is nothing to report on", fix=fix)
    return subjects
