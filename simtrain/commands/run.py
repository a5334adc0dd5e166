"""`simtrain run`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simtrain.commands.import_options import reads_other_tools
from simtrain.commands.output import CsvOption, MarkdownOption, Output, TableOption, show
from simtrain.commands.shared import (
    AllowOomOption,
    JsonOption,
    ScaleOption,
    ScenarioArgument,
    SetOption,
    all_overrides,
    parse_numbers,
    parse_window_s,
    refuse,
    simulate_with_status,
    status,
)
from simtrain.render.traces.formats.registry import FORMATS, format_of

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario

_OPERATORS = 15

EngineOption = Annotated[
    Literal["auto", "simpy", "compiled"],
    typer.Option("--engine", help="Execution engine; all give bit-identical results."),
]
OpsOption = Annotated[
    bool, typer.Option("--ops", help="List the operators of one stage instead of the report.")
]
ExplainSettingsOption = Annotated[
    bool,
    typer.Option(
        "--explain-settings", help="Say what decides each setting, instead of simulating."
    ),
]
StageOption = Annotated[
    int | None, typer.Option("--stage", help="Stage of --ops. Default: the slowest.")
]
TopOption = Annotated[
    int | None,
    typer.Option(
        "--top", min=1, help=f"Operators that --ops lists one by one. Default: {_OPERATORS}."
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        help="Write a trace. "
        + "".join(f"{' or '.join(each.suffixes)}: {each.text}. " for each in FORMATS)
        + "A folder: a Chrome trace per rank.",
    ),
]
TraceMicrobatchesOption = Annotated[
    str | None,
    typer.Option(
        "--trace-microbatches", help="Microbatches whose kernels --trace shows, such as 0,1."
    ),
]
TraceWindowOption = Annotated[
    str | None,
    typer.Option("--trace-window", help="Time whose kernels --trace shows, such as 0s:2s."),
]


@reads_other_tools
def run(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    scale: ScaleOption = None,
    as_json: JsonOption = False,
    allow_oom: AllowOomOption = False,
    engine: EngineOption = "auto",
    ops: OpsOption = False,
    stage: StageOption = None,
    top: TopOption = None,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
    table: TableOption = None,
    trace: TraceOption = None,
    trace_microbatches: TraceMicrobatchesOption = None,
    trace_window: TraceWindowOption = None,
    explain_settings: ExplainSettingsOption = False,
) -> None:
    """Simulate one training iteration: its time, where the time goes, and memory per GPU.

    If the scenario does not fit, exits with 3 and names the cheapest change that makes it fit.

    With --ops, prints each operator's count, shape, FLOPs, bytes, seconds and bottleneck, and the
    entry of the hardware profile that its time comes from. The rows add up to the breakdown.

    With --explain-settings, says whether --set, the scenario's file, its software stack or
    simtrain's default decides each setting, with the stack's source.

    Example: simtrain run table5_175b_present --set parallelism.interleave=1

    Example: simtrain run table5_175b_present --trace trace.json.gz --trace-microbatches 0,1
    """
    from simtrain.base.output_folder import check_writable
    from simtrain.commands.loading import load_scenario

    output = Output(as_json, as_csv, as_markdown, table)
    if explain_settings:
        refuse({"--ops": ops, "--trace": trace}, "has no effect with --explain-settings")
        _show_settings(load_scenario(scenario, all_overrides(overrides, scale)), output)
        return
    if not ops:
        refuse({"--stage": stage is not None, "--top": top}, "is only for --ops", "add --ops")
    of_kernels = {"--trace-microbatches": trace_microbatches, "--trace-window": trace_window}
    if trace is None:
        refuse(of_kernels, "is only for --trace", "add --trace FILE")
    elif (trace_format := format_of(trace)) and not trace_format.has_kernels:
        refuse(of_kernels, f"has no effect on {trace_format.text}, which has no kernels")
    microbatches = parse_numbers(trace_microbatches, "--trace-microbatches")
    window_s = parse_window_s(trace_window, "--trace-window")
    if trace:
        from simtrain.render.traces.write import check_trace_file, write_trace

        check_trace_file(trace)
        if trace.suffix:
            check_writable(trace, "a trace", "--trace")
    loaded = load_scenario(scenario, all_overrides(overrides, scale))
    result = simulate_with_status(loaded, allow_oom, engine)
    if trace:
        with status(f"writing {trace}"):
            write_trace(result, trace, microbatches, window_s)
    if ops:
        _show_operators(result, stage, top or _OPERATORS, output)
    else:
        _show_result(loaded, result, output)


def _show_settings(scenario: Scenario, output: Output) -> None:
    from simtrain.scenario.resolved import resolved_settings
    from simtrain.views.settings import settings_view

    resolved = resolved_settings(scenario)
    show(output, resolved, partial(settings_view, resolved), scenario.cluster)


def _show_operators(result: Result, stage: int | None, top: int, output: Output) -> None:
    from simtrain.views.operators import operators_view

    table, scenario = result.operators(stage), result.scenario
    view = partial(operators_view, table, scenario.name or "unnamed", top)
    show(output, table, view, scenario.cluster)


def _show_result(scenario: Scenario, result: Result, output: Output) -> None:
    from simtrain.iteration.report.remarks import RunReport
    from simtrain.studies.unused_settings import settings_without_effect
    from simtrain.studies.warnings import warnings_on
    from simtrain.views.result import result_view

    unused = settings_without_effect(scenario, result.seconds.machine)
    warnings = warnings_on(result)
    show(
        output,
        RunReport(result, unused, warnings),
        lambda: result_view(result, [*warnings, *unused.values()]),
        scenario.cluster,
    )
