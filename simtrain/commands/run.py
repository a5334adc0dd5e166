"""`simtrain run`: an iteration on the terminal, as a page, a picture or a trace."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from simtrain.commands.declare import Option, options_first
from simtrain.commands.options import AllowOomOption, parse_numbers, parse_window_s, refuse
from simtrain.commands.output import PAGES, Output, show_view
from simtrain.commands.output import show as show_answer
from simtrain.commands.printing import emit, emit_data, status
from simtrain.commands.question import Question, read_measured, simulate_with_status
from simtrain.errors import DoesNotFitError
from simtrain.render.traces import HELP, SCHEDULE, SUFFIXES

if TYPE_CHECKING:
    from simtrain.base.plain_data import PlainData
    from simtrain.iteration.report.origins import FigureName
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario
    from simtrain.studies.variation import DrawnTimes
    from simtrain.views.view import View

Shown = Literal["memory", "ops", "sources", "mfu", "hfu", "peak_memory", "schedule", "settings"]
_FIGURES: dict[str, FigureName] = {
    "sources": "iteration_time",
    "mfu": "mfu",
    "hfu": "hfu",
    "peak_memory": "peak_memory",
}
"""What explains each figure."""
_OPERATORS = 15
_PICTURES = ".png", ".svg", ".pdf"
_SCENARIO = ".yaml"
OUT_HELP = (
    "File to write; its ending decides. .html: a page with everything. .png, .svg or .pdf: the "
    "timeline, with --show memory the memory of each stage. .yaml: the scenario with its changes. "
    + HELP
)
Writer = Callable[["Scenario", "Result"], None]


@options_first("show out overrides gpus allow_oom format draws seed")
def run(
    question: Question,
    output: Output,
    show: Shown | None = None,
    out: Annotated[Path | None, Option("-o --output", help=OUT_HELP)] = None,
    stages: Annotated[list[int] | None, Option(parse=parse_numbers)] = None,
    window: Annotated[tuple[float, float] | None, Option(parse=parse_window_s)] = None,
    measured: list[str] | None = None,
    draws: int | None = None,
    seed: int | None = None,
    *,
    allow_oom: AllowOomOption = False,
) -> None:
    """Simulate one training iteration: its time, where the time goes, and memory per GPU.

    Args:
        show: show this instead: memory of each stage by component; ops of a stage; sources of the
            time, or of mfu, hfu or peak_memory; order of the schedule; what decides each setting.
        stages: stages of a picture, such as 0,1,63, or the stage of --show ops.
        window: time that a picture or the kernels of a trace cover, such as 0s:2s or 500ms:1s.
        measured: runs of yours, which anchor intervals: a table (CSV), a log, or a scenario and its
            time, peak memory or log: "x.sbatch=10.5 s, 61.3 GiB", x.toml=x.log. May be repeated.
        draws: iterations to draw with what the scenario's section variation says: a distribution
            and its reasons. Default: 100 if a field of the section is set, otherwise none.
        seed: seed of the random numbers: a whole number from 0 on. Default: 0.

    If the scenario does not fit, exits with 3 and names the fastest single change that fits; a
    file of -o is written anyway.

    --show ops prints each op's count, shape, FLOPs, bytes, seconds, bottleneck and profile entry.
    --show sources prints what a figure is computed from, down to the hardware profile. --show
    schedule prints a row per stage and a column per slot: 2F0 is the forward pass of microbatch 0
    on virtual stage 2; --format csv has all passes as in PyTorch's pipelining.

    Example: simtrain run table5_175b_present --set parallelism.interleave=1

    Example: simtrain run table5_175b_present -o trace.json.gz --window 0s:1s
    """
    name = out.name.lower() if out else ""
    is_page, is_picture = name.endswith(PAGES), name.endswith(_PICTURES)
    is_drawn = {"--draws": draws is not None, "--seed": seed is not None}
    if not (is_picture or show == "ops"):
        refuse({"--stages": stages}, "is for --show ops and pictures", "add -o timeline.svg")
    if is_page or not name or name.endswith(SCHEDULE):
        refuse({"--window": window}, "is for pictures and traces", "add -o trace.json.gz")
    if show is not None:
        refuse(is_drawn, f"has no effect with --show {show}")
    elif is_page:
        refuse({"--draws": draws is not None}, "has no effect on a page", "set section variation")
    if is_page:
        refuse({"--measured": measured}, "has no effect on a page")
    if show in ("schedule", "settings"):
        refuse({"-o": out, "--measured": measured}, f"has no effect with --show {show}")
        (_show_schedule if show == "schedule" else _show_settings)(question.load(), output)
        return
    write = _writer(question, out, show == "memory", stages, window) if out else None
    scenario = question.load()
    is_any_size = allow_oom or show in ("memory", *_FIGURES) or write is not None
    anchors = read_measured(measured, scenario, question.changes.overrides)
    result = simulate_with_status(scenario, is_any_size, anchors)
    if write:
        with status(f"writing {out}"):
            write(scenario, result)
    if show is not None:
        data, view = _shown(show, result, stages or [])
        show_answer(output, data, _headed(view, result), scenario.cluster)
    elif draws is None and not scenario.variation.is_set:
        refuse(is_drawn, "is only for --draws", "add --draws 100")
        _show_result(question, result, None, output)
    else:
        _show_result(question, result, _drawn(result, {"draws": draws, "seed": seed}), output)
    if not (allow_oom or show in _FIGURES or result.memory.fits):
        _refuse_size(result)


def _writer(
    question: Question,
    file: Path,
    is_memory: bool,
    stages: list[int] | None,
    window_s: tuple[float, float] | None,
) -> Writer:
    """Return what writes the page, picture, trace or scenario; refuse other endings (E117)."""
    from simtrain.base.output_folder import check_new, check_suffix, check_writable
    from simtrain.render.figures.style import check_picture_file
    from simtrain.render.traces.write import check_trace_file, write_trace

    def draw(_: Scenario, result: Result) -> None:
        from simtrain.render.figures.iteration import plot_memory, plot_timeline
        from simtrain.render.figures.style import footer_of_result, write_picture

        timeline = partial(plot_timeline, result, stages, window_s, memory=True)
        figure = plot_memory(result) if is_memory else timeline()
        write_picture(figure, file, footer_of_result(result))

    def trace(_: Scenario, result: Result) -> None:
        write_trace(result, file, None, window_s)

    write: Writer = trace
    name = file.name.lower()
    if file.suffix:
        endings = (*PAGES, *_PICTURES, *SUFFIXES, _SCENARIO)
        check_suffix(file, endings, "files of an iteration")
    if name.endswith(PAGES):
        write = partial(_write_page, question, file)
    elif name.endswith(_SCENARIO):
        check_new(file)
        write = partial(_write_scenario, file)
    elif name.endswith(_PICTURES):
        check_picture_file(file)
        write = draw
    else:
        check_trace_file(file)
    if file.suffix:
        check_writable(file, "it")
    return write


def _drawn(result: Result, numbers: Mapping[str, int | None]) -> DrawnTimes:
    from simtrain.commands.printing import progress_bar
    from simtrain.studies.variation import draw

    written = {name: number for name, number in numbers.items() if number is not None}
    with progress_bar() as on_progress:
        return draw(result, **written, on_progress=on_progress)


def _refuse_size(result: Result) -> None:
    """Exit with 3 and name a change that makes a scenario fit, after its result is printed."""
    from simtrain.studies.advice import check_fits

    with status("searching for a change that makes it fit") as show_status:
        try:
            check_fits(result.scenario, result.memory, result.seconds.machine, show_status)
        except DoesNotFitError as error:
            emit(f"{error}\n", sys.stderr)
            raise SystemExit(error.exit_code) from None


def _write_page(question: Question, file: Path, scenario: Scenario, _: Result) -> None:
    from simtrain.render.html.document import write_document
    from simtrain.render.html.report import Subject, subjects_document

    words = shlex.join(question.words)
    subjects = [Subject(question.scenario, scenario, words)]
    write_document(subjects_document(subjects, words, lambda description: None), file)


def _write_scenario(file: Path, scenario: Scenario, _: Result) -> None:
    from simtrain.base.output_folder import write_new
    from simtrain.base.strict_yaml import yaml_text
    from simtrain.studies.search.run import data_of_file

    write_new(file, yaml_text(data_of_file(scenario, file.stem, scenario.description or "")))


def _show_settings(scenario: Scenario, output: Output) -> None:
    from simtrain.scenario.resolved import resolved_settings
    from simtrain.views.settings import settings_view

    resolved = resolved_settings(scenario)
    show_answer(output, resolved, partial(settings_view, resolved), scenario.cluster)


def _show_schedule(scenario: Scenario, output: Output) -> None:
    from simtrain.views.schedules import schedule_view

    is_other = output.format in ("json", "md")
    others = {f"--format {output.format}": is_other, "--table": output.table}
    refuse(others, "has no effect with --show schedule", "write --format csv")
    order = scenario.order.actions
    if output.format == "csv":
        emit_data(order.to_csv())
    else:
        show_view(output, schedule_view(order))


def _shown(show: str, result: Result, stages: list[int]) -> tuple[PlainData, Callable[[], View]]:
    """Return what --show asks of a simulated iteration, and what builds its view."""
    from simtrain.iteration.report.origins import TOP, explain_figure
    from simtrain.views.memory import memory_view
    from simtrain.views.operators import operators_view
    from simtrain.views.origins import origins_view

    scenario = result.scenario
    if show == "memory":
        return result.memory_report, partial(memory_view, result.memory)
    if show == "ops":
        refuse({"--stages": len(stages) > 1}, "names several stages", "name one")
        table = result.operators(*stages)
        name = scenario.name or "unnamed"
        return table, partial(operators_view, table, name, _OPERATORS)
    explained = explain_figure(result, _FIGURES[show], TOP)
    return explained, partial(origins_view, explained, scenario.cluster)


def _headed(view: Callable[[], View], result: Result) -> Callable[[], View]:
    """Return what builds a view below the line of its iteration."""
    from simtrain.views.result import result_headline
    from simtrain.views.view import View

    return lambda: View([*view().parts, result_headline(result)])


def _show_result(
    question: Question, result: Result, drawn: DrawnTimes | None, output: Output
) -> None:
    from simtrain.iteration.report.remarks import RunReport
    from simtrain.views.result import result_view

    words = shlex.join(["simtrain", "run", *question.words, "--show", "sources"])
    next_step = f"From a second down to its source: {words}"
    report = RunReport(result)
    data: PlainData = report
    if drawn:
        from simtrain.studies.variation import VariedRun

        data = VariedRun(report, drawn)
    view = partial(result_view, result, [next_step], drawn)
    show_answer(output, data, view, result.scenario.cluster)
