"""`simtrain compare`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simtrain.commands.options import AllowOomOption, refuse
from simtrain.commands.output import Output, show
from simtrain.commands.printing import emit, status
from simtrain.commands.question import Questions, as_words, simulate_with_status
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.iteration.report.difference import Difference
    from simtrain.scenario import Scenario
    from simtrain.views.compare import ScenarioColumn

ChangeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--change",
        help="Add one copy of the first scenario with this field changed: recompute=full. "
        "If repeated, the one copy has all changes: some need each other.",
    ),
]
SensitivityOption = Annotated[
    bool,
    typer.Option(help="Simulate each scenario again with more of each resource of the cluster."),
]


def compare(
    questions: Questions,
    *,
    changes: ChangeOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    pass_name: Annotated[str, typer.Option("--pass")] = "",
    output: Output,
    allow_oom: AllowOomOption = False,
    sensitivity: SensitivityOption = True,
) -> None:
    """Compare scenarios: why one is slower than another, and what hardware to buy first.

    Args:
        out: with traces: also write a page with both timelines.
        pass_name: with traces of a part of an iteration: compare with this simulated pass, such as
            0F0 or "(0F3;6B0)OVERLAP_F_B".

    Each scenario is compared with the first one, and the difference is split into causes that add
    up to it. --set applies to all scenarios. With a single scenario, only the effect of better
    hardware is shown.

    Scenarios that set a field of variation are drawn 100 times, for the mean and a percentile.

    Traces of PyTorch's profiler beside one scenario (files .json or .json.gz, or a folder, one rank
    each) show where the real iteration loses time against the simulated one: by kind of kernels,
    exposed communication, host gaps and bubble.

    Example: simtrain compare table5_175b_full table5_175b_present

    Example: simtrain compare table5_175b_present trace.json.gz --out page.html
    """
    from simtrain.commands.comparer import COMPARERS, ComparisonRequest
    from simtrain.views.compare import ScenarioComparison, compare_view

    scenarios, settings = questions.scenarios, questions.settings
    for comparer in COMPARERS.values():
        if files := [name for name in scenarios if comparer.takes(Path(name))]:
            message = f"has no effect beside {comparer.name}"
            refuse({"--change": changes, "--no-sensitivity": not sensitivity}, message)
            names = [name for name in scenarios if name not in files]
            request = ComparisonRequest(names, files, settings, pass_name, out, output, allow_oom)
            return comparer.compare(request)
    refuse({"--out": out, "--pass": pass_name}, "needs a trace", "name one, or leave it out")
    loaded = load_compared(questions, changes or [])
    if len(loaded) == 1 and not sensitivity:
        message = "a single scenario with --no-sensitivity leaves nothing to show"
        fix = "add a scenario or --change, or remove --no-sensitivity"
        raise InputError.of("E843", message, Location("--no-sensitivity"), fix)
    columns = [scenario_column(name, scenario, allow_oom, sensitivity) for name, scenario in loaded]
    comparison = ScenarioComparison(columns, differences_between(columns))
    show(
        output,
        comparison,
        lambda: compare_view(comparison),
        [column.result.scenario.cluster for column in columns],
    )
    if len(columns) == 1 and questions.overrides:
        words = [scenarios[0], *as_words("--change", questions.overrides)]
        line = shlex.join(["simtrain", "compare", *words])
        note = "--set applies to every scenario. Compare with the unchanged one"
        emit(f"{note}: {line}\n", sys.stderr)


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
    from simtrain.studies.variation.run import draw_if_varied
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
