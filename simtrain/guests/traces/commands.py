"""Commands on traces of PyTorch's profiler: `compare SCENARIO TRACE`, and `validate TRACES`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.commands.compare import Comparer
from simtrain.commands.options import refuse
from simtrain.commands.output import Output, show
from simtrain.commands.printing import status
from simtrain.commands.question import Question, simulate_with_status
from simtrain.commands.validate import Measured, Validator

if TYPE_CHECKING:
    from simtrain.guests.traces.ranks import RankTrace


def _read(paths: Iterable[Path]) -> list[RankTrace]:
    from simtrain.guests.traces.events import trace_files
    from simtrain.guests.traces.ranks import read_rank_traces

    with status("reading traces"):
        return [
            rank for path in paths for file in trace_files(path) for rank in read_rank_traces(file)
        ]


class TraceComparer(Comparer):
    """Shows how the ranks of traces differ from a scenario."""

    name = "traces"

    def takes(self, file: Path) -> bool:
        from simtrain.guests.traces.events import is_trace

        return is_trace(file)

    def compare(
        self, questions: Sequence[Question], files: Sequence[Path], output: Output, allow_oom: bool
    ) -> None:
        from simtrain.guests.traces.study import compare_with_traces
        from simtrain.guests.traces.view import trace_view

        message = f"traces are compared with one scenario, not with {len(questions)}"
        fix = "name one scenario before the traces"
        refuse({"SCENARIO": len(questions) != 1}, message, fix)
        (question,) = questions
        result = simulate_with_status(question.load(), allow_oom)
        with status("comparing"):
            comparison = compare_with_traces(result, _read(files), question.scenario)
        show(output, comparison, lambda: trace_view(comparison), [result.scenario.cluster])


class TracedSteps(Validator):
    """Finds the rank that a measured training step waits for."""

    name = "steps"

    def takes(self, file: Path) -> bool:
        from simtrain.guests.traces.events import is_trace

        return is_trace(file)

    def validate(self, measured: Measured) -> None:
        from simtrain.guests.traces.stragglers import (
            find_stragglers,
            step_of_traces,
            straggler_view,
        )

        refuse(measured.options, "has no effect on one step, which is replayed from its own times")
        report = find_stragglers(step_of_traces(_read(measured.files)))
        show(measured.output, report, lambda: straggler_view(report))
