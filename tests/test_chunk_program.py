"""One pass of a chunk on the engine: what is exposed, hidden, slowed and waited for, by hand.

The toy machine launches kernels for free and lets them share it without slowing each other; a
property of the machine is switched on where a test is about it.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import a100, changed, layer_scenarios, paper_scenario, pricer_of, shape_of

from simtrain.engine import simulate
from simtrain.hardware.profile import HardwareProfile
from simtrain.programs.chunk import (
    COMMUNICATION,
    COMPUTE,
    HOST,
    ActionTime,
    chunk_program,
    simulate_chunk,
)
from simtrain.scenario import Scenario
from simtrain.workload.chunk import Chunk
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Collective

TOY = changed(a100(), host__issue=0.0, overlap__slowdown=0.0)


def order_of(
    scenario: Scenario, *, backward: bool, hide: bool = True, num_layers: int = 1
) -> IssueOrder:
    chunk, recompute = Chunk(num_layers), scenario.recompute
    run = chunk.backward if backward else chunk.forward
    return run(shape_of(scenario), recompute, hide=hide)


def costs(scenario: Scenario, profile: HardwareProfile, order: IssueOrder) -> dict[str, float]:
    pricer = pricer_of(scenario, profile)
    return {op.name: pricer.cost(op).duration_s for op in order.ops()}


def run(scenario: Scenario, profile: HardwareProfile, order: IssueOrder) -> ActionTime:
    return simulate_chunk(order, pricer_of(scenario, profile))


@pytest.mark.parametrize("sequence", [False, True])
def test_a_forward_pass_hides_nothing(sequence: bool) -> None:
    scenario = paper_scenario("22B", sequence=sequence)
    order = order_of(scenario, backward=False)
    cost = costs(scenario, TOY, order)
    time = run(scenario, TOY, order)
    collectives = {op.name for op in order.ops() if isinstance(op, Collective)}
    assert time.duration_s == pytest.approx(math.fsum(cost.values()))
    assert time.exposed_communication_s == pytest.approx(sum(cost[n] for n in collectives))
    assert time.recompute_s == 0


@pytest.mark.parametrize("num_layers", [2, 3])
def test_layers_follow_each_other(num_layers: int) -> None:
    scenario = paper_scenario("22B")
    one = run(scenario, TOY, order_of(scenario, backward=False))
    many = run(scenario, TOY, order_of(scenario, backward=False, num_layers=num_layers))
    ends = [(layer + 1) * one.duration_s for layer in range(num_layers)]
    assert many.layer_ends_s == pytest.approx(ends)
    assert many.duration_s == pytest.approx(num_layers * one.duration_s)


# Each collective of the backward pass with the kernels that it runs beside.
BASELINE = {
    "MLP f": ("h→4h weight gradient",),
    "attention f": ("QKV weight gradient", "QKV bias gradient"),
}
SEQUENCE = {
    "MLP ḡ": (),
    "MLP g redone": ("h→4h input gradient",),
    "MLP g": ("h→4h weight gradient",),
    "attention ḡ": (),
    "attention g redone": ("QKV input gradient",),
    "attention g": ("QKV weight gradient", "QKV bias gradient"),
}


def backward_by_hand(
    cost: dict[str, float], beside: dict[str, tuple[str, ...]], slowdown: float
) -> float:
    """Kernels one after another; a pair of work w and communication c takes max + slowdown · min.

    Both run at 1/(1 + slowdown) until the shorter has ended, after (1 + slowdown) · min; of the
    longer max - min is left.
    """
    hidden = {name for kernels in beside.values() for name in kernels}
    alone = math.fsum(s for name, s in cost.items() if name not in hidden and name not in beside)
    pairs = [
        (cost[collective], math.fsum(cost[kernel] for kernel in kernels))
        for collective, kernels in beside.items()
    ]
    return alone + math.fsum(max(pair) + slowdown * min(pair) for pair in pairs)


@pytest.mark.parametrize("slowdown", [0.0, 0.3])
@pytest.mark.parametrize("link_bytes_per_s", [30e9, 300e9, 3000e9])
@pytest.mark.parametrize(("sequence", "beside"), [(False, BASELINE), (True, SEQUENCE)])
def test_a_backward_pass_hides_collectives_behind_gradients(
    sequence: bool, beside: dict[str, tuple[str, ...]], link_bytes_per_s: float, slowdown: float
) -> None:
    """With slow links collectives are longer than what hides them, with fast ones shorter."""
    profile = changed(TOY, intra_node__bandwidth=link_bytes_per_s, overlap__slowdown=slowdown)
    scenario = paper_scenario("22B", sequence=sequence)
    order = order_of(scenario, backward=True)
    time = run(scenario, profile, order)
    expected = backward_by_hand(costs(scenario, profile, order), beside, slowdown)
    assert time.duration_s == pytest.approx(expected)


def test_without_overlap_a_backward_pass_is_the_sum_of_its_ops() -> None:
    scenario = paper_scenario("22B")
    order = order_of(scenario, backward=True, hide=False)
    total = math.fsum(costs(scenario, TOY, order).values())
    assert run(scenario, TOY, order).duration_s == pytest.approx(total)


def test_recompute_is_told_from_compute() -> None:
    full, none = (paper_scenario("22B", recompute=name) for name in ("full", "none"))
    forward = run(none, TOY, order_of(none, backward=False))
    again = run(full, TOY, order_of(full, backward=True))
    plain = run(none, TOY, order_of(none, backward=True))
    assert again.recompute_s == pytest.approx(forward.compute_s)
    assert again.compute_s == pytest.approx(plain.compute_s)
    assert again.duration_s == pytest.approx(forward.duration_s + plain.duration_s)


ISSUE_S = 10e-3


def test_a_slow_host_bounds_the_device() -> None:
    """A launch takes longer than any kernel: the last kernel starts when all are launched."""
    scenario, profile = paper_scenario("22B"), changed(TOY, host__issue=ISSUE_S)
    order = order_of(scenario, backward=False)
    cost = costs(scenario, profile, order)
    assert max(cost.values()) < ISSUE_S
    time = run(scenario, profile, order)
    assert time.duration_s == pytest.approx(
        len(order.nodes) * ISSUE_S + cost["MLP dropout and residual"]
    )
    assert time.launch_s == pytest.approx(time.duration_s - math.fsum(cost.values()))


def test_a_host_that_runs_ahead_is_waited_for_once() -> None:
    """Every kernel takes longer than a launch, so that only the first launch is seen."""
    scenario, profile = paper_scenario("22B"), changed(TOY, host__issue=1e-6)
    order = order_of(scenario, backward=False)
    assert min(costs(scenario, profile, order).values()) > 1e-6
    assert run(scenario, profile, order).launch_s == pytest.approx(1e-6)


def test_streams_of_a_program() -> None:
    """A launch a kernel on the host, and every op on the stream of its kind."""
    scenario = paper_scenario("22B", sequence=True)
    order = order_of(scenario, backward=True)
    program, tasks = chunk_program(order, pricer_of(scenario, TOY))
    queues = program.queues()
    assert set(queues) == {HOST, COMPUTE, COMMUNICATION}
    assert len(queues[HOST]) == len(tasks) == len(order.nodes)
    for op, task in zip(order.ops(), tasks, strict=True):
        assert task in queues[COMMUNICATION if isinstance(op, Collective) else COMPUTE]


SCENARIOS = layer_scenarios(max_tensor=8)


@given(SCENARIOS, st.booleans(), st.booleans())
def test_parts_add_up_to_the_makespan(scenario: Scenario, backward: bool, hide: bool) -> None:
    order, pricer = order_of(scenario, backward=backward, hide=hide), pricer_of(scenario, a100())
    program, _ = chunk_program(order, pricer)
    timeline = simulate(program)
    time = simulate_chunk(order, pricer)
    assert time.duration_s == pytest.approx(timeline.makespan_s)
    assert time.compute_s + time.recompute_s == pytest.approx(timeline.busy_s()[COMPUTE])
    assert 0 <= time.exposed_communication_s <= timeline.busy_s().get(COMMUNICATION, 0) + 1e-12
    assert time.layer_ends_s == pytest.approx((timeline.makespan_s,))


@given(SCENARIOS)
def test_hiding_is_never_slower(scenario: Scenario) -> None:
    shown, hidden = (
        run(scenario, a100(), order_of(scenario, backward=True, hide=hide))
        for hide in (False, True)
    )
    assert hidden.duration_s <= shown.duration_s * (1 + 1e-9)


@given(layer_scenarios(max_tensor=1), st.booleans())
def test_one_rank_communicates_with_nobody(scenario: Scenario, backward: bool) -> None:
    order = order_of(scenario, backward=backward)
    program, _ = chunk_program(order, pricer_of(scenario, a100()))
    assert COMMUNICATION not in program.queues()
    assert run(scenario, a100(), order).exposed_communication_s == 0
