"""Time slots of a schedule: lengths equal the papers', and each pass follows its inputs."""

import numpy as np
import pytest

from simtrain.schedules import Messages, Schedule, build, time_slots

CASES: list[tuple[str, int, int, int]] = [
    ("gpipe", 4, 1, 6),
    ("1f1b", 4, 1, 8),
    ("1f1b", 5, 1, 2),
    ("1f1b", 1, 1, 3),
    ("interleaved", 4, 3, 8),
]


@pytest.mark.parametrize(("name", "p", "v", "m"), CASES)
def test_the_bubble_equals_the_papers_formula(name: str, p: int, v: int, m: int) -> None:
    """2mv slots have passes and 2(p - 1) are idle: (p - 1)/v passes of a whole stage (Narayanan et
    al. 2021, Section 2.2).
    """
    slots = time_slots(build(name, p, v, m))
    assert slots.max() + 1 == 2 * m * v + 2 * (p - 1)


@pytest.mark.parametrize(("name", "p", "v", "m"), CASES)
def test_an_action_starts_after_the_previous_one_and_its_message(
    name: str, p: int, v: int, m: int
) -> None:
    schedule = build(name, p, v, m)
    slots, messages = time_slots(schedule), Messages.of(schedule)
    assert (slots[messages.consumer] > slots[messages.producer]).all()
    for own in np.split(slots, schedule.rank_starts[1:-1]):
        assert (np.diff(own) > 0).all()


def test_actions_of_a_deadlock_have_no_slot() -> None:
    """Each of two ranks waits for a pass that the other runs later."""
    schedule = Schedule.from_csv("0F0,0F1,0B1,0B0\n1F1,1B1,1F0,1B0\n", "1f1b")
    assert time_slots(schedule).min() >= 0
    schedule = Schedule.from_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "1f1b")
    assert time_slots(schedule).tolist() == [0, -1, -1, -1, -1, -1, -1, -1]
