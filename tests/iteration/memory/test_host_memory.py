"""Bytes of offloaded states on GPUs, hosts and NVMe against the tables of the papers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.hardware.load import load_profile
from simtrain.iteration.memory.buffers import ModelStates, rank_states
from simtrain.iteration.memory.host_memory import HostMemory, HostStates, host_states
from simtrain.iteration.memory.report import MemoryReport, memory_report
from simtrain.scenario import Scenario
from tests.helpers.toys import num_parameters, plan_of
from tests.iteration.programs.test_host_states import INFINITY, OFFLOAD, of_host

V100 = load_profile("v100_dgx2")


def states_of(scenario: Scenario) -> tuple[ModelStates, HostStates]:
    """Return the states of a rank on its GPU, and on its host and NVMe."""
    plan = plan_of(scenario)
    options, (parameters,) = plan.step_options, plan.stage_parameters
    on_host = host_states(options, parameters, adds_gradients=plan.has_turns)
    return rank_states(options, parameters), on_host


def host_of(scenario: Scenario) -> HostMemory:
    host = report_of(scenario).host
    assert host is not None
    return host


def report_of(scenario: Scenario) -> MemoryReport:
    return memory_report(plan_of(scenario), V100)


@pytest.mark.parametrize("data", [1, 4])
def test_zero_offload_keeps_two_of_sixteen_bytes_on_the_gpu(data: int) -> None:
    """Ren et al. 2021, Table 1: 2M bytes on the GPU and 14M on the host, a saving of eight times.

    The gradients that Adam reads in fp32 are not in the table.
    """
    scenario = of_host(OFFLOAD, data, stage=0 if data == 1 else 2)
    on_gpu, on_host = states_of(scenario)
    whole = num_parameters(scenario)
    assert on_gpu.total_bytes == 2 * whole
    assert data * (on_host.gradients_bytes + on_host.optimizer_bytes) == 14 * whole
    assert data * on_host.fp32_gradients_bytes == 4 * whole
    everything, _ = states_of(of_host({}))
    assert everything.total_bytes == 16 * whole


@pytest.mark.parametrize("data", [1, 2, 16])
@pytest.mark.parametrize("nvme", ["none", "optimizer", "parameters", "all"])
def test_zero_infinity_has_twenty_bytes_per_parameter(data: int, nvme: str) -> None:
    """Rajbhandari et al. 2021, Section 3: 2 + 2 + 16 bytes, none of them on the GPU.

    On NVMe, 16-bit gradients become the optimizer's gradients in fp32 at once.
    """
    scenario = of_host(INFINITY | {"nvme": nvme}, data)
    on_gpu, on_host = states_of(scenario)
    whole = num_parameters(scenario)
    assert on_gpu.total_bytes == 0
    expected = {
        "none": (20, 0),
        "optimizer": (2, 16),
        "parameters": (18, 2),
        "all": (0, 18),
    }[nvme]
    in_memory = on_host.memory_bytes - on_host.buffers_bytes
    assert (data * in_memory, data * on_host.nvme_bytes) == tuple(each * whole for each in expected)
    node = host_of(scenario)
    assert node.nvme_bytes == expected[1] * whole
    assert node.states_bytes >= expected[0] * whole


def test_layers_have_240_bytes_per_squared_hidden_size() -> None:
    """Equation 2: 240 · nl · hd² bytes of matrices; biases, norms and embeddings on top."""
    scenario = of_host(INFINITY, 2)
    model, matrices = scenario.model, 12 * scenario.model.num_layers
    matrices *= model.hidden_size**2
    rest = num_parameters(scenario) - matrices
    on_host = 2 * states_of(scenario)[1].memory_bytes
    assert on_host == 240 * model.num_layers * model.hidden_size**2 + 20 * rest


@given(microbatches=st.integers(1, 3), delayed=st.booleans(), nvme=st.sampled_from(["none", "all"]))
@settings(max_examples=8, deadline=None)
def test_gradients_on_the_host(microbatches: int, delayed: bool, nvme: str) -> None:
    """A delayed update has two sets; NVMe holds complete ones, so only their sums are in memory."""
    scenario = of_host(
        INFINITY | {"delayed_update": delayed, "nvme": nvme}, microbatches=microbatches
    )
    _, on_host = states_of(scenario)
    sets = (1 + delayed) * (nvme == "none" or microbatches > 1)
    assert on_host.gradients_bytes == 2 * sets * num_parameters(scenario)


@pytest.mark.parametrize("memory", [OFFLOAD, INFINITY, INFINITY | {"nvme": "all"}])
@pytest.mark.parametrize("data", [1, 2])
def test_gpus_hold_some_layers_of_offloaded_states(memory: dict[str, Any], data: int) -> None:
    """At most: the root unit, the layer that computes, one that is gathered, shards beyond."""
    overlap = {"data_parallel": data > 1}
    scenario = of_host(memory, data, overlap=overlap, microbatches=2)
    peak, whole = report_of(scenario).fullest, report_of(of_host({}, data, microbatches=2)).fullest
    assert peak.peak_bytes < whole.peak_bytes
    twice = scenario.replace({"model.num_layers": 2 * scenario.model.num_layers})
    names = ("gathered parameters", "gradient bucket")
    sizes, more = (
        [one.fullest.buffers_bytes.get(name, 0) for name in names]
        for one in (report_of(scenario), report_of(twice))
    )
    assert sizes == more and sizes[1] > 0
    assert bool(sizes[0]) == ("offload_parameters" in memory or data == 2)


def test_a_node_adds_up_its_own_ranks_only() -> None:
    """16 GPUs of a node share its host; 32 replicas are two nodes with half of the states each."""
    whole = num_parameters(of_host(INFINITY, 2))
    for data, share in ((2, 1), (16, 1), (32, 2)):
        node = host_of(of_host(INFINITY, data))
        assert node.needed_bytes * share == 20 * whole
        assert node.capacity_bytes == 1500 * 10**9 and node.nvme_capacity_bytes == 30 * 10**12
