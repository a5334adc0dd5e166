"""`simtrain compare`."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from simtrain.base.plug_ins import Parts
from simtrain.base.values import replace
from simtrain.commands.declare import Fields, Option, options_first
from simtrain.commands.options import AllowOomOption, OutOption, refuse
from simtrain.commands.output import Output, check_file, show_answer
from simtrain.commands.printing import status
from simtrain.commands.question import Question, Questions, read_measured
from simtrain.errors import InputError, Location
from simtrain.studies.requests import ComparisonRequest

if TYPE_CHECKING:
    from simtrain.render.html.document import HtmlDocument
    from simtrain.scenario import Scenario
    from simtrain.studies.comparison import Comparison, ScenarioColumn


class Comparer(ABC):
    """Compares a simulated scenario with files of a kind, which stand beside it: a plug-in."""

    name: ClassVar[str]

    @abstractmethod
    def takes(self, file: Path) -> bool:
        """Return whether it reads this file."""

    @abstractmethod
    def compare(
        self, questions: Sequence[Question], files: Sequence[Path], output: Output, allow_oom: bool
    ) -> None:
        """Print the comparison of scenarios, which no comparer takes, with files that it takes."""


COMPARERS = Parts[Comparer]("comparers", Comparer, ())
ComparisonFields = Annotated[
    dict[str, Any],
    Fields(ComparisonRequest, "schedules top", {"top": Option(min=1)}),
]


@options_first("scenarios changes schedules top out overrides gpus")
def compare(
    questions: Questions,
    *,
    changes: Annotated[list[str] | None, Option("--change")] = None,
    asked: ComparisonFields,
    out: OutOption = None,
    measured: list[str] | None = None,
    output: Output,
    allow_oom: AllowOomOption = False,
) -> None:
    """Compare scenarios: why one is slower; for one alone, which single changes save most.

    Args:
        changes: add one copy of the first scenario with this field changed: recompute=full. If
            repeated, the one copy has all changes: some need each other.
        out: page (.html) on all scenarios; with --schedules, with all timelines.
        measured: runs of yours, which anchor the intervals, as simtrain run takes them.

    Each scenario is compared with the first one: causes add up to the difference. --set applies to
    all. Those that set a field of variation are drawn 100 times, for the mean and a percentile.

    For one scenario, single changes on the same GPUs with the same global batch are simulated.
    Several changes together: simtrain search. Each is also simulated with more of each resource.

    Traces of PyTorch's profiler beside one scenario (files .json or .json.gz, or a folder, one rank
    each) show where the real iteration loses time against the simulated one: by kind of kernels,
    exposed communication, host gaps and bubble.

    Example: simtrain compare table5_175b_full table5_175b_present

    Example: simtrain compare llama3_70b --schedules --set batch.global=16

    Example: simtrain compare table5_175b_present trace.json.gz
    """
    of_scenarios: dict[str, object] = {"--change": changes, "--measured": measured}
    for comparer in COMPARERS.values():
        if files := [name for name in questions.scenarios if comparer.takes(Path(name))]:
            others = of_scenarios | {"--schedules": asked["schedules"], "-o": out}
            refuse(others, f"has no effect beside {comparer.name}")
            simulated = [each for each in questions.each() if each.scenario not in files]
            return comparer.compare(simulated, [*map(Path, files)], output, allow_oom)
    if out:
        check_file(out)
    if asked["schedules"]:
        others = of_scenarios | {"SCENARIO": len(questions.scenarios) > 1}
        refuse(others, "has no effect with --schedules")
        _compare_schedules(questions.each()[0], out, output)
        return
    named = _load(questions, changes or [])
    is_alone = len(named) == 1
    anchors = read_measured(measured, named[0][1], questions.changes.overrides)
    columns = [_column(*each, allow_oom or is_alone) for each in named]
    columns = [replace(each, result=replace(each.result, anchors=anchors)) for each in columns]
    if is_alone:
        _advise(columns[0], asked["top"], out, output)
    else:
        _show_several(questions, changes or [], columns, out, output)


def _load(questions: Questions, changes: list[str]) -> list[tuple[str, Scenario]]:
    """Load the scenarios, and the changed copy of the first one; return them with their names."""
    loaded = [(each.scenario, each.load()) for each in questions.each()]
    if not changes:
        return loaded
    first, *_ = questions.each()
    try:
        copy = first.changed(changes).load()
    except InputError as error:
        # Changes are applied like --set, but were written after --change.
        places: dict[Location | None, Location] = {
            Location(f"--set {change}"): Location(f"--change {change}") for change in changes
        }
        raise InputError(
            replace(problem, location=places.get(problem.location, problem.location))
            for problem in error.problems
        ) from None
    return [*loaded, (" ".join([first.scenario, *changes]), copy)]


def _column(name: str, scenario: Scenario, allow_oom: bool) -> ScenarioColumn:
    """Simulate a scenario, and also with better hardware."""
    from simtrain.studies.advice import simulate_fitting
    from simtrain.studies.comparison import column_of
    from simtrain.studies.simulation import result_of

    with status(f"simulating {name}") as show_status:
        simulate = result_of if allow_oom else partial(simulate_fitting, on_progress=show_status)
        return column_of(name, scenario, show_status, simulate)


def _show_several(
    questions: Questions,
    changes: list[str],
    columns: Sequence[ScenarioColumn],
    out: Path | None,
    output: Output,
) -> None:
    from simtrain.studies.comparison import Comparison

    comparison = Comparison.of(columns)
    show_answer(output, comparison)
    _write_page(out, lambda: _document(questions, changes, comparison))


def _document(questions: Questions, changes: list[str], comparison: Comparison) -> HtmlDocument:
    """Return the page on all scenarios; it names the commands that print its tables."""
    from simtrain.render.html.report import ReportedRun, report_document

    words = [question.words for question in questions.each()]
    words += [questions.each()[0].changed(changes).words] if changes else []
    runs = [
        ReportedRun(each.name, each.result, shlex.join(run), each.drawn)
        for each, run in zip(comparison.scenarios, words, strict=True)
    ]
    compared = [
        *questions.scenarios,
        *questions.changes.words,
        *(f"--change={change}" for change in changes),
    ]
    return report_document(runs, comparison, shlex.join(compared))


def _advise(column: ScenarioColumn, top: int, out: Path | None, output: Output) -> None:
    """Print the single changes that save the most time, and what better hardware saves."""
    from simtrain.render.html.pages import study_document
    from simtrain.studies.advice import advise
    from simtrain.studies.comparison import Comparison
    from simtrain.views.view import Heading, View

    with status(f"simulating changes of {column.name}") as show_status:
        advice = advise(column.result, top, on_progress=show_status)
    comparison = Comparison([column], advice=advice)
    show_answer(output, comparison)
    title = Heading(f"Changes of {column.name} that save time")
    _write_page(out, lambda: study_document(View([title, *comparison.view().parts])))


def _compare_schedules(question: Question, out: Path | None, output: Output) -> None:
    """Simulate every schedule that a pipeline allows: time, bubble, peak memory, and its order."""
    from simtrain.render.html.pages import schedules_document
    from simtrain.studies.comparison import compare_schedules

    with status("simulating schedules") as show_status:
        comparison = compare_schedules(question.load(), show_status)
    show_answer(output, comparison, draws=not (output.format == "md" or out))
    words = shlex.join(["simtrain", "compare", "--schedules", *question.words])
    _write_page(out, lambda: schedules_document(comparison, words))


def _write_page(out: Path | None, document: Callable[[], HtmlDocument]) -> None:
    from simtrain.render.html.document import write_document

    if out:
        write_document(document(), out)
