"""A task graph that several replicas run: arrays and SimPy agree, and joint tasks are barriers."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_programs import LinkedTask, linked_program, random_program
from simtrain.engine import DeadlockError, Program, TaskGraph, simulate
from simtrain.engine.compiled import Floats
from simtrain.engine.program import rows_of
from simtrain.engine.replicas import ReplicaProgram, run_replicas


def drawn_program(number: random.Random, replicas: int, draws: int) -> ReplicaProgram:
    """Draw a graph, groups of replicas for each task, and durations."""
    graph = random_program(number).graph
    sizes = [number.choice([1, 1, 2, replicas]) for _ in range(graph.num_tasks)]
    shape = graph.num_tasks, draws, replicas
    seconds = [number.choice([0.0, 1.0, number.random()]) for _ in range(int(np.prod(shape)))]
    return ReplicaProgram(graph, np.array(sizes, np.intp), np.array(seconds).reshape(shape))


def expanded(program: ReplicaProgram, draw: int) -> Program:
    """Return one draw as a program with the tasks of every replica on streams of its own.

    A joint task of a replica waits for all that the joint task of any replica of its group waits
    for. LinkedTask t of replica r has the number t · replicas + r.
    """
    graph, replicas = program.graph, program.duration_s.shape[2]
    duration_s = program.duration_s[:, draw].copy()
    waiting = np.repeat(np.arange(graph.num_tasks), np.diff(graph.after_starts))
    before = np.flatnonzero(graph.previous >= 0)
    pairs = [
        *zip(waiting.tolist(), graph.after.tolist(), strict=True),
        *zip(before.tolist(), graph.previous[before].tolist(), strict=True),
    ]
    groups = [
        [*range(first, min(first + size, replicas))]
        for size in program.group_sizes.tolist()
        for first in range(0, replicas, size)
    ]
    of_task: dict[int, list[list[int]]] = {}
    numbers = np.repeat(np.arange(graph.num_tasks), -(-replicas // program.group_sizes))
    for task, group in zip(numbers.tolist(), groups, strict=True):
        of_task.setdefault(task, []).append(group)
        duration_s[task, group] = duration_s[task, group].max()
    waits = [
        (task * replicas + member, other * replicas + awaited)
        for task, other in pairs
        for group in of_task[task]
        for member, awaited in itertools.product(group, group)
    ]
    columns = np.array(waits, np.int32).reshape(-1, 2)
    streams = [f"{name} of replica {r}" for name in graph.streams for r in range(replicas)]
    stream_of = (graph.stream_of[:, None] * replicas + np.arange(replicas)).ravel()
    every = TaskGraph(
        tuple(streams),
        stream_of.astype(np.int32),
        *rows_of(graph.num_tasks * replicas, columns[:, 0], columns[:, 1]),
    )
    return Program(every, duration_s.ravel())


def simulated(program: ReplicaProgram) -> tuple[Floats, Floats]:
    shape = program.duration_s.shape
    start_s, end_s = np.empty(shape), np.empty(shape)
    for draw in range(shape[1]):
        timeline = simulate(expanded(program, draw), "simpy")
        start_s[:, draw] = timeline.start_s.reshape(shape[0], shape[2])
        end_s[:, draw] = timeline.end_s.reshape(shape[0], shape[2])
    return start_s, end_s


@given(st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_arrays_and_simpy_agree_to_the_last_bit(seed: int, replicas: int) -> None:
    program = drawn_program(random.Random(seed), replicas, 2)
    assert all(map(np.array_equal, run_replicas(program), simulated(program)))


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
    graph = linked_program(
        [LinkedTask("pass", "a", 0.0), LinkedTask("reduce", "b", 0.0, after=(0,))]
    ).graph
    seconds = np.array([[[1.0, 4.0, 2.0, 3.0]], [[1.0, 0.5, 1.0, 1.0]]])
    start_s, end_s = run_replicas(ReplicaProgram(graph, np.array([1, 2]), seconds))
    assert start_s[1].tolist() == [[4.0, 4.0, 3.0, 3.0]]
    assert end_s[1].tolist() == [[5.0, 5.0, 4.0, 4.0]]
    over_all = ReplicaProgram(graph, np.array([1, 4]), seconds)
    assert run_replicas(over_all)[1][1].tolist() == [[5.0] * 4]


def test_a_deadlock_names_the_tasks_that_wait() -> None:
    tasks = (LinkedTask("early", "a", 1.0, after=(1,)), LinkedTask("late", "a", 1.0))
    graph = linked_program(tasks).graph
    with pytest.raises(DeadlockError, match="early"):
        run_replicas(ReplicaProgram(graph, np.ones(2, np.intp), np.ones((2, 1, 2))))
