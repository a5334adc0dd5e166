"""Orders of a pipeline's passes: legal, within memory, never slower than named ones."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.orders.exact import exact_order
from simtrain.orders.list_scheduling import OrderProblem, list_schedule, policies
from simtrain.orders.optimize import optimize_order
from simtrain.scenario import Scenario, load_scenario
from simtrain.schedules import Action, Kind, Schedule, time_slots
from simtrain.schedules.stage_placement import back_and_forth, looped
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import call
from tests.helpers.toys import scenario_with

WHOLE: tuple[Kind, ...] = ("F", "B")
SPLIT: tuple[Kind, ...] = ("F", "I", "W")


@st.composite
def problems(draw: st.DrawFn, most_stages: int = 4, most_microbatches: int = 6) -> OrderProblem:
    """Draw a pipeline with any durations; a pass saves three bytes, of which I leaves one."""
    p, m = draw(st.integers(2, most_stages)), draw(st.integers(1, 2))
    placement = draw(st.sampled_from([looped, back_and_forth]))(p, m)
    stages, kinds = placement.num_virtual_stages, draw(st.sampled_from([WHOLE, SPLIT]))
    times = st.tuples(*[st.integers(1, 5).map(float)] * stages)
    return OrderProblem(
        placement,
        draw(st.integers(1, most_microbatches)),
        {kind: draw(times) for kind in kinds},
        draw(st.tuples(*[st.sampled_from([0.0, 0.5])] * stages)),
        (3,) * stages,
        (1 if kinds == SPLIT else 0,) * stages,
    )


def makespan(problem: OrderProblem, schedule: Schedule) -> float | None:
    """Return the time of an order by relaxation, or None if it cannot run."""
    ends: dict[Action, float] = {}
    last = problem.placement.num_virtual_stages - 1
    orders = [[*rank] for rank in schedule.ranks]
    free = [0.0] * len(orders)
    backward: Kind = "I" if problem.splits else "B"
    while any(orders):
        before = len(ends)
        for rank, order in enumerate(orders):
            while order:
                stage, kind, _ = action = order[0]
                needed: list[tuple[Action, float]] = []
                if kind == "W":
                    needed = [(action._replace(kind="I"), 0.0)]
                elif kind == "F" and stage:
                    message_s = problem.message_s[stage - 1]
                    needed = [(action._replace(virtual_stage=stage - 1), message_s)]
                elif kind == backward:
                    needed = [(action._replace(kind="F"), 0.0)]
                    if stage < last:
                        after = action._replace(virtual_stage=stage + 1)
                        needed.append((after, problem.message_s[stage]))
                if not all(other in ends for other, _ in needed):
                    break
                arrived = [ends[other] + message_s for other, message_s in needed]
                start = max([free[rank], *arrived])
                ends[action] = free[rank] = start + problem.seconds[kind][stage]
                order.pop(0)
        if len(ends) == before:
            return None
    return max(ends.values())


@settings(max_examples=40)
@given(problems(), st.data())
def test_every_list_schedule_is_legal_and_stays_below_its_cap(
    problem: OrderProblem, data: st.DataObject
) -> None:
    every = [*policies(splits=problem.splits, has_chunks=problem.placement.num_chunks > 1)]
    policy = data.draw(st.sampled_from(every))
    schedule = list_schedule(problem, policy)
    if schedule is None:
        assert policy.cap < 1
        return
    schedule.validate()
    assert (time_slots(schedule) >= 0).all()
    one = 3 * problem.placement.num_chunks
    cap = max(one, policy.cap * problem.placement.num_ranks * one)
    assert max(problem.most_held_bytes(schedule)) <= cap + 1e-9
    passes_s = [sum(times) for times in zip(*problem.seconds.values(), strict=True)]
    busiest_s = problem.num_microbatches * max(
        sum(passes_s[stage] for stage in stages) for stages in problem.placement.virtual_stages
    )
    time_s = makespan(problem, schedule)
    assert time_s is not None and time_s >= busiest_s


@settings(max_examples=5, deadline=None)
@given(st.tuples(*[st.integers(1, 4)] * 4), st.sampled_from([1, 2]))
def test_the_exact_order_is_the_best_of_all_orders(times: tuple[int, ...], limit: int) -> None:
    seconds: dict[Kind, tuple[float, ...]] = {"F": times[:2], "B": times[2:]}
    problem = OrderProblem(looped(2, 1), 2, seconds, (0.5, 0.0), (1, 1), (0, 0))
    of_rank = [
        [*itertools.permutations([Action(stage, kind, n) for kind in WHOLE for n in (0, 1)])]
        for stage in (0, 1)
    ]
    best = float("inf")
    for ranks in itertools.product(*of_rank):
        schedule = Schedule.of("custom", problem.placement, 2, ranks)
        if max(problem.most_held_bytes(schedule)) <= limit:
            best = min(best, makespan(problem, schedule) or best)
    answer = exact_order(problem, (limit, limit))
    assert answer is not None
    schedule, is_proved = answer
    assert is_proved
    assert max(problem.most_held_bytes(schedule)) <= limit
    assert makespan(problem, schedule) == pytest.approx(best)


def test_with_split_passes_and_memory_the_exact_order_has_no_bubble_on_the_last_rank() -> None:
    ones: dict[Kind, tuple[float, ...]] = dict.fromkeys(SPLIT, (1.0, 1.0))
    problem = OrderProblem(looped(2, 1), 3, ones, (0.0, 0.0), (1, 1), (0, 0))
    answer = exact_order(problem, (3, 3))
    assert answer is not None
    # Rank 1 waits for the first forward pass, then runs its nine actions without a gap.
    assert makespan(problem, answer[0]) == pytest.approx(10)


def scenario_of(**split: Any) -> Scenario:
    return scenario_with(
        {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 1024},
        parallelism={"pipeline": 2, **split},
        batch={"micro": 1, "global": 4},
    )


@pytest.mark.parametrize(
    "interleave", [1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.ci])]
)
def test_the_order_is_never_slower_than_a_named_one(interleave: int, tmp_path: Path) -> None:
    scenario = scenario_of(interleave=interleave, pipeline=2 * interleave)
    order = optimize_order(scenario, tries=20)
    assert order.named and order.fits and order.best_named
    assert order.bound_s <= order.iteration_time_s <= order.best_named.iteration_time_s
    again = optimize_order(scenario, tries=20)
    assert again.schedule.to_csv() == order.schedule.to_csv()
    file = tmp_path / "order.csv"
    file.write_text(order.schedule.to_csv())
    changes = {"schedule": str(file), "overlap.pipeline": True}
    result = simulate(scenario.replace(changes))
    assert result.iteration_time_s == order.iteration_time_s
    assert result.memory.fullest.peak_bytes == order.peak_bytes


def test_a_limit_of_memory_is_kept() -> None:
    free = optimize_order(scenario_of(), tries=0)
    less = int(0.9 * free.peak_bytes)
    tight = scenario_of().replace({"hardware": {"gpu": {"memory_capacity": f"{less} B"}}})
    order = optimize_order(tight, tries=0)
    assert order.peak_bytes <= less < free.peak_bytes
    assert order.iteration_time_s >= free.iteration_time_s


def test_an_order_is_searched_with_the_recompute_that_fits() -> None:
    scenario = scenario_of().replace({"recompute": "auto"})
    orders = (optimize_order(each, tries=0) for each in (scenario, scenario_of()))
    first, second = (order.to_dict() for order in orders)
    assert first == second


def test_a_named_order_that_is_the_best_keeps_its_own_bound() -> None:
    """A merged schedule can take less than any order without merged passes."""
    scenario = load_scenario("qwen3_30b_a3b").replace({"batch.global": 512})
    order = optimize_order(scenario, tries=0)
    assert order.best_named and order.iteration_time_s <= order.best_named.iteration_time_s
    assert order.bound_s < order.iteration_time_s and not order.is_exact


def test_one_stage_and_many_microbatches_are_refused() -> None:
    with pytest.raises(InputError, match="E856"):
        optimize_order(scenario_of(pipeline=1))
    with pytest.raises(InputError, match="E857"):
        optimize_order(scenario_of().replace({"batch.global": 32}), exact=True, tries=0)
    kept = scenario_of().replace({"recompute": {"strategy": "full", "keep_microbatches": "auto"}})
    with pytest.raises(InputError, match="E858"):
        optimize_order(kept)
    for field, value, code in (
        ("parallelism.vocabulary", "vocab_1", "E452"),
        ("overlap.optimizer_post_validation", True, "E450"),
    ):
        with pytest.raises(InputError, match=code):
            optimize_order(scenario_of().replace({field: value}))
    cut = {"schedule": "seq1f1b", "parallelism.sequence_slices": 2, "attention_backend": "fused"}
    with pytest.raises(InputError, match=r"E455 parallelism\.sequence_slices is 2, but"):
        optimize_order(scenario_of().replace(cut))


def test_the_command_writes_an_order_that_run_reads(tmp_path: Path) -> None:
    file, settings = tmp_path / "order.csv", ["--set", "parallelism.pipeline=4"]
    settings += ["--set", "batch.global=16"]
    outcome = call(
        *("schedule", "optimize", "table5_22b_present", *settings, "--tries", "0", "--split"),
        *("--out", str(file)),
    )
    assert outcome.exit_code == 0
    assert f"--set schedule={file} --set overlap.pipeline=true" in outcome.stdout.replace("\n", " ")
    assert (
        call("schedule", "table5_22b_present", *settings, "--set", f"schedule={file}").exit_code
        == 0
    )
