"""Exchanges between the actions of ranks, compared with Megatron-LM's calls, worked out by hand."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import DeadlockError, simulate
from simtrain.schedules import (
    Action,
    Exchange,
    Message,
    Messages,
    Schedule,
    StagePlacement,
    Step,
    blocking_steps,
    family_of,
    gpipe,
    interleaved,
    one_f_one_b,
    waiting_stages,
)
from tests.helpers.pipelines import PipelineSeconds, pipeline_program
from tests.helpers.schedule_strategies import (
    blocking_schedules,
    placements,
    random_order,
    schedules,
)


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


def test_1f1b_without_steady_phase_has_no_two_way_exchanges() -> None:
    assert lines(one_f_one_b(3, 1)) == [
        "0F0 [+0F0] [-1B0] 0B0",
        "[-0F0] 1F0 [+1F0] [-2B0] 1B0 [+1B0]",
        "[-1F0] 2F0 2B0 [+2B0]",
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


def test_a_steady_interleaved_exchange_has_four_messages() -> None:
    steady = "[+4F2 +4B0 -0F3 -5B1]"  # rank 1 of 3 in the middle of a longer run
    assert steady in lines(interleaved(3, 2, 6))[1]


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
