"""Asynchronous messages that follow a blocking exchange of their shapes."""

from collections import defaultdict

import pytest

from simtrain.engine import simulate
from simtrain.schedules import Messages, interleaved, shape_slots
from tests.helpers.pipelines import PipelineSeconds, pipeline_program

FORWARD_S, BACKWARD_S, TRANSFER_S, SYNC_S = 1.0, 2.0, 0.75, 0.125


@pytest.mark.parametrize(("p", "m", "n"), [(2, 2, 4), (3, 2, 6), (4, 3, 8)])
def test_actions_start_as_in_a_simulation_of_the_exchanges(p: int, m: int, n: int) -> None:
    """The engine and a loop over exchanges give the same start of each action."""
    schedule = interleaved(p, m, n)
    seconds = PipelineSeconds(
        lambda action: FORWARD_S if action.kind == "F" else BACKWARD_S,
        lambda *_: TRANSFER_S,
        synchronize=lambda _: SYNC_S,
    )
    program, tasks = pipeline_program(schedule, seconds, overlap=True, exchanges_shapes=True)
    found = simulate(program).start_s[tasks.first]
    assert found.tolist() == pytest.approx(_starts_s(schedule), rel=1e-12)


def _starts_s(schedule) -> list[float]:
    """Return the start of each action, by repetition until nothing changes.

    A rank reaches the exchange after an action when the action has ended. The exchange ends when
    the other ranks of its messages have reached their exchange, and when the messages of the rank's
    previous exchange have arrived. A message starts when both of its ranks have reached it.
    """
    messages = Messages.of(schedule)
    slots = shape_slots(messages)
    ends = [*zip(slots.send.tolist(), slots.receive.tolist(), strict=True)]
    inputs = dict(zip(messages.consumer.tolist(), range(len(messages)), strict=True))
    exchanges = defaultdict(list)
    for number, pair in enumerate(ends):
        for slot, other in (pair, pair[::-1]):
            exchanges[slot].append((number, other))
    start_s, reached_s, left_s = defaultdict(float), defaultdict(float), defaultdict(float)
    while True:
        before = dict(start_s), dict(left_s)
        for rank in range(schedule.num_stages):
            now_s, arriving = 0.0, []
            for slot in range(int(slots.starts[rank]), int(slots.starts[rank + 1])):
                for action in (slots.action == slot).nonzero()[0].tolist():
                    message = inputs.get(action)
                    arrived_s = _arrival_s(ends, reached_s, message)
                    now_s = start_s[action] = max(now_s, arrived_s)
                    now_s += FORWARD_S if schedule.action(action).kind == "F" else BACKWARD_S
                if slot in exchanges:
                    reached_s[slot] = now_s
                    others_s = [reached_s[other] for _, other in exchanges[slot]]
                    earlier_s = [_arrival_s(ends, reached_s, one) for one in arriving]
                    now_s = left_s[slot] = max(now_s, *others_s, *earlier_s) + SYNC_S
                    arriving = [number for number, _ in exchanges[slot]]
        if before == (dict(start_s), dict(left_s)):
            return [start_s[action] for action in range(len(schedule.kind))]


def _arrival_s(ends, reached_s, message: int | None) -> float:
    if message is None:
        return 0.0
    send, receive = ends[message]
    return max(reached_s[send], reached_s[receive]) + TRANSFER_S
