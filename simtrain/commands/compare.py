"""`simtrain compare`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simtrain.commands.compare_schedules import compare_schedules
from simtrain.commands.declare import options_first
from simtrain.commands.options import AllowOomOption, OutOption, refuse
from simtrain.commands.output import Output, show
from simtrain.commands.printing import emit, status
from simtrain.commands.question import Questions, as_words, simulate_with_status
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.iteration.report.difference import Difference
    from simtrain.scenario import Scenario
    from simtrain.views.compare import ScenarioColumn


@options_first("scenarios changes schedules top out overrides scale")
def compare(
    questions: Questions,
    *,
    changes: Annotated[list[str] | None, typer.Option("--change")] = None,
    schedules: bool = False,
    top: Annotated[int, typer.Option(min=1)] = 5,
    out: OutOption = None,
    output: Output,
    allow_oom: AllowOomOption = False,
    sensitivity: bool = True,
) -> None:
    """Compare scenarios: why one is slower; for one alone, which single changes save most.

    Args:
        changes: add one copy of the first scenario with this field changed: recompute=full. If
            repeated, the one copy has all changes: some need each other.
        sensitivity: simulate each scenario again with more of each resource of the cluster.
        schedules: compare all schedules that the pipeline of one scenario allows: time, bubble,
            peak memory and order.
        top: the most changes of one scenario to print.
        out: page (.html) on all scenarios. With --schedules, page with all timelines.

    Each scenario is compared with the first one, and the difference is split into causes that add
    up to it. --set applies to all scenarios. Scenarios that set a field of variation are drawn 100
    times, for the mean and a percentile.

    For one scenario, single changes on the same GPUs with the same global batch are simulated, and
    the effect of better hardware. Several changes together: simtrain search.

    Traces of PyTorch's profiler beside one scenario (files .json or .json.gz, or a folder, one rank
    each) show where the real iteration loses time against the simulated one: by kind of kernels,
    exposed communication, host gaps and bubble.

    Example: simtrain compare table5_175b_full table5_175b_present

    Example: simtrain compare llama3_70b --top 3 --no-sensitivity

    Example: simtrain compare llama3_70b --schedules --set batch.global=16

    Example: simtrain compare table5_175b_present trace.json.gz
    """
    from simtrain.commands.comparer import COMPARERS, ComparisonRequest

    scenarios, settings = questions.scenarios, questions.settings
    others = {"--change": changes, "--no-sensitivity": not sensitivity, "--schedules": schedules}
    for comparer in COMPARERS.values():
        if files := [name for name in scenarios if comparer.takes(Path(name))]:
            refuse(others | {"-o": out}, f"has no effect beside {comparer.name}")
            names = [name for name in scenarios if name not in files]
            request = ComparisonRequest(names, files, settings, output, allow_oom)
            return comparer.compare(request)
    if schedules:
        others.pop("--schedules")
        refuse(others | {"SCENARIO": len(scenarios) > 1}, "has no effect with --schedules")
        compare_schedules(questions.each()[0], out, output)
        return
    if out:
        _check_page(out)
    loaded = load_compared(questions, changes or [])
    if len(loaded) > 1:
        columns = [
            scenario_column(name, scenario, allow_oom, sensitivity) for name, scenario in loaded
        ]
        _show_several(columns, output)
        if out:
            _write_page(out, questions, changes or [], columns, sensitivity)
        return
    refuse({"-o": out}, "needs two scenarios", f"simtrain run {scenarios[0]} -o {out}")
    _advise(*loaded[0], top, output, sensitivity)
    if questions.overrides:
        words = [scenarios[0], *as_words("--change", questions.overrides)]
        line = shlex.join(["simtrain", "compare", *words])
        note = "--set applies to every scenario. Compare with the unchanged one"
        emit(f"{note}: {line}\n", sys.stderr)


def _show_several(columns: Sequence[ScenarioColumn], output: Output) -> None:
    from simtrain.views.compare import ScenarioComparison, compare_view

    comparison = ScenarioComparison(columns, differences_between(columns))
    clusters = [column.result.scenario.cluster for column in columns]
    show(output, comparison, lambda: compare_view(comparison), clusters)


def _advise(
    name: str, scenario: Scenario, top: int, output: Output, with_sensitivity: bool
) -> None:
    """Print the single changes that save the most time, and what better hardware saves."""
    from simtrain.studies.advice import advise
    from simtrain.views.compare import ScenarioComparison, advice_view, compare_view
    from simtrain.views.view import View

    column = scenario_column(name, scenario, True, with_sensitivity)
    with status(f"simulating changes of {name}") as show_status:
        advice = advise(scenario, top, on_progress=show_status)
    comparison = ScenarioComparison([column], ())

    def view() -> View:
        parts = compare_view(comparison).parts if with_sensitivity else ()
        return View([*advice_view(advice).parts, *parts])

    show(output, advice.to_dict() | comparison.to_dict(), view, scenario.cluster)


def _check_page(out: Path) -> None:
    from simtrain.base.output_folder import check_writable
    from simtrain.render.html.document import check_html_file

    check_html_file(out)
    check_writable(out, "the page")


def _write_page(
    out: Path,
    questions: Questions,
    changes: list[str],
    columns: Sequence[ScenarioColumn],
    sensitivity: bool,
) -> None:
    """Write the page on all scenarios; it names the commands that print its tables."""
    from simtrain.render.html.document import write_document
    from simtrain.render.html.report import ReportedRun, report_document
    from simtrain.studies.warnings import warnings_on
    from simtrain.views.compare import ScenarioComparison

    words = [question.words for question in questions.each()]
    words += [[*words[0], *as_words("--set", changes)]] if changes else []
    runs = [
        ReportedRun(each.name, each.result, shlex.join(run), warnings_on(each.result), each.drawn)
        for each, run in zip(columns, words, strict=True)
    ]
    settings = as_words("--set", questions.settings)
    compared = [*questions.scenarios, *settings, *as_words("--change", changes)]
    compared += [] if sensitivity else ["--no-sensitivity"]
    comparison = ScenarioComparison(columns, differences_between(columns))
    write_document(report_document(runs, comparison, shlex.join(compared)), out)


def load_compared(questions: Questions, changes: list[str]) -> list[tuple[str, Scenario]]:
    """Load the scenarios, and the changed copy of the first one; return them with their names."""
    loaded = [(each.scenario, each.load()) for each in questions.each()]
    if not changes:
        return loaded
    first, *_ = questions.each()
    try:
        copy = first.changed(changes).load()
    except InputError as error:
        # Changes are applied like --set, but were written after --change.
        places = {Location(f"--set {change}"): Location(f"--change {change}") for change in changes}
        raise InputError(
            replace(problem, location=places.get(problem.location, problem.location))
            if problem.location
            else problem
            for problem in error.problems
        ) from None
    return [*loaded, (" ".join([first.scenario, *changes]), copy)]


def scenario_column(
    name: str, scenario: Scenario, allow_oom: bool, with_sensitivity: bool
) -> ScenarioColumn:
    """Simulate a scenario, and also with better hardware if wanted."""
    from simtrain.studies.sensitivity import sensitivity
    from simtrain.studies.variation import draw_if_varied
    from simtrain.views.compare import ScenarioColumn

    result = simulate_with_status(scenario, allow_oom)
    with status(f"drawing {name}"):
        drawn = draw_if_varied(result)
    if not with_sensitivity:
        return ScenarioColumn(name, result, drawn=drawn)
    with status(f"simulating {name} on better hardware") as show_status:
        return ScenarioColumn(
            name,
            result,
            sensitivity(
                scenario, on_progress=lambda description: show_status(f"{name}, {description}")
            ),
            drawn,
        )


def differences_between(columns: Sequence[ScenarioColumn]) -> tuple[Difference, ...]:
    """Compare the other scenarios with the first; a single one has no differences."""
    from simtrain.iteration.report.difference import compare as compare_with_first

    return compare_with_first(*(column.result for column in columns)) if len(columns) > 1 else ()
