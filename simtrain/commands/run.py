"""`simtrain run`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from simtrain.commands.declare import Written, options_first
from simtrain.commands.options import AllowOomOption, parse_numbers, parse_window_s, refuse
from simtrain.commands.output import Output, show
from simtrain.commands.printing import status
from simtrain.commands.question import Question, simulate_with_status
from simtrain.render.traces.formats import FORMATS, format_of

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario
    from simtrain.studies.variation.result import DrawnTimes

_OPERATORS = 15

TOP_HELP = f"Operators that --ops lists one by one. Default: {_OPERATORS}."
TRACE_HELP = (
    "Write a trace. "
    + "".join(f"{' or '.join(each.suffixes)}: {each.text}. " for each in FORMATS)
    + "A folder: a Chrome trace per rank."
)


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators to list.

    Args:
        ops: list the operators of one stage instead of the report.
        stage: stage of --ops. Default: the slowest.
        top: the most to list one by one; None for the default.
    """

    ops: bool = False
    stage: int | None = None
    top: Annotated[int | None, typer.Option(min=1, help=TOP_HELP)] = None

    def check(self) -> None:
        """Refuse a stage or a number without --ops (E908)."""
        if not self.ops:
            of_operators = {"--stage": self.stage is not None, "--top": self.top}
            refuse(of_operators, "is only for --ops", "add --ops")


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace to write.

    Args:
        trace: its file or folder.
        trace_microbatches: microbatches whose kernels --trace shows, such as 0,1.
        trace_window: time whose kernels --trace shows, such as 0s:2s.
    """

    trace: Annotated[Path | None, typer.Option(help=TRACE_HELP)] = None
    trace_microbatches: Annotated[list[int] | None, Written(parse_numbers)] = None
    trace_window: Annotated[tuple[float, float] | None, Written(parse_window_s)] = None

    def check(self) -> None:
        """Check that the trace can be written.

        Raises:
            InputError: it cannot, or kernels are chosen without a trace that has them (E908).
        """
        of_kernels = {
            "--trace-microbatches": self.trace_microbatches,
            "--trace-window": self.trace_window,
        }
        if self.trace is None:
            refuse(of_kernels, "is only for --trace", "add --trace FILE")
            return
        if (trace_format := format_of(self.trace)) and not trace_format.has_kernels:
            refuse(of_kernels, f"has no effect on {trace_format.text}, which has no kernels")
        from simtrain.base.output_folder import check_writable
        from simtrain.render.traces.write import check_trace_file

        check_trace_file(self.trace)
        if self.trace.suffix:
            check_writable(self.trace, "a trace", "--trace")

    def write(self, result: Result) -> None:
        """Write the trace of a result."""
        if self.trace is None:
            return
        from simtrain.render.traces.write import write_trace

        with status(f"writing {self.trace}"):
            write_trace(result, self.trace, self.trace_microbatches, self.trace_window)


@dataclass(frozen=True, slots=True)
class Draws:
    """The draws of the iteration.

    Args:
        draws: iterations to draw with what the scenario's section variation says. Default: 100 if a
            field of the section is set, otherwise none.
        seed: seed of the random numbers: a whole number from 0 on. Default: 0.
        workers: processes that draw; the answer is the same for any number. Default: 1.
        ray: Ray cluster, host:port, whose processors draw in place of processes on this machine.
    """

    draws: int | None = None
    seed: int | None = None
    workers: int | None = None
    ray: str | None = None

    def of(self, result: Result) -> DrawnTimes | None:
        """Draw the iteration of a result, if draws are asked for.

        Raises:
            InputError: as `draw`, or there is nothing to draw (E908).
        """
        if self.draws is None and not result.scenario.variation.is_set:
            refuse(self.options, "is only for --draws", "add --draws 100")
            return None
        from simtrain.commands.progress import progress_bar
        from simtrain.studies.draw_request import DrawRequest
        from simtrain.studies.variation.run import draw_with_progress

        written = {name: value for name, value in self._written.items() if value is not None}
        with progress_bar() as on_progress:
            return draw_with_progress(DrawRequest(result, **written), on_progress)

    @property
    def options(self) -> dict[str, object]:
        """The options that are written, by name."""
        return {f"--{name}": value is not None for name, value in self._written.items()}

    @property
    def _written(self) -> dict[str, Any]:
        """The fields of `DrawRequest`, None if they are not written."""
        names = ("draws", "seed", "workers", "ray")
        return {name: getattr(self, name) for name in names}


@options_first("overrides scale as_json allow_oom engine draws seed ops stage top")
def run(
    question: Question,
    output: Output,
    operators: Operators,
    trace: Trace,
    draws: Draws,
    *,
    allow_oom: AllowOomOption = False,
    engine: Literal["auto", "simpy", "compiled"] = "auto",
    explain_settings: bool = False,
) -> None:
    """Simulate one training iteration: its time, where the time goes, and memory per GPU.

    Args:
        engine: execution engine; all give bit-identical results.
        explain_settings: say what decides each setting, instead of simulating.

    If the scenario does not fit, exits with 3 and names the cheapest change that makes it fit.

    With --ops, prints each operator's count, shape, FLOPs, bytes, seconds and bottleneck, and the
    entry of the hardware profile that its time comes from. The rows add up to the breakdown.

    With --draws, the iteration is drawn many times with what varies: kernels, collectives, GPUs and
    more (section variation). The answer is a distribution and the reasons for it.

    With --explain-settings, says whether --set, the scenario's file, its software stack or
    simtrain's default decides each setting, with the stack's source.

    Example: simtrain run table5_175b_present --set parallelism.interleave=1

    Example: simtrain run table5_175b_present --draws 1000 --seed 7

    Example: simtrain run table5_175b_present --trace trace.json.gz --trace-microbatches 0,1
    """
    if explain_settings:
        others = {"--ops": operators.ops, "--trace": trace.trace, **draws.options}
        refuse(others, "has no effect with --explain-settings")
        _show_settings(question.load(), output)
        return
    operators.check()
    trace.check()
    if operators.ops:
        refuse(draws.options, "has no effect with --ops")
    scenario = question.load()
    result = simulate_with_status(scenario, allow_oom, engine)
    trace.write(result)
    if operators.ops:
        _show_operators(result, operators, output)
    else:
        _show_result(result, draws.of(result), output)


def _show_settings(scenario: Scenario, output: Output) -> None:
    from simtrain.scenario.resolved import resolved_settings
    from simtrain.views.settings import settings_view

    resolved = resolved_settings(scenario)
    show(output, resolved, partial(settings_view, resolved), scenario.cluster)


def _show_operators(result: Result, operators: Operators, output: Output) -> None:
    from simtrain.views.operators import operators_view

    table, scenario = result.operators(operators.stage), result.scenario
    num_listed = operators.top or _OPERATORS
    view = partial(operators_view, table, scenario.name or "unnamed", num_listed)
    show(output, table, view, scenario.cluster)


def _show_result(result: Result, drawn: DrawnTimes | None, output: Output) -> None:
    from simtrain.iteration.report.remarks import RunReport
    from simtrain.studies.variation.result import VariedRun
    from simtrain.studies.warnings import warnings_on
    from simtrain.views.result import result_view

    warnings = warnings_on(result)
    show(
        output,
        VariedRun(RunReport(result, warnings), drawn),
        lambda: result_view(result, warnings, drawn),
        result.scenario.cluster,
    )
