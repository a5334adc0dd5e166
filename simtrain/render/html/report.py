"""The report on simulated iterations: the views of several commands, and pictures, on one page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from simtrain.base.resources import provenance
from simtrain.iteration.memory.fit import MemoryFit
from simtrain.iteration.report.operators import EntrySource
from simtrain.iteration.report.origins import FIGURES, Explained, explain_figure
from simtrain.iteration.report.remarks import validation_for
from simtrain.iteration.report.result import Result
from simtrain.render.html import roofline, timeline
from simtrain.render.html.bars import breakdown_bar, memory_bars
from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.elements import Html, breakable, card, element, joined, number
from simtrain.render.html.view import printed_by, view_html
from simtrain.scenario.resolved import resolved_settings
from simtrain.studies.variation.result import DrawnTimes
from simtrain.units import format_bytes
from simtrain.views.compare import ScenarioComparison, compare_view
from simtrain.views.memory import memory_verdict, memory_view
from simtrain.views.modules import modules_table
from simtrain.views.operators import operators_view
from simtrain.views.origins import entries_table, figure_branch
from simtrain.views.profile import validation_lines
from simtrain.views.result import (
    breakdown_table,
    headline,
    iteration_time,
    result_remarks,
    token_rate,
)
from simtrain.views.settings import settings_view
from simtrain.views.variation import variation_parts
from simtrain.views.view import Paragraphs, View

_NOT_MODELLED = (
    "Congestion between jobs, failures, checkpoints, and Python work on the host other than "
    "launching kernels."
)
_NOT_DRAWN = (
    "Differences between GPUs and between iterations, and data loading: the section variation of "
    "a scenario describes them."
)
_STYLES = {MemoryFit.SURELY: "good", MemoryFit.PERHAPS: "doubt", MemoryFit.NOT: "bad"}


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """An iteration of a report.

    Args:
        name: the name by which the user referred to the scenario.
        result: its simulation.
        arguments: what follows `simtrain run` to simulate it again; by default the name.
        remarks: more remarks, on settings.
        drawn: the iteration drawn many times, if the scenario sets a field of `variation`.
    """

    name: str
    result: Result
    arguments: str = ""
    remarks: Sequence[str] = ()
    drawn: DrawnTimes | None = None

    def command(self, name: str, figure: str = "") -> str:
        """Return the command of a view, such as `simtrain memory llama3_70b`."""
        return " ".join(filter(None, ("simtrain", name, self.arguments or self.name, figure)))

    @property
    def run_command(self) -> str:
        """The command that simulates the iteration."""
        return self.command("run") + (" --allow-oom" if not self.result.memory.fits else "")


def report_document(
    runs: Sequence[ReportedRun], comparison: ScenarioComparison | None = None, compared: str = ""
) -> HtmlDocument:
    """Build the report on one or several iterations.

    Args:
        runs: the iterations.
        comparison: the iterations side by side, and with better hardware. Without it, no section
            says what the time depends on.
        compared: what follows `simtrain compare` to compute it again; by default the names.
    """
    names = [run.name for run in runs]
    lead = "One training iteration" if len(runs) == 1 else "Training iterations"
    words = f"{lead}, simulated by simtrain. Select a number to see its exact value and source."
    sections = [*_sections(runs, comparison, compared or " ".join(names))]
    return HtmlDocument(
        " against ".join(_titles(runs)), element("p", words), sections, foot=_foot(runs)
    )


def _titles(runs: Sequence[ReportedRun]) -> list[str]:
    """Return the scenarios' own names, or those that the user wrote if two are equal."""
    titles = [run.result.scenario.name or run.name for run in runs]
    return titles if len({*titles}) == len(titles) else [run.name for run in runs]


def _foot(runs: Sequence[ReportedRun]) -> Html:
    lines = []
    for cluster in dict.fromkeys(run.result.scenario.cluster for run in runs):
        made = provenance(cluster)
        digest = element("code", made["profile_sha256"])
        words = f"simtrain {made['simtrain']} · hardware profile {made['profile']} · SHA-256 "
        lines.append(element("p", words, digest))
    return joined(*lines)


def _sections(
    runs: Sequence[ReportedRun], comparison: ScenarioComparison | None, compared: str
) -> Iterator[HtmlSection]:
    def of_each(build: Callable[[ReportedRun], Html]) -> Html:
        """Build a part for each run, below the run's name if there are several."""
        if len(runs) == 1:
            return build(runs[0])
        return joined(*(joined(element("h3", breakable(run.name)), build(run)) for run in runs))

    breakdown = of_each(_breakdown)
    middle = [HtmlSection("breakdown", "Where the time goes", breakdown, ("breakdown.css",))]
    if comparison:
        # Whoever compares asks first for the difference.
        place = 0 if comparison.differences else 1
        title = "ScenarioComparison" if len(runs) > 1 else "What the time depends on"
        body = view_html(compare_view(comparison), f"simtrain compare {compared} --allow-oom")
        middle.insert(place, HtmlSection("comparison", title, body))
    yield HtmlSection("answer", "Answer", of_each(_answer), ("answer.css",))
    yield from middle
    if any(run.drawn for run in runs):
        yield HtmlSection("variation", "How iterations vary", of_each(_variation))
    figures = timeline.timelines({run.name: run.result for run in runs})
    title = "Timeline and memory over time"
    yield HtmlSection("timeline", title, figures, timeline.STYLES, timeline.SCRIPTS)
    yield HtmlSection("memory", "Memory", of_each(_memory), ("memory.css",))
    blocks = of_each(lambda run: _operators(run, _scope(runs, run)))
    yield HtmlSection("operators", "Operators and their sources", blocks, scripts=("sort.js",))
    pictures = of_each(lambda run: roofline.roofline(run.result.operators()))
    yield HtmlSection("roofline", "Roofline", pictures, roofline.STYLES)
    blocks = of_each(lambda run: _sources(run, _scope(runs, run)))
    yield HtmlSection("sources", "Sources", blocks, ("sources.css",), ("sources.js",))
    yield HtmlSection("assumptions", "Assumptions", of_each(_assumptions))


def _scope(runs: Sequence[ReportedRun], run: ReportedRun) -> str:
    """Return the prefix of the ids of a run's profile entries."""
    return f"{runs.index(run)}-"


def _answer(run: ReportedRun) -> Html:
    """The main figures as cards, then the settings, what the figures rest on, and what fits."""
    result = run.result
    memory, time, rate = result.memory, iteration_time(result), token_rate(result)
    peak_bytes = memory.fullest.peak_bytes
    others = (
        f"{mfu:.1%} of the {dtype} peak"
        for dtype, mfu in result.mfu_by_peak.items()
        if dtype != "bf16"
    )
    within = joined(
        element("strong", memory.fit.state.value, class_=_STYLES[memory.fit.state]),
        f" in {format_bytes(memory.capacity_bytes)}",
        f" ({memory.fit.probability:.0%} that it fits)" * bool(memory.fit.doubt),
    )
    cards = (
        card(
            "Iteration time",
            number(time.value, time.text),
            f"90 % interval: {result.interval.ends}",
            "The end of the last task of the simulated timeline.",
        ),
        card("Tokens per second", number(rate.value, rate.text)),
        card(
            "MFU",
            number(result.mfu, f"{result.mfu:.1%}"),
            "; ".join([f"HFU {result.hfu:.1%}", *others]),
            "Model FLOPs / (GPUs × peak FLOP/s of bf16 × iteration time).",
        ),
        card("Peak memory", number(peak_bytes, format_bytes(peak_bytes)), within),
        card("GPUs", f"{result.scenario.num_gpus:,}", result.scenario.cluster),
    )
    said = result_remarks(result, run.remarks)
    view = View([headline(result), memory_verdict(memory), said])
    figures = printed_by(run.run_command, element("div", *cards, class_="cards"))
    return joined(figures, view_html(view, run.run_command))


def _breakdown(run: ReportedRun) -> Html:
    table = view_html(View([breakdown_table(run.result)]), run.run_command)
    return joined(breakdown_bar(run.result), table)


def _variation(run: ReportedRun) -> Html:
    if run.drawn is None:
        return element("p", "The scenario sets no field of variation.")
    return view_html(View(variation_parts(run.drawn)), run.run_command)


def _memory(run: ReportedRun) -> Html:
    report = run.result.memory
    return joined(memory_bars(report), view_html(memory_view(report), run.command("memory")))


def _operators(run: ReportedRun, scope: str) -> Html:
    operators = run.result.operators()
    page = view_html(operators_view(operators, run.name), f"{run.run_command} --ops", scope)
    if not run.result.plan.recorded:
        return page
    return joined(view_html(View([modules_table(operators)]), scope=scope), page)


def _sources(run: ReportedRun, scope: str) -> Html:
    """The parts of each figure, and what all profile entries behind them rest on."""
    explained = {name: explain_figure(run.result, name) for name in FIGURES}
    trees = (
        printed_by(run.command("explain", name), view_html(View([figure_branch(each.origin)])))
        for name, each in explained.items()
    )
    entries = entries_table(_entries(run.result, explained.values()), run.result.profile.name)
    errors = Paragraphs(validation_lines(validation_for(run.result)), style=None)
    return joined(*trees, view_html(View([errors, entries]), scope=scope))


def _entries(result: Result, explained: Iterable[Explained]) -> list[EntrySource]:
    sources = dict(result.operators().sources)
    for each in explained:
        sources |= each.sources
    return [*sources.values()]


def _assumptions(run: ReportedRun) -> Html:
    words = _NOT_MODELLED if run.drawn else f"{_NOT_MODELLED} {_NOT_DRAWN}"
    not_modelled = element("p", element("strong", "Not modelled: "), words)
    view = settings_view(resolved_settings(run.result.scenario))
    # The command prints the scenario's `recompute: auto`, not what simtrain chose for it.
    command = "" if run.result.recompute_choice else f"{run.command('run')} --explain-settings"
    settings = view_html(view, command)
    return joined(not_modelled, element("details", element("summary", "All settings"), settings))
