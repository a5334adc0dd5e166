"""Pipelines on the engine: times by hand, and laws of any pipeline."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simtrain.engine import DeadlockError, Timeline, simulate
from simtrain.iteration.programs.pipeline import PipelineTasks
from simtrain.schedules import Action, Message, Order, Schedule, gpipe, interleaved, one_f_one_b
from tests.helpers.pipelines import PipelineSeconds, pipeline_program
from tests.helpers.schedule_strategies import blocking_schedules, orders, schedules

FORWARD_S, BACKWARD_S = 1.0, 2.0  # of one chunk; whole seconds, so sums are exact


def action_s(action: Action) -> float:
    return FORWARD_S if action.kind == "F" else BACKWARD_S


def run(schedule: Schedule, transfer_s: float, overlap: bool) -> tuple[Timeline, PipelineTasks]:
    seconds = PipelineSeconds(action_s, lambda message, num_concurrent_sends: transfer_s)
    program, tasks = pipeline_program(schedule, seconds, overlap)
    return simulate(program), tasks


def makespan_s(schedule: Schedule, transfer_s: float, overlap: bool) -> float:
    return run(schedule, transfer_s, overlap)[0].makespan_s


def starts_s(schedule: Schedule, transfer_s: float, overlap: bool) -> dict[str, float]:
    timeline, tasks = run(schedule, transfer_s, overlap)
    started_s = timeline.start_s[tasks.first].tolist()
    return {str(schedule.action(place)): start_s for place, start_s in enumerate(started_s)}


@pytest.mark.parametrize("overlap", [True, False])
@given(p=st.integers(1, 6), m=st.integers(1, 4), groups=st.integers(1, 4))
@settings(max_examples=30)
def test_the_bubble_is_p_minus_1_over_m_n(overlap: bool, p: int, m: int, groups: int) -> None:
    n = p * groups
    ideal_s = m * n * (FORWARD_S + BACKWARD_S)
    bubble_s = makespan_s(interleaved(p, m, n), 0.0, overlap) - ideal_s
    assert bubble_s / ideal_s == (p - 1) / (m * n)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("build", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("p", "n"), [(1, 1), (1, 5), (2, 1), (4, 2), (4, 8), (5, 17), (8, 8)])
def test_the_bubble_is_p_minus_1_over_n(
    build: Callable[[int, int], Schedule], overlap: bool, p: int, n: int
) -> None:
    ideal_s = n * (FORWARD_S + BACKWARD_S)
    bubble_s = makespan_s(build(p, n), 0.0, overlap) - ideal_s
    assert bubble_s / ideal_s == (p - 1) / n


def test_blocking_1f1b_by_hand() -> None:
    # Rank 0 sends 0F1's output in the exchange that receives from 1B0. 1B0 ends at 4.5 s, and rank
    # 1 does not receive earlier either, so both messages arrive at 5 s.
    assert starts_s(one_f_one_b(2, 2), 0.5, overlap=False) == {
        "0F0": 0.0, "0F1": 1.5, "0B0": 5.0, "0B1": 8.5,
        "1F0": 1.5, "1B0": 2.5, "1F1": 5.0, "1B1": 6.0,
    }  # fmt: skip


def test_overlapped_1f1b_by_hand() -> None:
    # 0F1 follows 0F0 at once. 1F1 follows 1B0 at once, because its input has arrived before.
    assert starts_s(one_f_one_b(2, 2), 0.5, overlap=True) == {
        "0F0": 0.0, "0F1": 1.0, "0B0": 5.0, "0B1": 8.0,
        "1F0": 1.5, "1B0": 2.5, "1F1": 4.5, "1B1": 5.5,
    }  # fmt: skip


def test_a_receive_gather_by_hand() -> None:
    seconds = PipelineSeconds(
        action_s,
        transfer=lambda message, num_concurrent_sends: 0.5,
        receive_gather=lambda message: 0.125,
        synchronize=lambda num_messages: 0.25 * num_messages,
    )
    program, _ = pipeline_program(gpipe(2, 1), seconds, overlap=False)
    assert [
        (span.start_s, span.stream, span.kind, span.name) for span in simulate(program).spans()
    ] == [
        (0.0, "stage 0", "forward", "0F0"),
        (1.0, "link 0->1", "transfer", "0F0 to 1F0"),
        (1.5, "stage 0", "synchronize", "synchronize"),
        (1.5, "stage 1", "synchronize", "synchronize"),
        (1.75, "stage 1", "receive gather", "gather 0F0 to 1F0"),
        (1.875, "stage 1", "forward", "1F0"),
        (2.875, "stage 1", "backward", "1B0"),
        (4.875, "link 1->0", "transfer", "1B0 to 0B0"),
        (5.375, "stage 0", "synchronize", "synchronize"),
        (5.375, "stage 1", "synchronize", "synchronize"),
        (5.625, "stage 0", "receive gather", "gather 1B0 to 0B0"),
        (5.75, "stage 0", "backward", "0B0"),
    ]


def test_an_overlapped_receive_gather_delays_the_compute_stream() -> None:
    seconds = PipelineSeconds(action_s, lambda *_: 0.5, receive_gather=lambda message: 0.125)
    program, tasks = pipeline_program(one_f_one_b(2, 1), seconds, overlap=True)
    timeline = simulate(program)
    starts = timeline.start_s[tasks.first].tolist()
    assert starts == [0.0, 5.25, 1.625, 2.625]  # 0F0 0B0 1F0 1B0


def test_the_duration_of_a_message_depends_on_concurrent_sends() -> None:
    asked: list[tuple[str, int]] = []

    def transfer_s(message: Message, num_concurrent_sends: int) -> float:
        asked.append((str(message), num_concurrent_sends))
        return 0.0

    seconds = PipelineSeconds(action_s, transfer_s)
    pipeline_program(interleaved(3, 2, 3), seconds, overlap=False)
    # Only rank 1 has a forward and a backward action that both send.
    assert [name for name, sends in asked if sends == 2] == ["4F2 to 5F2", "4B0 to 3B0"]
    assert len(asked) == 2 * 5 * 3

    asked.clear()
    pipeline_program(interleaved(3, 2, 3), seconds, overlap=True)
    assert {sends for _, sends in asked} == {1}


def test_streams_of_two_stages_with_two_chunks() -> None:
    schedule = interleaved(2, 2, 2)
    seconds = PipelineSeconds(action_s, lambda *_: 1.0)
    program, tasks = pipeline_program(schedule, seconds, overlap=True)
    streams = {str(one): program.graph.stream(task) for task, one in enumerate(tasks.messages)}
    assert streams["0F0 to 1F0"] == "link 0->1"
    assert streams["1F0 to 2F0"] == "wrap 1->0"
    assert streams["1B0 to 0B0"] == "link 1->0"
    assert streams["2B0 to 1B0"] == "wrap 0->1"
    assert {stream: len(queue) for stream, queue in program.graph.queues().items()} == {
        "stage 0": 8, "stage 1": 8,
        "link 0->1": 4, "link 1->0": 4, "wrap 0->1": 2, "wrap 1->0": 2,
    }  # fmt: skip


@pytest.mark.parametrize(("overlap", "start_s"), [(False, 8.5), (True, 7.5)])
def test_tasks_can_follow_the_pipeline(overlap: bool, start_s: float) -> None:
    # Rank 1 ends 1B1 at 8 s or 7.5 s; only a blocking rank also waits for its last send.
    timeline, tasks = run(one_f_one_b(2, 2), 0.5, overlap)
    assert timeline.end_s[tasks.own_starts[2] - 1] == start_s


@given(orders(), st.integers(0, 8), st.integers(0, 8), st.booleans())
@settings(max_examples=60)
def test_faster_links_never_slow_a_fixed_order(order: Order, a: int, b: int, overlap: bool) -> None:
    schedule, (fast, slow) = order.actions, sorted((a / 4, b / 4))
    overlap = overlap or not order.family.blocks
    assert makespan_s(schedule, fast, overlap) <= makespan_s(schedule, slow, overlap)


@st.composite
def random_seconds(draw: st.DrawFn) -> PipelineSeconds:
    """Return different durations of actions and messages, in multiples of 0.25 s."""
    quarters = st.lists(st.integers(0, 12), min_size=5, max_size=5)
    act, send, arrive = draw(quarters), draw(quarters), draw(quarters)

    def pick(values: list[int], action: Action) -> float:
        number = 7 * action.virtual_stage + 3 * action.microbatch + (action.kind == "F")
        return values[number % len(values)] / 4

    return PipelineSeconds(
        action=lambda action: pick(act, action),
        transfer=lambda message, num_concurrent_sends: pick(send, message.producer),
        receive_gather=lambda message: pick(arrive, message.producer),
    )


@given(blocking_schedules(), random_seconds())
@settings(max_examples=60)
def test_blocking_is_never_faster_than_overlap(
    schedule: Schedule, seconds: PipelineSeconds
) -> None:
    blocking, overlapped = (
        simulate(pipeline_program(schedule, seconds, overlap)[0]) for overlap in (False, True)
    )
    assert blocking.makespan_s >= overlapped.makespan_s
    busy_s = np.bincount(overlapped.program.graph.stream_of, overlapped.program.duration_s)
    assert overlapped.makespan_s >= busy_s.max()


@given(orders(), random_seconds(), st.booleans())
@settings(max_examples=30)
def test_no_task_starts_before_its_inputs(
    order: Order, seconds: PipelineSeconds, overlap: bool
) -> None:
    schedule, overlap = order.actions, overlap or not order.family.blocks
    program, tasks = pipeline_program(schedule, seconds, overlap)
    timeline = simulate(program)
    names = [program.graph.name_of(task) for task in tasks.first.tolist()]
    assert names == [str(schedule.cell_at(place)) for place in range(len(names))]
    transfers = slice(len(tasks.messages))
    produced, consumed = tasks.messages.producer, tasks.messages.consumer
    assert (timeline.end_s[tasks.last[produced]] <= timeline.start_s[transfers]).all()
    assert (timeline.end_s[transfers] <= timeline.start_s[tasks.first[consumed]]).all()
    assert [*timeline.spans()] == [*simulate(program).spans()]


@given(schedules())
@settings(max_examples=40)
def test_a_slow_link_takes_at_least_the_time_of_its_messages(schedule: Schedule) -> None:
    assume(schedule.num_stages > 1)
    timeline, tasks = run(schedule, 100.0, overlap=True)
    streams = map(timeline.program.graph.stream, range(len(tasks.messages)))
    busiest = max(Counter(streams).values())
    assert timeline.makespan_s >= 100.0 * busiest


@pytest.mark.parametrize(
    ("overlap", "cycle"),
    [
        # Rank 1 waits for another message than the first one that rank 0 offers.
        (False, "'0F0 to 1F0' on link 0->1 -> 'synchronize' on stage 1"),
        # Rank 0 sends microbatch 1 only after it has received microbatch 0, which rank 1 sends
        # second.
        (
            True,
            "'0F1 to 1F1' on link 0->1 -> '0B0' on stage 0 -> '1B1 to 0B1' on link 1->0 -> "
            "'1F1' on stage 1",
        ),
    ],
)
def test_ranks_whose_orders_contradict_each_other_are_named(overlap: bool, cycle: str) -> None:
    schedule = Schedule.from_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "1f1b")
    with pytest.raises(DeadlockError) as error:
        run(schedule, 1.0, overlap)
    first = cycle.split(" -> ")[0]
    assert f"each waits for the next: {cycle} -> {first}" in str(error.value)
