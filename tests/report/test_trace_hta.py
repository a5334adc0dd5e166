"""Holistic Trace Analysis reads our traces, and measures in them what the report says.

HTA and its dependencies take hundreds of megabytes, so only CI installs it.
"""

import pathlib
from typing import Any

import pytest

from simtrain.programs.parts import SynchronizationPart
from simtrain.report.result import Result
from simtrain.report.trace import write_trace
from tests.helpers.toys import ONE_STAGE, run, small

pytestmark = [pytest.mark.slow, pytest.mark.ci]

COMMUNICATION = {"tensor_communication", "data_communication"}
GROUP = {"tensor": 4, "pipeline": 1, "sequence_parallel": True}
SCENARIOS = {
    "pipeline": small({"sequence_parallel": True}),
    "tensor": small(GROUP),
    "buckets": small(ONE_STAGE, overlap={"data_parallel": True}),
}


def analyzed(result: Result, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """HTA's analysis of the traces of all ranks, in which every pass shows its kernels."""
    # By default HTA cuts times to whole microseconds.
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    analysis = pytest.importorskip("hta.trace_analysis", reason="only CI installs HTA")
    write_trace(result, folder, window_s=(0.0, result.iteration_time_s))
    return analysis.TraceAnalysis(trace_dir=str(folder))


def synchronization_s(result: Result, stage: int) -> float:
    """Time in which the host posts messages: ours is communication, HTA's is idle."""
    tasks, num_parts = result.iteration.tasks, result.iteration.tasks.num_parts
    return sum(
        int(num_parts[stage, place]) * result.seconds.of_part(part)
        for place, part in enumerate(tasks.parts)
        if isinstance(part, SynchronizationPart)
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_breakdown_and_the_overlap_of_hta_are_ours(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times to a microsecond, the share of hidden communication to 0.01 points (HTA rounds it).

    The share is compared without pipelines: a second that two collectives share counts once in
    HTA's, and for each of them in ours.
    """
    result = run(SCENARIOS[name])
    analysis = analyzed(result, tmp_path / "traces", monkeypatch)
    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    overlaps = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    for stage, ours in enumerate(result.stages):
        rank = stage * result.plan.mesh.stride("pp")
        compute_s = ours.compute_s + ours.recompute_s + ours.optimizer_s
        assert times["compute_time(us)"][rank] == pytest.approx(1e6 * compute_s, abs=1)
        communication_s = (
            ours.tensor_communication_s + ours.pipeline_communication_s + ours.data_communication_s
        )
        exposed_s = communication_s - synchronization_s(result, stage)
        assert times["non_compute_time(us)"][rank] == pytest.approx(1e6 * exposed_s, abs=1)
        if result.num_stages == 1:
            rows = [row for row in result.operators(stage).rows if row.cause in COMMUNICATION]
            hidden = sum(row.hidden_s for row in rows) / sum(row.total_s for row in rows)
            assert hidden > 0
            overlap = overlaps["comp_comm_overlap_pctg"][rank]
            assert overlap == pytest.approx(100 * hidden, abs=0.01)
