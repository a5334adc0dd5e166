"""`simtrain run`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from simtrain.commands.shared import (
    AllowOomOption,
    JsonOption,
    ScenarioArgument,
    SetOption,
    emit,
    parse_numbers,
    parse_window_s,
    show,
    simulated,
    status,
)


def run(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    allow_oom: AllowOomOption = False,
    engine: Annotated[
        Literal["auto", "simpy", "compiled"],
        typer.Option("--engine", help="Execution engine; all give bit-identical results."),
    ] = "auto",
    ops: Annotated[
        bool, typer.Option("--ops", help="List the operators of a stage instead: where time goes.")
    ] = False,
    stage: Annotated[
        int | None,
        typer.Option("--stage", help="Stage whose operators --ops lists; default: the slowest."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print --ops as CSV.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="Write a Chrome trace: .json or .json.gz, or a folder with a file per rank. "
            ".csv: the schedule in PyTorch's format.",
        ),
    ] = None,
    trace_microbatches: Annotated[
        str | None,
        typer.Option(
            "--trace-microbatches", help="Microbatches whose kernels --trace shows, such as 0,1."
        ),
    ] = None,
    trace_window: Annotated[
        str | None,
        typer.Option("--trace-window", help="Time whose kernels --trace shows, such as 0s:2s."),
    ] = None,
) -> None:
    """Simulate one iteration: its time, where the time goes, and the memory of each GPU.

    A scenario that does not fit exits with 3 and names the cheapest change that makes it fit.

    With --ops: each operator's count, shape, FLOPs, bytes and seconds, what limits it, and the
    entry of the hardware profile that its time comes from. Rows add up to the breakdown.

    Example: simtrain run table5_175b_present --set parallelism.interleave=1
    """
    from simtrain.no_effect import settings_without_effect
    from simtrain.pages.operators_page import operators_csv, operators_page
    from simtrain.pages.result_page import result_page
    from simtrain.report.trace import check_trace_file, write_trace
    from simtrain.scenario import load_scenario

    if not ops and (stage is not None or as_csv):
        option = "--csv" if as_csv else "--stage"
        raise typer.BadParameter("is only for --ops: add --ops", param_hint=option)
    if trace is None and (trace_microbatches or trace_window):
        option = "--trace-microbatches" if trace_microbatches else "--trace-window"
        raise typer.BadParameter("is only for --trace: add --trace FILE", param_hint=option)
    microbatches = parse_numbers(trace_microbatches, "--trace-microbatches")
    window_s = parse_window_s(trace_window, "--trace-window")
    if trace:
        check_trace_file(trace)
    loaded = load_scenario(scenario, overrides or ())
    result = simulated(loaded, allow_oom, engine)
    if trace:
        with status(f"writing {trace}"):
            write_trace(result, trace, microbatches, window_s)
    if ops:
        table = result.operators(stage)
        if as_csv:
            emit(operators_csv(table))
        else:
            page = partial(operators_page, table, loaded.name or "unnamed")
            show(as_json, table.to_dict, page, loaded.cluster)
        return
    idle = settings_without_effect(loaded)

    def data() -> dict[str, Any]:
        return result.to_dict() | {"without_effect": idle}

    show(as_json, data, lambda: result_page(result, idle.values()), loaded.cluster)
