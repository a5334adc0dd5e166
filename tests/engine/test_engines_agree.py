"""SimPy, compiled loops and plain loops give equal times to the last bit."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_programs import Link, LinkedTask, linked_program, times_by_engine
from simtrain.engine import DeadlockError, Program, simulate
from simtrain.errors import InputError

# Some are shorter than the rounding of the simulated clock.
DURATIONS_S = st.one_of(st.integers(0, 3).map(float), st.floats(0.0, 3.0))
AMOUNTS = st.one_of(st.sampled_from([0.25, 0.5, 1.0]), st.floats(0.01, 3.0))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw up to 40 tasks on four streams that share up to three links."""
    links = [Link(f"link {i}", draw(AMOUNTS)) for i in range(draw(st.integers(0, 3)))]
    some_links = st.lists(st.sampled_from(links), unique=True) if links else st.just([])
    tasks = []
    for index in range(draw(st.integers(0, 40))):
        earlier = st.integers(0, index - 1) if index else st.nothing()
        after = draw(st.lists(earlier, max_size=3)) if index else []
        stream, weight = draw(st.sampled_from("abcd")), draw(AMOUNTS)
        loads = tuple((link, draw(AMOUNTS)) for link in draw(some_links))
        seconds = draw(DURATIONS_S)
        tasks.append(LinkedTask(f"t{index}", stream, seconds, tuple(after), loads, weight))
    return linked_program(tasks)


def assert_same(program: Program) -> None:
    """Compare SimPy, compiled loops and plain loops to the last bit."""
    times = times_by_engine(program)
    for found in times.values():
        assert all(map(np.array_equal, found, times["simpy"]))


@given(programs())
@settings(max_examples=60)
def test_all_engines_agree_to_the_last_bit(program: Program) -> None:
    assert_same(program)


def test_all_engines_agree_on_programs_with_much_concurrency() -> None:
    """The programs are long, so different roundings would add up."""
    number, device = random.Random(7), Link("device", 1.0)
    for _ in range(8):
        tasks = [
            LinkedTask(
                f"t{index}",
                number.choice("abcd"),
                number.random() ** 4,
                tuple(number.randrange(index) for _ in range(number.randrange(3)) if index),
                loads=((device, number.choice([0.3, 1.0])),) if number.random() < 0.7 else (),
            )
            for index in range(300)
        ]
        assert_same(linked_program(tasks))


def test_both_engines_report_the_same_deadlock() -> None:
    tasks = (
        LinkedTask("early", "a", 1.0, after=(1,)),
        LinkedTask("late", "a", 1.0),
        LinkedTask("on", "b", 1.0),
    )
    errors = []
    for engine in ("simpy", "compiled"):
        with pytest.raises(DeadlockError) as error:
            simulate(linked_program(tasks), engine)  # type: ignore[arg-type]
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match=r"E504 .*'simpi'"):
        simulate(linked_program(()), "simpi")  # type: ignore[arg-type]
