"""`simtrain report`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simtrain.commands.compare import ChangeOption, SensitivityOption, load_compared
from simtrain.commands.options import HtmlFileOption, SetOption, SeveralScenarios, refuse
from simtrain.commands.printing import emit, status
from simtrain.commands.question import ImportFields, Questions, as_words

if TYPE_CHECKING:
    from simtrain.render.html.document import HtmlDocument


def report(
    out: HtmlFileOption,
    scenarios: Annotated[list[str] | None, SeveralScenarios] = None,
    overrides: SetOption = None,
    changes: ChangeOption = None,
    *,
    sensitivity: SensitivityOption = True,
    sweep: Path | None = None,
    imports: ImportFields,
) -> None:
    """Write a report: one HTML file that opens in a browser and needs no network.

    Args:
        sweep: report on the results folder of a sweep instead.

    It shows how long the iteration takes, where the time goes, what to buy first, the timeline,
    memory, operators, and the sources of all numbers. Several scenarios are compared as by simtrain
    compare. The file contains every number in full precision, like --json of other commands.
    Scenarios that do not fit in memory are reported too.

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
        questions = Questions(scenarios or [], overrides, imports=imports)
        document = _of_iterations(questions, changes, sensitivity)
    write_document(document, out)
    emit(f"{out}\n")


def _of_sweep(folder: Path) -> HtmlDocument:
    from simtrain.base.extras import require
    from simtrain.render.figures.sweep import SweepResults
    from simtrain.render.html.sweep_report import sweep_document

    require("simtrain report --sweep", "pyarrow", "duckdb", "matplotlib")
    return sweep_document(SweepResults.of(folder))


def _of_iterations(
    questions: Questions, changes: list[str] | None, sensitivity: bool
) -> HtmlDocument:
    from simtrain.render.html.report import Subject, subjects_document

    loaded = load_compared(questions, changes or [])
    arguments = _arguments(questions, changes)
    subjects = [Subject(*pair, words) for pair, words in zip(loaded, arguments, strict=True)]
    settings = as_words("--set", questions.overrides)
    compared = [*questions.scenarios, *settings, *as_words("--change", changes)]
    compared += [] if sensitivity else ["--no-sensitivity"]
    with status(f"simulating {subjects[0].name}") as show_status:
        return subjects_document(subjects, shlex.join(compared), sensitivity, show_status)


def _arguments(questions: Questions, changes: list[str] | None) -> list[str]:
    """Return the arguments of `simtrain run` for each loaded scenario, in order."""
    scenarios, same = questions.scenarios, as_words("--set", questions.overrides)
    copies = [[scenarios[0], *same, *as_words("--set", changes)]] if changes else []
    return [shlex.join(words) for words in ([[name, *same] for name in scenarios] + copies)]
