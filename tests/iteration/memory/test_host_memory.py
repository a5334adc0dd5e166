"""Bytes of offloaded states on GPUs and hosts against the table of ZeRO-Offload."""

from typing import Any

import pytest

from simtrain.hardware.load import load_profile
from simtrain.iteration.memory.buffers import HostMemory, host_bytes, rank_states
from simtrain.iteration.memory.report import memory_report
from simtrain.scenario import Scenario
from tests.helpers.toys import num_parameters, plan_of, zero

OFFLOAD = {"offload_optimizer": True}


def of_host(memory: dict[str, Any], data: int) -> Scenario:
    """Return a scenario of `data` replicas in fp16 whose sizes every number of them divides."""
    half = {"compute": "fp16", "gradients": "fp16"}
    stage = 0 if data == 1 else 2
    return zero(stage, {"data": data}, memory=memory, precision=half, cluster="v100_dgx2")


def host_of(scenario: Scenario) -> HostMemory:
    host = memory_report(plan_of(scenario), load_profile("v100_dgx2")).host
    assert host is not None
    return host


@pytest.mark.parametrize("data", [1, 4])
def test_zero_offload_keeps_fourteen_of_sixteen_bytes_on_the_host(data: int) -> None:
    """Ren et al. 2021, Table 1: 14M bytes on the host, and the fp32 gradients that Adam reads."""
    plans = [plan_of(of_host(memory, data)) for memory in (OFFLOAD, {})]
    (offloaded, _), whole = plans, num_parameters(of_host({}, data))
    (parameters,) = offloaded.stage_parameters
    assert data * host_bytes(offloaded.step_options, parameters) == (14 + 4) * whole
    on_gpu, everything = (rank_states(plan.step_options, parameters) for plan in plans)
    assert data * (everything.total_bytes - on_gpu.total_bytes) == 12 * whole


def test_a_node_adds_up_its_own_ranks_only() -> None:
    """16 GPUs of a node share its host; 32 replicas are two nodes with half of the states each."""
    whole = num_parameters(of_host(OFFLOAD, 2))
    for data, share in ((2, 1), (16, 1), (32, 2)):
        node = host_of(of_host(OFFLOAD, data))
        assert node.needed_bytes * share == 18 * whole
        assert node.capacity_bytes == 1500 * 10**9
