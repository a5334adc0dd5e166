"""The law of spans: their sums are those of the breakdown and of the operators."""

import numpy as np
import pytest

from simtrain.iteration.report.breakdown import field_of
from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import ACTIVITIES, Activity, StageStream


def assert_spans_add_up(result: Result) -> None:
    """Assert it for each stage, stream and kind, to 1e-9 of the iteration time."""
    spans, tasks, whole_s = result.spans, result.iteration.tasks, result.iteration_time_s
    fields = np.array([*map(field_of, tasks.parts)])[tasks.part_of[spans.task]]
    fields = np.where(spans.pass_number >= 0, "pass", fields)

    def seconds(stage: int, field: str, *streams: StageStream) -> float:
        chosen = (spans.stage == stage) & (fields == field) & np.isin(spans.stream, streams)
        return float(spans.seconds[chosen].sum())

    idle_s, bars = result.iteration.idle_seconds(), result.bars
    is_recompute = bars.activity == ACTIVITIES.index(Activity.RECOMPUTE)
    kinds = {"pass", *map(field_of, tasks.parts), "tensor_communication_s", "data_communication_s"}
    for stage, breakdown in enumerate(result.stages):
        busy = {kind: seconds(stage, kind, StageStream.OWN) for kind in sorted(kinds)}
        transfers_s, buckets_s, norms_s = idle_s[stage].tolist()
        expected = {
            "recompute_s": bars.seconds[is_recompute & (bars.stage == stage)].sum(),
            "pipeline_communication_s": busy.get("pipeline_communication_s", 0.0) + transfers_s,
            "optimizer_s": busy.get("optimizer_s", 0.0) + norms_s,
            "bubble_s": whole_s - sum(busy.values()) - idle_s[stage].sum(),
        }
        for name, sum_s in expected.items():
            assert getattr(breakdown, name) == pytest.approx(sum_s, abs=1e-9 * whole_s), name
        in_passes_s = breakdown.compute_s + breakdown.recompute_s + breakdown.launch_s
        in_passes_s += breakdown.tensor_communication_s + breakdown.data_communication_s
        collectives_s = busy["tensor_communication_s"] + busy["data_communication_s"] + buckets_s
        assert in_passes_s == pytest.approx(busy["pass"] + collectives_s, abs=1e-9 * whole_s)
        table = result.operators(stage)
        for cause in ("pipeline_communication", "optimizer"):
            rows, field = table.of_cause(cause), f"{cause}_s"
            spans_s, exposed_s = seconds(stage, field, *StageStream), getattr(breakdown, field)
            total_s, sum_s = (sum(row.total_s for row in rows), sum(row.exposed_s for row in rows))
            assert sum_s == pytest.approx(exposed_s, abs=1e-9 * whole_s), cause
            assert total_s == pytest.approx(spans_s, abs=1e-9 * whole_s), cause
