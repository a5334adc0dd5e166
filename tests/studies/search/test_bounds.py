"""No bound is above what the engine finds: for all schedules, random orders, and all options."""

import pathlib
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simtrain.base.resources import list_scenarios
from simtrain.iteration.plan import Plan
from simtrain.iteration.planned import run_iteration
from simtrain.scenario import RULES, RecomputePolicy, Scenario, load_scenario
from simtrain.schedules import NAMED, Order, Schedule, StagePlacement
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.search.exact_search import Explorer
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.space import Space
from tests.helpers.schedule_strategies import orders, placements, random_order
from tests.helpers.search_spaces import BASES, EVALUATOR, base, space


def plan_of(scenario: Scenario) -> Plan:
    return Plan.of(scenario, EVALUATOR.profile_of(scenario).cluster.domains)


def check(plan: Plan) -> float:
    """Check the bounds of a plan; return the closer one as a share of the simulated time."""
    machine = EVALUATOR.machine_of(plan.scenario)
    bounds, time_s = Bounds(machine), run_iteration(plan, machine).time_s
    assert 0 < bounds.work_s(plan) <= (1 + 1e-12) * bounds.busy_s(plan) <= (1 + 1e-12) * time_s
    return bounds.busy_s(plan) / time_s


def pipeline(**sections: Any) -> Scenario:
    """Return a scenario with 12 layers and a global batch of 24, changed by `sections`."""
    return base(**{"model": {"num_layers": 12}, "batch": {"global": 24}} | sections)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Draw legal scenarios with all kinds of tasks, most of them with several stages."""
    interleave = draw(st.sampled_from([1, 1, 2, 3]))
    name = draw(
        st.sampled_from(
            [name for name, family in NAMED.items() if family.allows_chunks(interleave)]
        )
    )
    overlap = {name: draw(st.booleans()) for name in ("data_parallel", "tensor_parallel")}
    stages = draw(st.sampled_from([2, 3, 4, 6] if interleave > 1 else [1, 2, 3, 4, 6]))
    zero_stage = draw(st.sampled_from([0, 1, 2, 3] if stages == 1 else [0, 1]))
    if overlap["data_parallel"] and zero_stage < 2:
        overlap["parameter_gather"] = zero_stage == 1 and draw(st.booleans())
        overlap["gradient_buckets"] = draw(st.sampled_from(["layer", "megatron", 1_000_000]))
    position = draw(st.sampled_from(["learned", "rope"]))
    predicts = position == "rope" and draw(st.booleans())
    scenario = pipeline(
        model={
            "num_layers": 12,
            "hidden_size": draw(st.sampled_from([256, 1024])),
            "vocab_size": draw(st.sampled_from([12 * 1024, 96_000])),
            "tied_embeddings": draw(st.booleans()),
            "position_embedding": position,
            "mtp_num_layers": int(predicts),
        },
        parallelism={
            "tensor": (tensor := draw(st.sampled_from([1, 2, 4]))),
            "pipeline": stages,
            "data": 2 if zero_stage else draw(st.sampled_from([1, 2])),
            "interleave": interleave,
            "sequence_parallel": tensor > 1 and draw(st.booleans()),
        },
        batch={
            "micro": draw(st.sampled_from([1, 2])),
            "global": draw(st.sampled_from([12, 24, 48, 96])),
        },
        schedule=name,
        attention_backend="unfused",
        overlap=overlap
        | {"pipeline": not NAMED[name].blocks or (interleave > 1 and draw(st.booleans()))},
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
    profile = EVALUATOR.profile_of(scenario)
    assume(profile.host_link is not None or not scenario.memory.offload_optimizer)
    return scenario


@pytest.mark.slow
@settings(max_examples=25)
@given(scenarios())
def test_no_iteration_is_below_its_bounds(scenario: Scenario) -> None:
    # Bounds take each backward pass as that of the first microbatch, which adds to no sum.
    assert check(plan_of(scenario)) > 0.3


@pytest.mark.parametrize("name", BASES)
def test_no_layout_of_a_space_is_below_its_bounds(name: str) -> None:
    """Experts, context parallelism, offloading, uneven stages, and defaults of Megatron-Core."""
    searched = space(name, 8)
    points = legal_points(searched).points
    for point in random.Random(0).sample(points, 12):
        check(plan_of(searched.scenario(point)))


@pytest.mark.parametrize("name", [n for n in list_scenarios() if not n.startswith("table5_1t")])
def test_shipped_scenarios_are_close_to_their_bounds(name: str) -> None:
    """fp8, experts, layouts with token prediction: fewer than 14 % of time are in no bound.

    Merged passes are bound by their busiest stream alone.
    """
    assert check(plan_of(load_scenario(name))) > 0.86


@pytest.mark.parametrize("name", [*BASES, "deepspeed", "merged", "schedules"])
def test_layouts_that_share_ranks_share_a_bound_and_a_larger_microbatch_needs_no_less(
    name: str,
) -> None:
    """Also where ZeRO-3 shards weights alone, passes are merged, or backward passes are split."""
    experts = load_scenario("mixtral_8x7b", ["model.num_layers=4", "batch.global=16"])
    given = {
        "deepspeed": experts.replace({"software": "deepspeed_2022"}),
        "merged": experts.replace({"overlap.merged_passes": True}),
        "schedules": base(batch={"global": 8}),
    }
    vary = {"schedule": [*NAMED]} if name == "schedules" else {}
    searched = Space(given[name], 8, vary) if name in given else space(name, 8)
    points = legal_points(searched).points
    peaks = [Explorer(searched, EVALUATOR, 2**60).peak_bytes(point) for point in points]
    explorer = Explorer(searched, EVALUATOR, sorted(peaks)[len(peaks) // 2])
    for point, peak_bytes in zip(points, peaks, strict=True):
        key = explorer.least_key(point)
        assert (key is None) == (peak_bytes > explorer.limit_bytes)
        assert key is None or explorer.work_s(point) <= (1 + 1e-12) * key[0]


# ------------------------------------------------------------------------- schedules


def scenario_of(schedule: Schedule, file: pathlib.Path, **sections: Any) -> Scenario:
    """Return a scenario that runs a schedule from a file."""
    file.write_text(schedule.to_csv())
    split = {"pipeline": schedule.num_stages, "interleave": schedule.placement.interleave}
    return pipeline(
        parallelism=split | {"tensor": 2},
        batch={"global": schedule.num_microbatches},
        schedule=str(file),
        **sections,
    )


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(placements(), st.integers(1, 5), st.integers(0, 2**20))
def test_no_random_order_is_below_its_bounds(
    tmp_path: pathlib.Path, placement: StagePlacement, n: int, seed: int
) -> None:
    schedule, overlap = random_order(placement, n, seed), {"data_parallel": bool(seed % 2)}
    check(plan_of(scenario_of(schedule, tmp_path / "order.csv", overlap=overlap)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(orders())
def test_no_named_order_is_below_its_bounds(tmp_path: pathlib.Path, order: Order) -> None:
    assume(12 % (order.num_stages * order.placement.num_chunks) == 0)
    check(plan_of(scenario_of(order.actions, tmp_path / "order.csv")))


# ------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_the_bound_of_a_pipeline_by_hand(num_stages: int) -> None:
    """The last stage has the head and is the slowest. It waits for one forward pass of each other
    stage, runs all of its passes, and one backward pass of each other stage follows, and the
    optimizer step of the first stage.
    """
    scenario = pipeline(
        model={"tied_embeddings": False, "num_layers": 4},
        parallelism={"pipeline": num_stages},
        hardware={"host": {"issue": "0 s"}},
    )
    machine, plan = EVALUATOR.machine_of(scenario), plan_of(scenario)
    both_s = [
        sum(machine.time(plan.chunk_pass(chunk, kind, False)).duration_s for kind in ("F", "B"))
        for chunk in plan.chunks
    ]
    step = machine.step_seconds(plan.step_options, plan.stage_parameters[0])
    expected_s = sum(both_s[:-1]) + 24 * both_s[-1] + sum(step.values())
    assert Bounds(machine).busy_s(plan) == pytest.approx(expected_s, rel=1e-8)


def test_a_chain_has_the_collectives_that_nothing_overlaps() -> None:
    """Without launches, a pass takes as long as its chain, and longer than its busiest stream."""
    scenario = base(
        parallelism={"tensor": 2},
        overlap={"tensor_parallel": False},
        hardware={"host": {"issue": "0 s"}},
    )
    machine, plan = EVALUATOR.machine_of(scenario), plan_of(scenario)
    for one in plan.passes.values():
        time, busy_s = machine.time(one), Bounds(machine)._streams_s(one)
        assert time.exposed_communication_s > 0
        assert busy_s[-1] == pytest.approx(time.duration_s)
        assert max(busy_s[:-1]) == pytest.approx(time.duration_s - time.exposed_communication_s)
