"""The bound of the iteration time is never above the simulated time, and close to it."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simtrain.base.resources import list_scenarios, list_sweeps
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.pass_tasks import PassTime
from simtrain.scenario import RULES, RecomputePolicy, Scenario, load_scenario
from simtrain.schedules import NAMED, Action, Exchange, Message, Schedule, blocking_steps
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.search.iteration_bound import _Pipeline
from simtrain.studies.sweep import load_plan
from tests.helpers.schedule_strategies import schedules
from tests.helpers.search_spaces import BASES, EVALUATOR, base

ANY_SIZE = Evaluator(allow_oom=True, breakdowns=False)


def share_of_time(scenario: Scenario) -> float:
    """Return bound / simulated time, and check that it is at most 1."""
    run = ANY_SIZE.evaluate(scenario).run
    assert run is not None
    bounds = Bounds(scenario, ANY_SIZE.machine_of(scenario))
    share = bounds.iteration_s(scenario) / run.iteration_time_s
    assert 0 < share <= 1
    return share


def pipeline(**sections: Any) -> Scenario:
    """Return a scenario with 12 layers and a global batch of 24, changed by `sections`."""
    return base(**{"model": {"num_layers": 12}, "batch": {"global": 24}} | sections)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Draw legal scenarios with all kinds of tasks, most of them with several stages."""
    interleave = draw(st.sampled_from([1, 1, 2, 3]))
    overlap = {name: draw(st.booleans()) for name in ("data_parallel", "tensor_parallel")}
    zero_stage = draw(st.sampled_from([0, 1, 2, 3]))
    if overlap["data_parallel"] and zero_stage < 2:
        overlap["parameter_gather"] = zero_stage == 1 and draw(st.booleans())
        overlap["gradient_buckets"] = draw(st.sampled_from(["layer", "megatron", 1_000_000]))
    scenario = pipeline(
        model={
            "num_layers": 12,
            "hidden_size": draw(st.sampled_from([256, 1024])),
            "vocab_size": draw(st.sampled_from([1024, 100_000])),
            "tied_embeddings": draw(st.booleans()),
            "position_embedding": (position := draw(st.sampled_from(["learned", "rope"]))),
            "mtp_num_layers": draw(st.sampled_from([0, 1])) if position == "rope" else 0,
        },
        parallelism={
            "tensor": (tensor := draw(st.sampled_from([1, 2, 4]))),
            "pipeline": draw(st.sampled_from([1, 2, 3, 4, 6])),
            "data": draw(st.sampled_from([1, 2])),
            "interleave": interleave,
            "sequence_parallel": tensor > 1 and draw(st.booleans()),
        },
        batch={
            "micro": draw(st.sampled_from([1, 2])),
            "global": draw(st.sampled_from([12, 24, 48, 96])),
        },
        schedule="interleaved" if interleave > 1 else draw(st.sampled_from(["1f1b", "gpipe"])),
        overlap=overlap | {"pipeline": interleave > 1 and draw(st.booleans())},
        memory={
            "zero_stage": zero_stage,
            "reduce_every_microbatch": zero_stage < 2 or draw(st.booleans()),
            "reshard_after_forward": zero_stage < 3 or draw(st.booleans()),
            "offload_optimizer": draw(st.booleans()),
        },
        cluster=draw(st.sampled_from(["a100_sxm4_80gb", "h100_sxm"])),
        hardware=draw(st.sampled_from([{}, {"host": {"issue": "0 s"}}])),
    ).model_copy(
        update={
            "recompute": RecomputePolicy(
                strategy=(strategy := draw(st.sampled_from(["none", "selective", "full"]))),
                keep_microbatches=0 if strategy == "none" else draw(st.sampled_from([0, 1])),
            )
        }
    )
    assume(not any(rule.check(scenario) for rule in RULES))
    profile = ANY_SIZE.profile_of(scenario)
    assume(profile.host_link is not None or not scenario.memory.offload_optimizer)
    return scenario


@given(schedules(), st.booleans())
def test_blocked_time_is_at_most_the_sum_of_exchanges(schedule: Schedule, all_alike: bool) -> None:
    """Both are equal without interleaving, or if all messages take the same time."""
    p, v, n = schedule.num_stages, schedule.num_chunks, schedule.num_microbatches
    assume(p > 1)
    # Two stages share one pair of nodes in both directions.
    alone = [1.0 if all_alike or p == 2 else 1.0 + stage % 3 for stage in range(p)]
    shared = [2 * time_s for time_s in alone] if not all_alike else alone
    passes = PassTime(0.0, 0.0, 0.0, 0.0, 0.0, ())
    no_time_s = [0.0] * (p * v)
    family = NAMED[schedule.name]
    pipeline = _Pipeline(
        *(family, p, v, n, no_time_s, [passes] * (p * v), alone, shared, 0.0, 0.0, True)
    )

    def message_s(message: Message) -> float:
        first, second = sorted((message.sender, message.receiver))
        place = p - 1 if second > first + 1 else first
        return (shared if num_sends[message] > 1 else alone)[place]

    ranks = blocking_steps(schedule)
    exchanges = [step for steps in ranks for step in steps if isinstance(step, Exchange)]
    num_sends = {message: len(one.sends) for one in exchanges for message in one.sends}
    for stage, steps in enumerate(ranks):
        actions = [place for place, step in enumerate(steps) if isinstance(step, Action)]
        counted_s = sum(
            max(map(message_s, (*step.sends, *step.receives)))
            for step in steps[actions[0] : actions[-1]]
            if isinstance(step, Exchange)
        )
        blocked_s = pipeline.blocked_s(stage)
        assert blocked_s <= counted_s
        if all_alike or schedule.name != "interleaved":
            assert blocked_s == counted_s


@pytest.mark.slow
@settings(max_examples=80)
@given(scenarios())
def test_no_iteration_is_faster_than_its_bound(scenario: Scenario) -> None:
    assert share_of_time(scenario) > 0.4


LARGE = ("1t", "530", "405b")


@pytest.mark.parametrize("name", [n for n in list_scenarios() if not any(x in n for x in LARGE)])
def test_shipped_scenarios_are_at_most_one_percent_above_their_bound(name: str) -> None:
    assert share_of_time(load_scenario(name)) > 0.99


@pytest.mark.parametrize("name", list_sweeps())
def test_points_of_shipped_sweeps_are_not_below_their_bounds(name: str) -> None:
    plan = load_plan(name)
    scenarios = map(plan.scenario, range(0, plan.num_points, -(-plan.num_points // 8)))
    legal = [one for one in scenarios if not any(rule.check(one) for rule in RULES)]
    for scenario in legal[:4]:
        share_of_time(scenario)


@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism": {"pipeline": 1, "data": 4}},
        {"parallelism": {"pipeline": 4}},
        {"parallelism": {"pipeline": 4, "tensor": 2}},
        {"parallelism": {"pipeline": 2, "data": 2}, "memory": {"zero_stage": 1}},
        {"parallelism": {"pipeline": 2, "data": 2}, "overlap": {"data_parallel": True}},
        {"parallelism": {"pipeline": 4}, "memory": {"offload_optimizer": True}},
        {"parallelism": {"pipeline": 4, "first_stage_layers": 2, "last_stage_layers": 2}},
    ],
    ids=str,
)
def test_the_bound_of_1f1b_is_exact(changes: dict[str, Any]) -> None:
    """1F1B waits only for its slowest stage, and for messages to this stage and back."""
    assert share_of_time(pipeline(**changes)) == pytest.approx(1, rel=2e-9)


def test_the_bound_of_two_stages_by_hand() -> None:
    """1F1B with three microbatches on two stages; stage 1 has the head and is slower.

    The critical path begins with the first forward pass of stage 0. A message and its posting
    follow. Stage 1 then runs three forward and three backward passes; between them are two
    exchanges, each of which transfers one message and posts two. Another message and its posting
    lead to the last backward pass of stage 0.
    """
    scenario = pipeline(
        model={"tied_embeddings": False}, parallelism={"pipeline": 2}, batch={"global": 3}
    )
    machine = EVALUATOR.machine_of(scenario)
    bounds = Bounds(scenario, machine)
    plan = Plan.of(scenario, 8)
    (f0, f1), (b0, b1) = (
        [machine.time(plan.chunk_pass(chunk, kind, False)).duration_s for chunk in plan.chunks]
        for kind in ("F", "B")
    )
    post = machine.model.profile.host.issue.value
    message = machine.model.transfer_s(plan.microbatch.activation_bytes, levels_crossed=0)
    chain = f0 + message + post + 3 * (f1 + b1) + 2 * (message + 2 * post) + message + post + b0
    steps = [machine.step_seconds(plan.step_options, one) for one in plan.stage_parameters]
    before = steps[0]["average"] + steps[0]["norm"]
    after = steps[0]["norm_reduction"] + max(step["update"] for step in steps)
    assert bounds.iteration_s(scenario) == pytest.approx(chain + before + after, rel=1e-6)


def test_the_bound_of_auto_recompute_is_the_bound_of_ops() -> None:
    scenario = BASES["plain"].model_copy(update={"recompute": RecomputePolicy(strategy="auto")})
    bounds = Bounds(scenario, EVALUATOR.machine_of(scenario))
    assert bounds.iteration_s(scenario) == bounds.ops_s(scenario)
