"""A pass on the engine: exposed, hidden, slowed and waiting time, by hand.

The toy machine launches kernels in no time, and concurrent kernels do not slow each other down. A
test changes one of these properties if it is about it.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.programs.pass_tasks import (
    COMMUNICATION,
    COMPUTE,
    HOST,
    PassTime,
    pass_program,
    simulate_pass,
)
from simtrain.scenario import Scenario
from simtrain.workload.passes import Pass, record_pass
from simtrain.workload.work import Collective
from tests.helpers.toys import (
    a100,
    changed,
    chunk_with,
    layer_scenarios,
    machine_of,
    ops_of,
    paper_scenario,
    pass_with,
)

TOY = changed(a100(), host__issue=0.0, overlap__slowdown=0.0)


def layers_pass(
    scenario: Scenario, *, backward: bool, overlaps: bool = True, num_layers: int = 1
) -> Pass:
    chunk = chunk_with(scenario, num_layers)
    return pass_with(scenario, chunk, "B" if backward else "F", overlaps=overlaps)


def op_seconds(profile: HardwareProfile, one: Pass) -> dict[str, float]:
    model = machine_of(profile).model
    return {op.name: model.seconds(op.work) for op in ops_of(one)}


def run(profile: HardwareProfile, one: Pass) -> PassTime:
    return simulate_pass(record_pass(one), machine_of(profile).pass_machine())


@pytest.mark.parametrize("sequence", [False, True])
def test_a_forward_pass_hides_nothing(sequence: bool) -> None:
    scenario = paper_scenario("22B", sequence=sequence)
    forward = layers_pass(scenario, backward=False)
    seconds, time = op_seconds(TOY, forward), run(TOY, forward)
    collectives = {op.name for op in ops_of(forward) if isinstance(op.work, Collective)}
    assert time.duration_s == pytest.approx(math.fsum(seconds.values()))
    assert time.exposed_communication_s == pytest.approx(sum(seconds[n] for n in collectives))
    assert time.recompute_s == 0


@pytest.mark.parametrize("num_layers", [2, 3])
def test_layers_follow_each_other(num_layers: int) -> None:
    scenario = paper_scenario("22B")
    one = run(TOY, layers_pass(scenario, backward=False))
    many = run(TOY, layers_pass(scenario, backward=False, num_layers=num_layers))
    ends = [(layer + 1) * one.duration_s for layer in range(num_layers)]
    assert many.layer_ends_s == pytest.approx(ends)
    assert many.duration_s == pytest.approx(num_layers * one.duration_s)


# Each collective of the backward pass, and the kernels that run at the same time.
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
    seconds: dict[str, float], beside: dict[str, tuple[str, ...]], slowdown: float
) -> float:
    """Return the time of kernels that run one after another, some at the same time as a collective.

    A kernel of w and a collective of c together take max(w, c) + slowdown · min(w, c): both run at
    1/(1 + slowdown) until the shorter ends, after (1 + slowdown) · min, and max - min of the longer
    is left then.
    """
    hidden = {name for kernels in beside.values() for name in kernels}
    alone = math.fsum(s for name, s in seconds.items() if name not in {*hidden, *beside})
    pairs = [
        (seconds[collective], math.fsum(seconds[kernel] for kernel in kernels))
        for collective, kernels in beside.items()
    ]
    return alone + math.fsum(max(pair) + slowdown * min(pair) for pair in pairs)


@pytest.mark.parametrize("slowdown", [0.0, 0.3])
@pytest.mark.parametrize("link_bytes_per_s", [30e9, 300e9, 3000e9])
@pytest.mark.parametrize(("sequence", "beside"), [(False, BASELINE), (True, SEQUENCE)])
def test_a_backward_pass_hides_collectives_behind_gradients(
    sequence: bool, beside: dict[str, tuple[str, ...]], link_bytes_per_s: float, slowdown: float
) -> None:
    """With slow links collectives are longer than the kernels that hide them, with fast links
    shorter.
    """
    profile = changed(TOY, intra_node__bandwidth=link_bytes_per_s, overlap__slowdown=slowdown)
    backward = layers_pass(paper_scenario("22B", sequence=sequence), backward=True)
    expected = backward_by_hand(op_seconds(profile, backward), beside, slowdown)
    assert run(profile, backward).duration_s == pytest.approx(expected)


def test_without_overlap_a_backward_pass_is_the_sum_of_its_ops() -> None:
    backward = layers_pass(paper_scenario("22B"), backward=True, overlaps=False)
    total = math.fsum(op_seconds(TOY, backward).values())
    assert run(TOY, backward).duration_s == pytest.approx(total)


def test_recompute_time_is_separate_from_compute() -> None:
    full, none = (paper_scenario("22B", recompute=name) for name in ("full", "none"))
    forward = run(TOY, layers_pass(none, backward=False))
    again = run(TOY, layers_pass(full, backward=True))
    plain = run(TOY, layers_pass(none, backward=True))
    assert again.recompute_s == pytest.approx(forward.compute_s)
    assert again.compute_s == pytest.approx(plain.compute_s)
    assert again.duration_s == pytest.approx(forward.duration_s + plain.duration_s)


ISSUE_S = 10e-3


def test_a_slow_host_bounds_the_device() -> None:
    """A launch takes longer than any kernel, so the last kernel starts when all are launched."""
    profile = changed(TOY, host__issue=ISSUE_S)
    forward = layers_pass(paper_scenario("22B"), backward=False)
    seconds = op_seconds(profile, forward)
    assert max(seconds.values()) < ISSUE_S
    time = run(profile, forward)
    launched_s = len(ops_of(forward)) * ISSUE_S
    assert time.duration_s == pytest.approx(launched_s + seconds["MLP dropout and residual"])
    assert time.launch_s == pytest.approx(time.duration_s - math.fsum(seconds.values()))


def test_only_the_first_launch_of_a_fast_host_is_exposed() -> None:
    """Every kernel takes longer than a launch, so kernels hide all launches but the first."""
    profile = changed(TOY, host__issue=1e-6)
    forward = layers_pass(paper_scenario("22B"), backward=False)
    assert min(op_seconds(profile, forward).values()) > 1e-6
    assert run(profile, forward).launch_s == pytest.approx(1e-6)


def test_streams_of_a_program() -> None:
    """The host has one launch per kernel, and each op is on the stream of its kind."""
    backward = layers_pass(paper_scenario("22B", sequence=True), backward=True)
    program = pass_program(record_pass(backward), machine_of(TOY).pass_machine())
    queues, ops = program.graph.queues(), ops_of(backward)
    assert set(queues) == {HOST, COMPUTE, COMMUNICATION}
    assert queues[HOST] == [*range(0, 2 * len(ops), 2)]
    for op, task in zip(ops, range(1, program.num_tasks, 2), strict=True):
        assert task in queues[COMMUNICATION if isinstance(op.work, Collective) else COMPUTE]


SCENARIOS = layer_scenarios(max_tensor=8)


@given(SCENARIOS)
def test_hiding_is_never_slower(scenario: Scenario) -> None:
    shown, hidden = (
        run(a100(), layers_pass(scenario, backward=True, overlaps=overlaps))
        for overlaps in (False, True)
    )
    assert hidden.duration_s <= shown.duration_s * (1 + 1e-9)


@given(layer_scenarios(max_tensor=1), st.booleans())
def test_one_rank_has_no_communication(scenario: Scenario, backward: bool) -> None:
    one = layers_pass(scenario, backward=backward)
    program = pass_program(record_pass(one), machine_of(a100()).pass_machine())
    assert COMMUNICATION not in program.graph.queues()
    assert run(a100(), one).exposed_communication_s == 0
