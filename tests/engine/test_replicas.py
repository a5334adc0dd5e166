"""A task graph that several replicas run: arrays and SimPy agree, and joint tasks are barriers."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_programs import random_program
from simtrain.engine import DeadlockError, Program, Task, simulate
from simtrain.engine.replicas import ReplicaProgram, run_replicas


def drawn_program(number: random.Random, replicas: int, draws: int) -> ReplicaProgram:
    """Draw a graph, groups of replicas for each task, and durations."""
    graph = random_program(number).graph
    sizes = [number.choice([1, 1, 2, replicas]) for _ in range(graph.num_tasks)]
    shape = graph.num_tasks, draws, replicas
    seconds = [number.choice([0.0, 1.0, number.random()]) for _ in range(int(np.prod(shape)))]
    return ReplicaProgram(graph, np.array(sizes, np.intp), np.array(seconds).reshape(shape))


@given(st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_arrays_and_simpy_agree_to_the_last_bit(seed: int, replicas: int) -> None:
    program = drawn_program(random.Random(seed), replicas, 2)
    for arrays, reference in zip(
        run_replicas(program), run_replicas(program, "simpy"), strict=True
    ):
        assert np.array_equal(arrays, reference)


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_replicas_that_do_not_wait_run_as_programs_of_their_own(seed: int) -> None:
    program = drawn_program(random.Random(seed), 3, 1).alone()
    start_s, end_s = run_replicas(program)
    for replica in range(3):
        timeline = simulate(Program(program.graph, program.duration_s[:, 0, replica]))
        assert np.array_equal(start_s[:, 0, replica], timeline.start_s)
        assert np.array_equal(end_s[:, 0, replica], timeline.end_s)


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_equal_replicas_take_as_long_as_a_single_one(seed: int) -> None:
    program = drawn_program(random.Random(seed), 4, 1)
    equal = np.repeat(program.duration_s[:, :, :1], 4, axis=2)
    _, end_s = run_replicas(replace(program, duration_s=equal))
    timeline = simulate(Program(program.graph, equal[:, 0, 0]))
    assert (end_s[:, 0] == timeline.end_s[:, None]).all()


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_barrier_never_makes_anything_earlier(seed: int) -> None:
    program = drawn_program(random.Random(seed), 3, 2)
    (_, joint_s), (_, alone_s) = run_replicas(program), run_replicas(program.alone())
    assert (joint_s >= alone_s).all()


def test_a_joint_task_waits_for_the_slowest_replica_of_its_group() -> None:
    """Passes of 1, 4, 2 and 3 s, then a reduction of 1 s over pairs: at 4 and 3 s."""
    graph = Program.of([Task("pass", "a", 0.0), Task("reduce", "b", 0.0, after=(0,))]).graph
    seconds = np.array([[[1.0, 4.0, 2.0, 3.0]], [[1.0, 0.5, 1.0, 1.0]]])
    start_s, end_s = run_replicas(ReplicaProgram(graph, np.array([1, 2]), seconds))
    assert start_s[1].tolist() == [[4.0, 4.0, 3.0, 3.0]]
    assert end_s[1].tolist() == [[5.0, 5.0, 4.0, 4.0]]
    over_all = ReplicaProgram(graph, np.array([1, 4]), seconds)
    assert run_replicas(over_all)[1][1].tolist() == [[5.0] * 4]


def test_a_deadlock_names_the_tasks_that_wait() -> None:
    tasks = (Task("early", "a", 1.0, after=(1,)), Task("late", "a", 1.0))
    graph = Program.of(tasks).graph
    with pytest.raises(DeadlockError, match="early"):
        run_replicas(ReplicaProgram(graph, np.ones(2, np.intp), np.ones((2, 1, 2))))
