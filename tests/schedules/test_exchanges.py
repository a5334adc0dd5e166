"""Placements of virtual stages, and the messages and exchanges between their ranks."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import DeadlockError, simulate
from simtrain.errors import InputError
from simtrain.schedules import (
    Action,
    Exchange,
    Message,
    Messages,
    Schedule,
    StagePlacement,
    Step,
    back_and_forth,
    blocking_steps,
    family_of,
    gpipe,
    interleaved,
    looped,
    one_f_one_b,
    time_slots,
    waiting_stages,
)
from tests.helpers.pipelines import PipelineSeconds, pipeline_program
from tests.helpers.schedule_strategies import (
    blocking_schedules,
    placements,
    random_order,
    schedules,
)
from tests.helpers.v_shaped import VShaped


def text(step: Step) -> str:
    """Write an exchange as `[+ sent result - result received]`, and an action in its text form."""
    if isinstance(step, Action):
        return str(step)
    sends = [f"+{message.producer}" for message in step.sends]
    receives = [f"-{message.producer}" for message in step.receives]
    return f"[{' '.join(sends + receives)}]"


def lines(schedule: Schedule) -> list[str]:
    return [" ".join(map(text, steps)) for steps in blocking_steps(schedule)]


def test_exchanges_of_1f1b_by_hand() -> None:
    # Rank 0 warms up with 2 forward passes, rank 1 with 1, rank 2 with none. A steady exchange
    # sends in one direction and receives from the other; the last one only sends.
    assert lines(one_f_one_b(3, 3)) == [
        "0F0 [+0F0] 0F1 [+0F1] 0F2 [+0F2 -1B0] 0B0 [-1B1] 0B1 [-1B2] 0B2",
        "[-0F0] 1F0 [+1F0] [-0F1] 1F1 [+1F1 -2B0] 1B0 [+1B0 -0F2] 1F2 [+1F2 -2B1] 1B1 [+1B1]"
        " [-2B2] 1B2 [+1B2]",
        "[-1F0] 2F0 2B0 [+2B0 -1F1] 2F1 2B1 [+2B1 -1F2] 2F2 2B2 [+2B2]",
    ]


def test_exchanges_of_gpipe_by_hand() -> None:
    assert lines(gpipe(3, 2))[1] == (
        "[-0F0] 1F0 [+1F0] [-0F1] 1F1 [+1F1] [-2B0] 1B0 [+1B0] [-2B1] 1B1 [+1B1]"
    )


def test_exchanges_of_interleaved_by_hand() -> None:
    # 3 stages, 2 chunks, 3 microbatches: warm-ups of min(2*2 + 3, 6) = 6, 2*1 + 3 = 5 and 3 forward
    # passes. The last warm-up exchange also receives the first gradient. A steady exchange sends
    # and receives in both directions. Messages wrap from rank 2 (2F0) to rank 0 (3F0), and back.
    assert lines(interleaved(3, 2, 3)) == [
        "0F0 [+0F0] 0F1 [+0F1] 0F2 [+0F2 -2F0] 3F0 [+3F0 -2F1] 3F1 [+3F1 -2F2] 3F2 [+3F2 -4B0]"
        " 3B0 [+3B0 -4B1] 3B1 [+3B1 -4B2] 3B2 [+3B2 -1B0] 0B0 [-1B1] 0B1 [-1B2] 0B2",
        "[-0F0] 1F0 [+1F0 -0F1] 1F1 [+1F1 -0F2] 1F2 [+1F2 -3F0] 4F0 [+4F0 -3F1] 4F1"
        " [+4F1 -3F2 -5B0] 4F2 4B0 [+4F2 +4B0 -5B1] 4B1 [+4B1 -5B2] 4B2 [+4B2 -2B0]"
        " 1B0 [+1B0 -2B1] 1B1 [+1B1 -2B2] 1B2 [+1B2]",
        "[-1F0] 2F0 [+2F0 -1F1] 2F1 [+2F1 -1F2] 2F2 [+2F2 -4F0]"
        " 5F0 5B0 [+5B0 -4F1] 5F1 5B1 [+5B1 -4F2] 5F2 5B2 [+5B2 -3B0]"
        " 2B0 [+2B0 -3B1] 2B1 [+2B1 -3B2] 2B2 [+2B2]",
    ]


@given(blocking_schedules())
@settings(max_examples=60)
def test_every_result_for_another_rank_is_sent_once(schedule: Schedule) -> None:
    exchanges = [
        (rank, step)
        for rank, steps in enumerate(blocking_steps(schedule))
        for step in steps
        if isinstance(step, Exchange)
    ]
    sent = Counter((rank, message) for rank, step in exchanges for message in step.sends)
    received = Counter((rank, message) for rank, step in exchanges for message in step.receives)
    messages = [*Messages.of(schedule)]
    assert sent == Counter((message.sender, message) for message in messages)
    assert received == Counter((message.receiver, message) for message in messages)

    hops = schedule.num_virtual_stages - 1 if schedule.num_stages > 1 else 0
    assert len(set(messages)) == len(messages) == 2 * hops * schedule.num_microbatches


@given(blocking_schedules())
@settings(max_examples=60)
def test_exchanges_keep_the_order_of_actions(schedule: Schedule) -> None:
    for actions, steps in zip(schedule.ranks, blocking_steps(schedule), strict=True):
        assert tuple(step for step in steps if isinstance(step, Action)) == actions


def test_messages_of_two_chunks_on_two_ranks() -> None:
    messages = {str(m): m for m in Messages.of(interleaved(2, 2, 2))}
    forward, wrap = messages["0F0 to 1F0"], messages["1F0 to 2F0"]
    assert forward == Message(Action(0, "F", 0), Action(1, "F", 0), sender=0, receiver=1)
    assert (wrap.sender, wrap.receiver) == (1, 0)
    back = messages["2B1 to 1B1"]
    assert (back.sender, back.receiver) == (0, 1)


def test_an_input_gradient_is_sent_before_its_weight_gradient_runs() -> None:
    schedule = Schedule.from_csv("0F0,0B0\n1F0,1I0,1W0\n", "custom")
    assert [str(m) for m in Messages.of(schedule)] == ["0F0 to 1F0", "1I0 to 0B0"]


def test_other_orders_exchange_between_all_passes() -> None:
    """One call sends a pass's output and receives the next one's input; weight gradients have
    neither.
    """
    order = "0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1I1,1W0,1W1\n"
    assert lines(Schedule.from_csv(order, "custom")) == [
        "0F0 [+0F0] 0F1 [+0F1 -1I0] 0B0 [-1I1] 0B1",
        "[-0F0] 1F0 1I0 [+1I0 -0F1] 1F1 1I1 [+1I1] 1W0 1W1",
    ]


def blocks_forever(schedule: Schedule) -> bool:
    """Whether the engine finds that stages wait for each other."""
    seconds = PipelineSeconds(lambda _: 1.0, lambda *_: 1.0)
    try:
        simulate(pipeline_program(schedule, seconds, overlap=False)[0])
    except DeadlockError:
        return True
    return False


@given(schedules())
@settings(max_examples=50)
def test_stages_wait_where_the_engine_deadlocks(schedule: Schedule) -> None:
    waits = waiting_stages(schedule)
    assert bool(waits) is blocks_forever(schedule)
    # Transfers between vocabulary passes never block, whatever the schedule's own do.
    assert not waits or not family_of(schedule).blocks


@given(placements(), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=50)
def test_stages_wait_where_the_engine_deadlocks_in_any_order(
    placement: StagePlacement, n: int, seed: int
) -> None:
    schedule = replace(random_order(placement, n, seed), name="custom")
    assert bool(waiting_stages(schedule)) is blocks_forever(schedule)


MICROBATCHES = st.integers(1, 5)
SEEDS = st.integers(0, 2**20)


def test_placements_by_hand() -> None:
    assert looped(3, 2).ranks == (0, 1, 2, 0, 1, 2)
    assert looped(3, 2).virtual_stages == ((0, 3), (1, 4), (2, 5))
    assert back_and_forth(3, 2).ranks == (0, 1, 2, 2, 1, 0)
    assert back_and_forth(3, 2).virtual_stages == ((0, 5), (1, 4), (2, 3))
    assert back_and_forth(2, 3).ranks == (0, 1, 1, 0, 0, 1)
    assert back_and_forth(4, 1) == looped(4, 1)


@given(placements())
def test_chunks_of_ranks_are_all_virtual_stages_once(placement: StagePlacement) -> None:
    for virtual_stage, rank in enumerate(placement.ranks):
        chunk = placement.chunks[virtual_stage]
        assert placement.virtual_stages[rank][chunk] == virtual_stage
    assert {*map(len, placement.virtual_stages)} == {placement.num_chunks}
    assert placement.num_ranks * placement.num_chunks == placement.num_virtual_stages


@given(placements(), MICROBATCHES, SEEDS)
@settings(max_examples=60)
def test_neighbours_on_different_ranks_exchange_messages(
    placement: StagePlacement, n: int, seed: int
) -> None:
    messages = Messages.of(random_order(placement, n, seed))
    ranks, ends = placement.ranks, Counter[tuple[int, int]]()
    for message, step in zip(messages, messages.step.tolist(), strict=True):
        sender, receiver = message.producer.virtual_stage, message.consumer.virtual_stage
        assert (message.sender, message.receiver) == (ranks[sender], ranks[receiver])
        assert message.receiver == (message.sender + step) % placement.num_ranks
        ends[sender, receiver] += 1
    pairs = [(v, v + 1) for v in range(len(ranks) - 1) if ranks[v] != ranks[v + 1]]
    assert ends == {pair: n for low, high in pairs for pair in ((low, high), (high, low))}


@given(placements(), MICROBATCHES, SEEDS)
@settings(max_examples=60)
def test_files_keep_their_placement(placement: StagePlacement, n: int, seed: int) -> None:
    schedule = random_order(placement, n, seed)
    read = Schedule.from_csv(schedule.to_csv(), schedule.name)
    assert read == schedule
    assert read.placement.ranks == placement.ranks


def test_an_action_off_the_v_is_refused() -> None:
    text = VShaped().build(2, 2, 1).to_csv()
    assert text == "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"
    with pytest.raises(InputError) as error:
        Schedule.from_csv("0F0,3F0,3B0,0B0,2B0\n1F0,2F0,1B0\n", "custom")
    assert "E404 3F0 does not belong on rank 0" in str(error.value)
    assert "rank 0 of 2 holds virtual stages [0, 2]" in str(error.value)


@given(st.integers(2, 6), st.integers(1, 12))
@settings(max_examples=40)
def test_the_v_of_the_tests_can_run_and_is_balanced(p: int, n: int) -> None:
    """Its bubble is at most that of 1F1B with passes of two chunks, and all ranks hold as much."""
    schedule = VShaped().build(p, 2, n)
    schedule.validate()
    slots = time_slots(schedule)
    assert slots.min() >= 0
    assert np.bincount(schedule.rank).tolist() == [4 * n] * p
    assert slots.max() + 1 <= 4 * (n + p - 1)
