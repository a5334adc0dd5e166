"""States on the host and on NVMe: bytes and times of ZeRO-Offload and ZeRO-Infinity, as laws."""

import math
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.hardware.load import load_profile
from simtrain.iteration.plan import LAST_TURN, MIDDLE_TURN
from simtrain.iteration.programs.parts import offloaded_bytes
from simtrain.iteration.programs.seconds import passes_of
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.ops import Op
from simtrain.workload.optimizer import update_ops
from simtrain.workload.record import record_of
from simtrain.workload.work import HostResource, HostWork
from tests.helpers.toys import changed, num_parameters, plan_of, with_microbatches, zero

HALF = {"compute": "fp16", "gradients": "fp16"}
OFFLOAD = {"offload_optimizer": True, "offload_gradients": True}
INFINITY = OFFLOAD | {"offload_parameters": True}
LINK, ADAM = HostResource.LINK, HostResource.ADAM
READ, WRITE = HostResource.NVME_READ, HostResource.NVME_WRITE


def of_host(
    memory: dict[str, Any], data: int = 1, *, microbatches: int = 1, **sections: Any
) -> Scenario:
    """Return a scenario of `data` replicas in fp16 whose sizes every number of them divides."""
    stage = sections.pop("stage", 0 if data == 1 else 3)
    sections = {"precision": HALF, "cluster": "v100_dgx2"} | sections
    scenario = zero(stage, {"data": data}, memory=memory, **sections)
    return with_microbatches(scenario, microbatches)


def host_ops(scenario: Scenario) -> list[Op]:
    """Return the host's work of a rank in an iteration: of its passes, step and update."""
    plan, result = plan_of(scenario), simulate(scenario)
    tasks, passes = result.iteration.tasks, dict(passes_of(plan))
    ops = [
        op
        for part, number in zip(tasks.parts, tasks.num_parts[0].tolist(), strict=True)
        for op in (record_of(passes[part]).ops if part in passes else ())
        for _ in range(number)
    ]
    (step,) = plan.steps
    ops += [op for field in step.values() for op in field]
    ops += update_ops(plan.step_options, plan.stage_parameters[0])
    return [op for op in ops if isinstance(op.work, HostWork)]


def bytes_of(scenario: Scenario) -> dict[HostResource, int]:
    """Return the bytes of a rank's work on each resource of its host."""
    sums = dict.fromkeys(HostResource, 0)
    for op in host_ops(scenario):
        assert isinstance(op.work, HostWork)
        sums[op.work.resource] += op.work.num_bytes
    return sums


def run(scenario: Scenario, **changes: Any) -> Result:
    return simulate(scenario, changed(load_profile("v100_dgx2"), **changes))


@pytest.mark.parametrize("data", [1, 2, 4])
@pytest.mark.parametrize("delayed", [False, True])
def test_zero_offload_moves_four_bytes_per_parameter(data: int, delayed: bool) -> None:
    """Its minimum of 4M bytes (Ren et al. 2021, Section 3.3): gradients out, parameters back."""
    memory = OFFLOAD | {"delayed_update": delayed}
    scenario = of_host(memory, data, stage=0 if data == 1 else 2)
    parameters = num_parameters(scenario)
    assert data * bytes_of(scenario)[LINK] == 4 * parameters
    assert data * bytes_of(scenario)[ADAM] == 28 * parameters


@pytest.mark.parametrize("data", [1, 2, 4])
def test_zero_infinity_moves_parameters_twice_and_gradients_once(data: int) -> None:
    """Rajbhandari et al. 2021, Section 4.1, count the load for the recompute apart: 8 bytes.

    Here a recompute uses the parameters of its backward pass: 2 + 2 bytes in, 2 out.
    """
    scenario = of_host(INFINITY, data, recompute="full")
    assert data * bytes_of(scenario)[LINK] == 6 * num_parameters(scenario)


@pytest.mark.parametrize("data", [1, 2])
def test_zero_infinity_reads_and_writes_sixteen_bytes_of_the_optimizer(data: int) -> None:
    """Section 4.1: 2 × 16 bytes per parameter, fp32 gradients included; parameters on top."""
    scenario = of_host(INFINITY | {"nvme": "optimizer", "sub_group_size": 10**6}, data)
    moved, parameters = bytes_of(scenario), num_parameters(scenario)
    assert (data * moved[READ], data * moved[WRITE]) == (16 * parameters, 16 * parameters)
    moved = bytes_of(scenario.replace({"memory.nvme": "all"}))
    assert data * moved[READ] == (16 + 2 + 2) * parameters
    assert data * moved[WRITE] == (16 + 2) * parameters


@given(microbatches=st.integers(2, 5), data=st.sampled_from([1, 2]))
@settings(max_examples=6, deadline=None)
def test_later_microbatches_bring_the_sum_back(microbatches: int, data: int) -> None:
    """The first one only writes; m write, m - 1 read; one writes to NVMe and computes the norm."""
    scenario = of_host(INFINITY | {"nvme": "optimizer"}, data, microbatches=microbatches)
    parameters = num_parameters(scenario)
    copied = defaultdict[str, int](int)
    for op in host_ops(scenario):
        assert isinstance(op.work, HostWork)
        copied[op.name] += data * op.work.num_bytes
    assert copied["gradients to host"] == 2 * microbatches * parameters
    assert copied["gradient sum from host"] == 2 * (microbatches - 1) * parameters
    assert copied["gradients to NVMe"] == 4 * parameters
    assert copied["parameters from host"] == 4 * microbatches * parameters
    variants = plan_of(scenario).variants
    turns = {variant.turn: passes for variant, passes in variants.items() if variant.turn}
    for turn, passes in turns.items():
        (backward,) = passes.values()
        names = [op.name for op in record_of(backward).ops]
        assert ("gradient norm" in names) == (turn == LAST_TURN)
    assert set(turns) == {MIDDLE_TURN, LAST_TURN}


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_without_overlap_efficiency_follows_from_arithmetic_intensity(recompute: str) -> None:
    """Section 4: efficiency = ait · bw / (ait · bw + peak), of the passes' copies of parameters."""
    bandwidth = 2e9
    memory = {"offload_optimizer": True, "offload_parameters": True}
    scenario = of_host(memory, 2, recompute=recompute, overlap={"data_parallel": False})
    result = run(scenario, host_link__bandwidth=bandwidth, host_link__single_bandwidth=bandwidth)
    parts = result.breakdown
    computing_s = parts.compute_s + parts.recompute_s
    flops = float(sum(map(_flops_of, _pass_ops(scenario))))
    ait, peak = flops / (4 * num_parameters(scenario) / 2), flops / computing_s
    efficiency = computing_s / (computing_s + parts.host_copies_s)
    assert efficiency == pytest.approx(ait * bandwidth / (ait * bandwidth + peak))


def _pass_ops(scenario: Scenario) -> list[Op]:
    return [op for _, pass_ in passes_of(plan_of(scenario)) for op in record_of(pass_).ops]


def _flops_of(op: Op) -> int:
    return getattr(op.work, "flops", 0)


@pytest.mark.parametrize("interval", [1, 2, 4])
def test_the_intensity_of_checkpoints_is_24_hidden_sizes(interval: int) -> None:
    """Section 4.1: 24 · hd · ci FLOPs of matrices per byte, out and back.

    Its count of FLOPs leaves out the scores of attention.
    """
    recompute = {"strategy": "full", "num_layers": interval}
    scenario = of_host({}, offload="layer", recompute=recompute)
    plan, model = plan_of(scenario), scenario.model
    tokens, hidden, layers = model.seq_length, model.hidden_size, model.num_layers
    copied = sum(offloaded_bytes(plan, 0, saves_all=False))
    assert copied == 2 * tokens * hidden * layers // interval  # equation 3
    flops = 2 * 4 * 12 * tokens * layers * hidden**2
    assert sum(map(_flops_of, _pass_ops(scenario))) > flops
    assert flops / (2 * copied) == 24 * hidden * interval


@pytest.mark.parametrize("data", [2, 4, 16])
def test_all_links_together_are_faster_than_one(data: int) -> None:
    """Section 6.1: 16 GPUs of a DGX-2 reach 48 GB/s together, one of them 12."""
    memory = {"offload_optimizer": True, "offload_parameters": True}
    overlap = {"data_parallel": False}
    every, one = (
        simulate(of_host(memory | {"parameter_owners": owners}, data, overlap=overlap))
        for owners in ("all", "one")
    )
    ratio = one.breakdown.host_copies_s / every.breakdown.host_copies_s
    assert ratio == pytest.approx(min(data, 48 / 12), rel=1e-6)


@given(memory=st.sampled_from([OFFLOAD, INFINITY]), data=st.sampled_from([1, 2]))
@settings(max_examples=6, deadline=None)
def test_copies_beside_passes_hide_until_they_take_longer(
    memory: dict[str, Any], data: int
) -> None:
    """An iteration takes no less than the copies of either direction; fast links hide them."""
    overlap = {"data_parallel": data > 1}
    scenario = of_host(memory, data, overlap=overlap)
    copied = dict.fromkeys((False, True), 0)
    for op in host_ops(scenario):
        if isinstance(op.work, HostWork) and op.work.resource is LINK:
            copied[op.work.leaves] += op.work.num_bytes
    for bandwidth in (1e8, 1e10, 1e12):
        fields = {"host_link__bandwidth": bandwidth, "host_link__single_bandwidth": bandwidth}
        result = run(scenario, **fields)
        step_s = result.breakdown.optimizer_s
        assert result.iteration_time_s >= max(copied.values()) / bandwidth
        for time in result.iteration.seconds.passes.values():
            assert time.duration_s >= time.compute_s + time.recompute_s
            assert 0 <= time.exposed_host_s <= sum(copied.values()) / bandwidth
    hidden = result.iteration_time_s - step_s - result.breakdown.compute_s
    assert result.breakdown.host_copies_s < 0.01 * result.breakdown.compute_s
    assert hidden < result.breakdown.compute_s


def test_a_delayed_update_takes_the_longer_of_passes_and_adam() -> None:
    """Ren et al. 2021, Section 5.2: Adam runs beside the passes, parameters return after both."""
    scenario = of_host(OFFLOAD)
    parameters = num_parameters(scenario)
    for adam in (1e8, 1e12):
        now, later = (
            run(scenario.replace({"memory.delayed_update": delayed}), **{_ADAM: adam})
            for delayed in (False, True)
        )
        adam_s = 28 * parameters / (16 * adam)
        back_s = 2 * parameters / 12e9
        rest_s = now.iteration_time_s - adam_s - back_s
        assert later.iteration_time_s == pytest.approx(max(rest_s, adam_s) + back_s)
        spans = [span for span in later.timeline.spans() if span.name == "Adam on the host"]
        assert min(span.start_s for span in spans) == 0
        assert later.breakdown.bubble_s == pytest.approx(0, abs=1e-9)


_ADAM = "host_link__adam_bandwidth"


@given(
    groups=st.integers(1, 9),
    read=st.floats(1e8, 1e10),
    write=st.floats(1e8, 1e10),
    adam=st.floats(1e7, 1e9),
)
@settings(max_examples=15, deadline=None)
def test_groups_of_an_update_are_a_pipeline_of_three(
    groups: int, read: float, write: float, adam: float
) -> None:
    """n equal groups take r + a + w + (n - 1) max(r, a, w), with a buffer for each stage of it."""
    scenario = of_host({"offload_optimizer": True, "nvme": "optimizer"})
    size = math.ceil(num_parameters(scenario) / groups)
    scenario = scenario.replace({"memory.sub_group_size": size})
    result = run(
        scenario,
        nvme__read_bandwidth=read,
        nvme__write_bandwidth=write,
        host_link__adam_bandwidth=adam / 16,
    )
    spans = [*result.timeline.spans()]
    first = min(span.start_s for span in spans if span.name == "optimizer states from NVMe")
    last = max(span.end_s for span in spans if span.name == "states to NVMe")
    each_s = 12 * size / read, 28 * size / adam, 12 * size / write
    whole_s = sum(each_s) + (groups - 1) * max(each_s)
    # The last group may be smaller.
    assert whole_s - max(each_s) - sum(each_s) <= last - first <= whole_s * (1 + 1e-9)
    if num_parameters(scenario) % groups == 0:
        assert last - first == pytest.approx(whole_s)


def test_weight_gradients_that_are_split_off_leave_too() -> None:
    whole, split = (
        bytes_of(of_host(OFFLOAD, microbatches=3, schedule=schedule))
        for schedule in ("1f1b", "zb1p")
    )
    assert whole == split
