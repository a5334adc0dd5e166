"""Merged passes on the engine: times by hand, laws, memory, and whole iterations."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from simtrain.base.mesh import Group
from simtrain.engine import simulate as run_program
from simtrain.errors import InputError
from simtrain.iteration.memory.working import MemoryReplay, merged_memory, pass_memory
from simtrain.iteration.plan import PassVariant
from simtrain.iteration.programs.pass_tasks import (
    COMMUNICATION,
    COMPUTE,
    PassMachine,
    pass_program,
    simulate_pass,
)
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.issue import OverlapPolicy
from simtrain.workload.ops import Op, Phase, collective, elementwise
from simtrain.workload.pass_record import PassBuilder, PassRecord
from simtrain.workload.passes import MergedPass, MergedRecord, issue_order, record_of
from simtrain.workload.work import Collective, CollectiveKind
from tests.helpers.expert_models import moe
from tests.helpers.toys import plan_of

DELAYS = "overlap.delayed_weight_gradients"
GROUP = Group(("ep",), 4, 4, ())


def kernel(seconds: int, phase: Phase = Phase.INPUT_GRADIENT) -> Op:
    return elementwise(f"kernel of {seconds} s", seconds, 0, phase)


def exchange(seconds: int) -> Op:
    return collective(f"exchange of {seconds} s", CollectiveKind.ALL_TO_ALL, seconds, GROUP)


def record(ops: list[Op]) -> PassRecord:
    """Return a pass in which each kernel waits for the exchanges before it."""
    builder = PassBuilder(OverlapPolicy(frozenset()))
    for op in ops:
        if isinstance(op.work, Collective):
            builder.wait(builder.launch(op))
        else:
            builder.compute(op)
    return builder.record(0, 0)


def merged(forward: list[Op], backward: list[Op], *, delays: bool = False) -> MergedRecord:
    order = issue_order(forward, backward, delays_weight_gradients=delays)
    return MergedRecord((record(forward), record(backward)), tuple(order))


def seconds_of(work: Any) -> float:
    return float(work.array_bytes if isinstance(work, Collective) else work.moved_bytes)


MACHINE = PassMachine(seconds_of, 0.0, lambda work: 0.01)


def alone_s(ops: list[Op]) -> float:
    return simulate_pass(record(ops), MACHINE).duration_s


def spans(one: MergedRecord) -> list[tuple[str, float, float]]:
    timeline = run_program(pass_program(one, MACHINE))
    return [(span.stream, span.start_s, span.end_s) for span in timeline.spans() if span.duration_s]


def test_exchanges_of_one_pass_run_beside_kernels_of_the_other() -> None:
    """The backward pass begins; each pass waits for its own exchanges only."""
    forward, backward = [kernel(3), exchange(4), kernel(2)], [kernel(1), exchange(2), kernel(5)]
    assert sorted(spans(merged(forward, backward))) == [
        (COMMUNICATION, 1.0, 3.0),  # of the backward pass, beside 3 s of the forward pass
        (COMMUNICATION, 4.0, 8.0),  # of the forward pass, beside 5 s of the backward pass
        (COMPUTE, 0.0, 1.0),
        (COMPUTE, 1.0, 4.0),
        (COMPUTE, 4.0, 9.0),
        (COMPUTE, 9.0, 11.0),
    ]
    assert (alone_s(forward), alone_s(backward)) == (9.0, 8.0)


def test_delayed_weight_gradients_let_exchanges_begin_earlier() -> None:
    backward = [kernel(1), kernel(4, Phase.WEIGHT_GRADIENT), exchange(4), kernel(1)]
    at_once, later = (merged([kernel(1)], backward, delays=delays) for delays in (False, True))
    assert (COMMUNICATION, 5.0, 9.0) in spans(at_once)
    assert (COMMUNICATION, 1.0, 5.0) in spans(later)
    times = [simulate_pass(one, MACHINE).duration_s for one in (at_once, later)]
    assert times == [10.0, 7.0]  # 1 + 4 s, exchange, 1 s; 1 s, then 4 + 1 s beside it, 1 s


def test_a_delayed_kernel_leaves_its_waits_to_the_next_one() -> None:
    """A weight gradient waits for the first exchange. So does the input gradient issued before."""
    weight = kernel(1, Phase.WEIGHT_GRADIENT)
    backward = [exchange(5), weight, kernel(2), exchange(1)]
    assert sorted(spans(merged([kernel(1)], backward, delays=True))) == [
        (COMMUNICATION, 0.0, 5.0),
        (COMMUNICATION, 7.0, 8.0),
        (COMPUTE, 0.0, 1.0),
        (COMPUTE, 5.0, 7.0),
        (COMPUTE, 7.0, 8.0),
    ]


def test_a_gather_for_a_delayed_kernel_stays_in_place() -> None:
    """The input gradient waits for the gather, as Transformer Engine's host does."""
    work = CollectiveKind.ALL_GATHER, 3, GROUP, Phase.WEIGHT_GRADIENT
    gather = collective("gather of 3 s", *work).replace(is_extra=True)
    backward = [gather, kernel(4, Phase.WEIGHT_GRADIENT), kernel(2), exchange(5)]
    assert sorted(spans(merged([kernel(1)], backward, delays=True))) == [
        (COMMUNICATION, 0.0, 3.0),
        (COMMUNICATION, 5.0, 10.0),
        (COMPUTE, 3.0, 5.0),
        (COMPUTE, 5.0, 9.0),
        (COMPUTE, 9.0, 10.0),
    ]


ops = st.lists(
    st.one_of(st.integers(1, 9).map(kernel), st.integers(1, 9).map(exchange)),
    min_size=1,
    max_size=9,
)


@given(ops, ops)
@settings(max_examples=40)
def test_laws_of_the_time_of_merged_passes(forward: list[Op], backward: list[Op]) -> None:
    """Concurrency is free. Each pass takes as long as alone, or longer, and never than in turn."""
    time = simulate_pass(merged(forward, backward), MACHINE)
    both = forward + backward
    kernels_s = sum(seconds_of(op.work) for op in both if not isinstance(op.work, Collective))
    alone = alone_s(forward), alone_s(backward)
    assert max(kernels_s, *alone) <= time.duration_s <= sum(alone)
    assert time.compute_s == kernels_s
    if not any(isinstance(op.work, Collective) for op in both):
        assert time.duration_s == kernels_s


def toy(grid: dict[str, Any] | None = None, *, merges: bool = True) -> Scenario:
    """Return eight layers with experts, and eight microbatches."""
    model = {"num_layers": 8, "hidden_size": 1024, "seq_length": 512}
    scenario = moe(None, None, model=model)
    split = {f"parallelism.{name}": value for name, value in (grid or {}).items()}
    overlap = {"overlap.merged_passes": merges, "overlap.pipeline": bool(grid)}
    return scenario.replace({"batch.global": 16 * 8, **split, **overlap})


def layers(scenario: Scenario) -> MergedPass:
    plan = plan_of(scenario)
    return MergedPass(plan.layers_pass(4, "F"), plan.layers_pass(4, "B"))


def test_a_layer_is_cut_where_megatron_cuts_it() -> None:
    """Attention, dispatch, experts, combination; backwards in the opposite order."""
    one = layers(toy())
    exchanges = [op.name for op in record_of(one).ops if isinstance(op.work, Collective)]
    assert exchanges[1:7] == [
        "token counts",
        "dispatch",
        "probability dispatch",
        "probability dispatch gradient",
        "dispatch gradient",
        "combination",
    ]
    assert exchanges[0] == "combination gradient"
    kernels = [op for op in record_of(one).ops if not isinstance(op.work, Collective)]
    is_forward = [op.phase is Phase.FORWARD for op in kernels]
    turns = [key for key, _ in itertools.groupby(is_forward)]
    assert turns == [False, True] * 9


LAYER_OPTIONS: dict[str, list[Any]] = {
    "parallelism.tensor": [1, 2, 4],
    "parallelism.expert_tensor": [None, 1],
    "overlap.tensor_parallel": [True, False],
    "overlap.userbuffers": [False, True],
    DELAYS: [True, False],
    "model.latent_attention": [None, {"kv_lora_rank": 64, "q_lora_rank": 64}],
    "model.normalization": ["layer_norm", "rms_norm"],
    "model.experts.shared_ffn_hidden_size": [0, 256],
    "model.tied_embeddings": [True, False],
    "recompute.strategy": ["none", "selective"],
}


@given(
    st.fixed_dictionaries({name: st.sampled_from(LAYER_OPTIONS[name]) for name in LAYER_OPTIONS})
)
@settings(max_examples=25)
def test_no_op_waits_for_one_that_its_rank_issues_later(changes: dict[str, Any]) -> None:
    shards = {"parallelism.sequence_parallel": changes["parallelism.tensor"] > 1}
    scenario = toy().replace(
        {"attention_backend": "fused", "model.num_layers": 2} | changes | shards
    )
    try:
        check_scenario(scenario)
    except InputError:
        reject()
    plan = plan_of(scenario)
    one = MergedPass(
        *(plan.chunk_pass(plan.chunks[0], kind, saves_all=False) for kind in ("F", "B")),
        changes[DELAYS],
    )
    record = record_of(one)
    program = pass_program(record, PassMachine(lambda work: 1.0, 0.0, lambda work: 0.01))
    waits = [program.graph.waits(task) for task in range(program.graph.num_tasks)]
    assert all(max(awaited, default=-1) < task for task, awaited in enumerate(waits))
    simpy, loops = (run_program(program, engine) for engine in ("simpy", "auto"))
    assert np.array_equal(simpy.end_s, loops.end_s)


def test_memory_of_merged_passes() -> None:
    one = layers(toy())
    forward, backward, both = (
        pass_memory(one.forward),
        pass_memory(one.backward),
        merged_memory(one),
    )
    peaks = [each.saved_bytes + each.extra_bytes for each in (forward, backward, both)]
    assert max(peaks[:2]) < peaks[2] <= sum(peaks[:2])
    assert both.saved_bytes <= forward.saved_bytes + backward.saved_bytes
    assert both.remaining_bytes == forward.remaining_bytes


def test_without_a_pipeline_the_first_and_the_last_pass_are_alone() -> None:
    result = simulate(toy())
    seconds = result.seconds
    (pair,) = (variant for variant in seconds.passes if variant.beside)
    forward, backward = PassVariant(0, "F"), PassVariant(0, "B")
    assert pair == PassVariant(0, "F", beside=backward)
    passes_s = [seconds.passes[part].duration_s for part in (forward, *[pair] * 7, backward)]
    steps_s = math.fsum(seconds.steps[0].values())
    assert result.iteration_time_s == pytest.approx(math.fsum(passes_s) + steps_s)
    one, in_turn = result.memory.stages[0], simulate(toy(merges=False)).memory.stages[0]
    assert str(one.peak_action) == "(0F1;0B0)OVERLAP_F_B"
    assert one.peak_bytes > in_turn.peak_bytes


PIPELINE = {"pipeline": 2, "interleave": 2}


@pytest.fixture(scope="module")
def piped() -> Result:
    return simulate(toy(PIPELINE))


def test_both_microbatches_are_alive_during_a_merged_pass(piped: Result) -> None:
    replay, schedule = MemoryReplay.of(piped.plan), piped.plan.schedule
    for second in np.flatnonzero(schedule.follows_merged).tolist():
        during = replay.dynamic_bytes[second - 1 : second + 1]
        running = replay.running_bytes[replay.moments.moment_of[second]]
        assert during[0] == during[1] >= running > replay.after_bytes[second]
    for stage in range(piped.num_stages):
        times_s = piped.memory_curve(stage).times_s
        assert [*times_s] == sorted(times_s)


@pytest.fixture(scope="module")
def dual() -> dict[str, Result]:
    """Eight microbatches on four stages: in one direction, in a V, and in two directions."""
    chunks = {"dualpipev": 2}
    return {
        name: simulate(
            toy({"pipeline": 4, "interleave": chunks.get(name, 1)}, merges=False).replace(
                {
                    "schedule": name,
                    "overlap.pipeline": None,
                    "memory.zero_stage": 1,
                    "model.tied_embeddings": False,
                }
            )
        )
        for name in ("1f1b", "dualpipev", "dualpipe")
    }


def test_two_directions_keep_parameters_twice(dual: dict[str, Result]) -> None:
    """The states of the optimizer are divided over the replicas of both copies."""
    one, two = dual["1f1b"], dual["dualpipe"]
    parts = [
        [stage.components_bytes[part] for stage in result.memory.stages]
        for part in ("parameters", "optimizer")
        for result in (one, two)
    ]
    once, twice, states, shared = parts
    assert twice == [near + far for near, far in zip(once, reversed(once), strict=True)]
    assert sum(shared) == pytest.approx(sum(states), rel=1e-3)
    assert two.plan.step_options.data.num_ranks == 2 * one.plan.step_options.data.num_ranks
    assert two.plan.step_options.everyone == one.plan.step_options.everyone
    assert two.plan.num_parameters == one.plan.num_parameters


def test_two_directions_are_mirrored(dual: dict[str, Result]) -> None:
    """The last stages do what the first ones do, with the copies exchanged."""
    stages = dual["dualpipe"].stages
    for stage, other in zip(stages[:2], reversed(stages), strict=False):
        assert stage.compute_s == pytest.approx(other.compute_s)
        assert stage.total_s == pytest.approx(other.total_s)
