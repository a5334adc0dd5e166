"""Transfers and time of an offloaded optimizer, by hand and as laws."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.scenario import Scenario
from simtrain.workload.work import HostResource, HostWork
from tests.helpers.toys import NARROW, num_parameters, plan_of, run, zero


def offloaded(stage: int, **sections: Any) -> Scenario:
    grid = {} if stage else {"data": 1}
    return zero(stage, grid, memory={"offload_optimizer": True}, **sections)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", [{}, NARROW, {"compute": "fp16", "gradients": "fp16"}])
def test_offload_by_hand(stage: int, precision: dict[str, str]) -> None:
    """Gradients cross the link, one thread of the host moves 28 bytes per parameter, 16-bit
    parameters come back.
    """
    scenario = offloaded(stage, precision=precision)
    free = {"memory_bound__kernel_latency": 0.0, "memory_bound__stream_bandwidth": 2e12}
    link = {"host_link__bandwidth": 20e9, "host_link__adam_thread_bandwidth": 7e9}
    part = math.ceil(num_parameters(scenario) / scenario.parallelism.data)
    spans = {span.name: span for span in run(scenario, **free, **link).timeline.spans()}
    size = scenario.gradient_bytes
    assert spans["gradients to host"].duration_s == pytest.approx(part * size / 20e9)
    assert spans["gradient norm"].duration_s == pytest.approx(part * size / 2e12)
    held = part if stage >= 2 else num_parameters(scenario)
    assert spans["Adam"].duration_s == pytest.approx(
        part * (28 / 7e9 + 2 / 20e9) + held * size / 2e12
    )


@given(data=st.integers(2, 9), stage=st.integers(1, 3))
@settings(max_examples=20)
def test_offload_moves_every_parameter_to_a_host_and_back(data: int, stage: int) -> None:
    """Each parameter moves once. Shards have equal sizes, so an uneven division rounds up."""
    scenario = zero(stage, {"data": data}, memory={"offload_optimizer": True})
    (step,) = plan_of(scenario).steps
    works = (op.work for op in (*step["to_host"], *step["update"]))
    moved = [work for work in works if isinstance(work, HostWork)]
    assert [work.resource for work in moved] == [
        HostResource.LINK,
        HostResource.ADAM,
        HostResource.LINK,
    ]
    whole = num_parameters(scenario)
    for work, size in zip(moved, (4, 28, 2), strict=True):
        assert size * whole <= work.num_bytes * data < size * (whole + data)


def test_offload_is_optimizer_time_and_nothing_else() -> None:
    on_device, on_host = (
        run(zero(1, memory={"offload_optimizer": offload})).breakdown for offload in (False, True)
    )
    added_s = on_host.total_s - on_device.total_s
    assert added_s > 0
    assert on_host.optimizer_s - on_device.optimizer_s == pytest.approx(added_s)
    assert on_host.data_communication_s == pytest.approx(on_device.data_communication_s)


def test_parameters_from_the_host_are_gathered_last() -> None:
    spans = {span.name: span for span in run(offloaded(2)).timeline.spans()}
    assert spans["parameter all-gather"].start_s == spans["Adam"].end_s
    assert "parameter all-gather" not in {s.name for s in run(offloaded(3)).timeline.spans()}
