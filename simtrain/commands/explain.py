"""`simtrain explain`."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from simtrain.commands.completion import error_codes, shipped_scenarios
from simtrain.commands.declare import Fields
from simtrain.commands.options import SetOption, refuse
from simtrain.commands.output import Output, show
from simtrain.commands.printing import emit, text_width
from simtrain.commands.question import ImportFields, Question, simulate_with_status
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.scenario import Scenario

Figure = Literal["iteration_time", "mfu", "hfu", "peak_memory"]
_CODE = re.compile(r"[eE]?\d+")


def _subjects(typed: str) -> list[str]:
    """Return codes and scenarios that begin with the typed text, for completion."""
    return error_codes(typed) + shipped_scenarios(typed)


def explain(
    subject: Annotated[str | None, typer.Argument(autocompletion=_subjects)] = None,
    figure: Annotated[Figure | None, typer.Argument()] = None,
    overrides: SetOption = None,
    top: Annotated[int | None, typer.Option(min=1)] = None,
    *,
    output: Annotated[Output, Fields(Output, "as_json as_markdown")],
    all_codes: Annotated[bool, typer.Option("--all")] = False,
    imports: ImportFields,
) -> None:
    """Explain an error code, such as E310, or a figure of a scenario.

    Args:
        subject: error code, such as E310, or a scenario. Default: list all codes.
        figure: figure of the scenario to explain. Default: iteration_time.
        top: operators listed for each cause. Default: 3.
        all_codes: print all codes in Markdown (simtrain docs errors).

    For an error, print what is wrong, why, how to fix it, and an example. For a figure, print the
    numbers that it is computed from, down to entries of the hardware profile with their values,
    sources and measurements.

    Example: simtrain explain table5_175b_present iteration_time
    """
    from simtrain.iteration.report.origins import TOP
    from simtrain.render.explanations import code_list, errors_document, explanation_page
    from simtrain.scenario.explanations import explain, explanations

    if subject in get_args(Figure):
        message, fix = "the scenario is missing", f"simtrain explain llama3_70b {subject}"
        raise InputError.of("E903", message, Location(f"simtrain explain {subject}"), fix)
    is_figure = not (all_codes or subject is None or _CODE.fullmatch(subject.strip()))
    if not is_figure:
        of_figures = {
            "FIGURE": figure,
            "--set": overrides,
            "--top": top,
            "--json": output.as_json,
            "--markdown": output.as_markdown,
        }
        message = "is only for a figure of a scenario"
        refuse(of_figures, message, "remove it, or name a scenario")
    if all_codes:
        emit(errors_document(explanations().values()))
    elif subject is None:
        emit(code_list(explanations().values(), text_width()))
    elif is_figure:
        loaded = Question(subject, overrides, imports=imports).load()
        _explain_figure(loaded, figure or "iteration_time", top or TOP, output)
    else:
        emit(explanation_page(explain(subject), text_width()))


def _explain_figure(scenario: Scenario, figure: Figure, top: int, output: Output) -> None:
    from simtrain.iteration.report.origins import explain_figure
    from simtrain.views.origins import origins_view

    result = simulate_with_status(scenario, allow_oom=True)
    explained = explain_figure(result, figure, top)
    view = partial(origins_view, explained, scenario.cluster)
    show(output, explained, view, scenario.cluster)
