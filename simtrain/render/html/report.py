"""The report on simulated iterations: the views of several commands, and pictures, on one page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simtrain.base.output_folder import as_path, check_writable
from simtrain.base.resources import provenance
from simtrain.base.strict_yaml import as_scalar
from simtrain.base.values import dataclass
from simtrain.errors import InputError, wrong_type
from simtrain.iteration.memory.report import COMPONENT_LABELS, MemoryReport
from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.origins import FIGURES, explain_figure
from simtrain.iteration.report.remarks import validation_for
from simtrain.iteration.report.result import Result
from simtrain.render.figures.iteration import CAUSE_FILLS, COMPONENT_FILLS
from simtrain.render.html.document import HtmlDocument, HtmlSection, check_html_file, write_document
from simtrain.render.html.elements import (
    Html,
    breakable,
    element,
    joined,
    legend,
    scroll_box,
    swatch,
)
from simtrain.render.html.timeline import timelines
from simtrain.render.html.view import part_html, printed_by, view_html
from simtrain.scenario import Scenario
from simtrain.scenario.resolved import resolved_settings
from simtrain.studies.comparison import Comparison, column_of
from simtrain.studies.simulation import scenario_of
from simtrain.studies.variation import DrawnTimes
from simtrain.units import format_bytes
from simtrain.views.compare import compare_view
from simtrain.views.memory import memory_view
from simtrain.views.operators import modules_table, operators_view
from simtrain.views.origins import entries_table, figure_branch
from simtrain.views.profile import validation_lines
from simtrain.views.result import breakdown_table, main_facts, result_headline, result_remarks
from simtrain.views.settings import settings_view
from simtrain.views.variation import variation_parts
from simtrain.views.view import Headline, Paragraphs, View

ProgressCallback = Callable[[str], None]
_NOT_MODELLED = (
    "Congestion between jobs, failures, checkpoints, and Python work on the host other than "
    "launching kernels."
)
_NOT_DRAWN = (
    "Differences between GPUs and between iterations, and data loading: the section variation of "
    "a scenario describes them."
)


class Subject(NamedTuple):
    """What a report is on; `arguments` follow `simtrain run` to simulate it again."""

    name: str
    scenario: Scenario | Result
    arguments: str


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """An iteration of a report; `arguments` follow `simtrain run`, by default the name."""

    name: str
    result: Result
    arguments: str = ""
    drawn: DrawnTimes | None = None

    def command(self, options: str = "") -> str:
        """Return the command of a view, such as `simtrain run llama3_70b --show memory`."""
        return " ".join(filter(None, ("simtrain run", self.arguments or self.name, options)))

    @property
    def run_command(self) -> str:
        return self.command() + (" --allow-oom" if not self.result.memory.fits else "")


def report(
    scenarios: Scenario | Result | Iterable[Scenario | Result],
    out: str | Path,
    *,
    on_progress: ProgressCallback = lambda description: None,
) -> Path:
    """Write a report: one HTML file that opens in a browser and needs no network.

    Args:
        scenarios: scenarios, or results of `simulate`; several are compared with the first.
        out: the file to write, such as "report.html"; an existing one is replaced.
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
    arguments = [subject.arguments for subject in subjects]
    # A command changes all of its scenarios alike.
    is_command = len(subjects) == 1 or arguments == [shlex.quote(each.name) for each in subjects]
    compared = " ".join(arguments) if is_command else ""
    write_document(subjects_document(subjects, compared, on_progress), file)
    return file


def subjects_document(
    subjects: Sequence[Subject], compared: str, on_progress: ProgressCallback
) -> HtmlDocument:
    """Simulate the subjects and build the report on them.

    Args:
        subjects: scenarios or results.
        compared: what follows `simtrain compare` to compare them; "" if no command does.
        on_progress: as for `report`.
    """
    columns = [column_of(name, scenario, on_progress) for name, scenario, _ in subjects]
    runs = [
        ReportedRun(column.name, column.result, subject.arguments, column.drawn)
        for subject, column in zip(subjects, columns, strict=True)
    ]
    on_progress("writing the report")
    comparison = Comparison.of(columns) if len(columns) > 1 else Comparison(columns)
    return report_document(runs, comparison, compared)


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


def report_document(
    runs: Sequence[ReportedRun], comparison: Comparison, compared: str
) -> HtmlDocument:
    """Build the report on one or several iterations.

    Args:
        runs: the iterations.
        comparison: the iterations side by side, and with better hardware.
        compared: as for `subjects_document`.
    """
    names = [run.name for run in runs]
    titles = [run.result.scenario.name or run.name for run in runs]
    if len({*titles}) < len(titles):
        titles = names
    lead = "One training iteration" if len(runs) == 1 else "Training iterations"
    words = f"{lead}, simulated by simtrain. Select a number to see its exact value and source."
    sections = [*_sections(runs, comparison, compared)]
    answers = [result_headline(run.result, run.drawn) for run in runs]
    if comparison.differences:
        answers = [Headline(comparison.headline)]
    lead = joined(*(part_html(each, "") for each in answers), element("p", words))
    return HtmlDocument(" against ".join(titles), lead, sections, foot=joined(*_foot(runs)))


def _foot(runs: Sequence[ReportedRun]) -> Iterator[Html]:
    for cluster in dict.fromkeys(run.result.scenario.cluster for run in runs):
        made = provenance(cluster)
        words = f"simtrain {made['simtrain']} · hardware profile {made['profile']} · SHA-256 "
        yield element("p", words, element("code", made["profile_sha256"]))


def _sections(
    runs: Sequence[ReportedRun], comparison: Comparison, compared: str
) -> Iterator[HtmlSection]:
    def of_each(build: Callable[[ReportedRun], Html]) -> Html:
        """Build a part for each run, below the run's name if there are several."""
        if len(runs) == 1:
            return build(runs[0])
        return joined(*(joined(element("h3", breakable(run.name)), build(run)) for run in runs))

    title = "Comparison" if len(runs) > 1 else "What the time depends on"
    command = f"simtrain compare {compared} --allow-oom" if compared else ""
    body = view_html(compare_view(comparison), command)
    middle = [
        HtmlSection("breakdown", "Where the time goes", of_each(_breakdown)),
        HtmlSection("comparison", title, body),
    ]
    yield HtmlSection("answer", "Answer", of_each(_answer))
    # Whoever compares asks first for the difference.
    yield from reversed(middle) if comparison.differences else middle
    if any(run.drawn for run in runs):
        yield HtmlSection("variation", "How iterations vary", of_each(_variation))
    figures = timelines({run.name: run.result for run in runs})
    yield HtmlSection("timeline", "Timeline and memory over time", figures)
    yield HtmlSection("memory", "Memory", of_each(_memory))
    blocks = of_each(lambda run: _operators(run, _scope(runs, run)))
    yield HtmlSection("operators", "Operators and their sources", blocks)
    blocks = of_each(lambda run: _sources(run, _scope(runs, run)))
    yield HtmlSection("sources", "Sources", blocks)
    yield HtmlSection("assumptions", "Assumptions", of_each(_assumptions))


def _scope(runs: Sequence[ReportedRun], run: ReportedRun) -> str:
    return f"{runs.index(run)}-"


def _answer(run: ReportedRun) -> Html:
    said = result_remarks(run.result)
    return view_html(View([main_facts(run.result, run.drawn), said]), run.run_command)


def _breakdown(run: ReportedRun) -> Html:
    fills = dict(zip(CAUSE_LABELS, CAUSE_FILLS, strict=True))
    seconds = {name: getattr(run.result.breakdown, name) for name in CAUSE_LABELS}
    shown = [name for name in CAUSE_LABELS if seconds[name]]
    parts = (
        element(
            "span",
            style=f"--fill:{fills[name]};flex-grow:{seconds[name]!r}",
            title=CAUSE_LABELS[name],
        )
        for name in shown
    )
    bar = element("div", *parts, class_="bar", aria_hidden="true")
    causes = legend((swatch(fills[name]), CAUSE_LABELS[name]) for name in shown)
    return joined(bar, causes, view_html(View([breakdown_table(run.result)]), run.run_command))


def _variation(run: ReportedRun) -> Html:
    if run.drawn is None:
        return element("p", "The scenario sets no field of variation.")
    return view_html(View(variation_parts(run.drawn)), run.run_command)


def _memory(run: ReportedRun) -> Html:
    report = run.result.memory
    view = view_html(memory_view(report), run.command("--show memory"))
    return joined(_memory_bars(report), view)


def _memory_bars(report: MemoryReport) -> Html:
    """A bar of components for each stage, with a mark at the capacity of a GPU."""
    scale = max(report.capacity_bytes, *(stage.peak_bytes for stage in report.stages))
    mark = element("i", style=f"left:{100 * report.capacity_bytes / scale:.4f}%")
    rows = []
    for stage in report.stages:
        parts = (
            element(
                "span",
                style=f"--fill:{colour};width:{100 * stage.components_bytes[name] / scale:.4f}%",
                title=f"{COMPONENT_LABELS[name]}: {format_bytes(stage.components_bytes[name])}",
            )
            for name, (colour, _) in COMPONENT_FILLS.items()
        )
        stack = element("div", *parts, mark, class_="stack")
        rows.append(joined(element("span", f"{stage.stage}"), stack))
    components = legend(
        (swatch(colour), COMPONENT_LABELS[name]) for name, (colour, _) in COMPONENT_FILLS.items()
    )
    stacks = scroll_box(element("div", *rows, class_="stacks"), "Peak memory of each stage")
    note = element("p", "One bar per stage. The mark is the capacity of a GPU.", class_="soft")
    return joined(components, stacks, note)


def _operators(run: ReportedRun, scope: str) -> Html:
    operators = run.result.operators()
    page = view_html(operators_view(operators, run.name), f"{run.run_command} --show ops", scope)
    if not run.result.plan.recorded:
        return page
    return joined(view_html(View([modules_table(operators)]), scope=scope), page)


def _sources(run: ReportedRun, scope: str) -> Html:
    explained = {name: explain_figure(run.result, name) for name in FIGURES}
    trees = (
        printed_by(
            run.command(f"--show {'sources' if name == 'iteration_time' else name}"),
            view_html(View([figure_branch(each.origin)])),
        )
        for name, each in explained.items()
    )
    sources = dict(run.result.operators().sources)
    for each in explained.values():
        sources |= each.sources
    entries = entries_table([*sources.values()], run.result.profile.name)
    errors = Paragraphs(validation_lines(validation_for(run.result)), style=None)
    return joined(*trees, view_html(View([errors, entries]), scope=scope))


def _assumptions(run: ReportedRun) -> Html:
    words = _NOT_MODELLED if run.drawn else f"{_NOT_MODELLED} {_NOT_DRAWN}"
    not_modelled = element("p", element("strong", "Not modelled: "), words)
    view = settings_view(resolved_settings(run.result.scenario))
    # The command prints the scenario's `recompute: auto`, not what simtrain chose for it.
    command = "" if run.result.recompute_choice else run.command("--show settings")
    settings = view_html(view, command)
    return joined(not_modelled, element("details", element("summary", "All settings"), settings))
