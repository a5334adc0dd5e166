"""Holistic Trace Analysis (HTA) measures in our traces the times that the report states.

HTA and its dependencies take hundreds of megabytes, so only CI installs it.
"""

import pathlib
from typing import Any

import pytest

from simtrain.iteration.report.result import Result
from simtrain.render.traces.write import write_trace
from simtrain.studies.simulation import simulate
from tests.helpers.traced_kernels import TRACED, measured, reported_us
from tests.helpers.traces import read_json

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def analyzed(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return HTA's breakdown and overlap for each rank."""
    # By default HTA rounds times down to whole microseconds.
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    hta = pytest.importorskip("hta.trace_analysis", reason="only CI installs HTA")
    analysis = hta.TraceAnalysis(trace_dir=str(folder))
    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    overlaps = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    return {
        "compute": times["compute_time(us)"],
        "other": times["non_compute_time(us)"],
        "overlap": overlaps["comp_comm_overlap_pctg"],
    }


def hidden_percent(result: Result) -> float:
    """Return the hidden percentage of the time of collectives, from the ops of the first stage."""
    causes = {"tensor_communication", "data_communication"}
    rows = [row for row in result.operators(0).rows if row.cause in causes]
    return 100 * sum(row.hidden_s for row in rows) / sum(row.total_s for row in rows)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", TRACED)
def test_breakdown_and_overlap_of_hta_equal_the_reports(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times agree within a microsecond, the hidden share within 0.01 percentage points, to which
    HTA rounds.
    """
    result, folder = simulate(TRACED[name]), tmp_path / "traces"
    write_trace(result, folder)
    write_trace(result, tmp_path / "t.json", window_s=(0.0, result.iteration_time_s))
    found, events = analyzed(folder, monkeypatch), read_json(tmp_path / "t.json")["traceEvents"]
    for stage in range(result.num_stages):
        rank = stage * result.plan.mesh.stride("pp")
        compute_us, exposed_us = reported_us(result, stage)
        assert found["compute"][rank] == pytest.approx(compute_us, abs=1)
        assert found["other"][rank] == pytest.approx(exposed_us, abs=1)
        own = measured(events, rank)
        percent = 100 * own.overlap_us / own.communication_us
        assert found["overlap"][rank] == pytest.approx(percent, abs=0.01)
    # In the other traces collectives overlap each other. HTA counts that time once, our ops count
    # it twice.
    if name in ("tensor", "buckets"):
        assert found["overlap"][0] == pytest.approx(hidden_percent(result), abs=0.01)
