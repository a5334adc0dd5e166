"""The engine: closed forms by hand, laws of queues, deadlocks, and text forms."""

import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_programs import Link, LinkedTask, linked_program
from simtrain.engine import DeadlockError, Timeline, simulate
from simtrain.errors import InputError


@st.composite
def task_lists(draw: st.DrawFn) -> list[LinkedTask]:
    """Draw up to 25 tasks with whole seconds on 4 streams; each waits only for earlier tasks."""
    tasks = []
    for index in range(draw(st.integers(0, 25))):
        earlier = st.integers(0, index - 1) if index else st.nothing()
        after = draw(st.lists(earlier, max_size=4)) if index else []
        stream = draw(st.sampled_from("abcd"))
        tasks.append(LinkedTask(f"t{index}", stream, draw(st.integers(0, 9)), tuple(after)))
    return tasks


def run(*tasks: LinkedTask) -> Timeline:
    return simulate(linked_program(tasks))


def ends(*tasks: LinkedTask) -> list[float]:
    return [float(end_s) for end_s in run(*tasks).end_s]


def test_tasks_queue_on_a_stream_and_wait_across_streams() -> None:
    timeline = run(
        LinkedTask("gemm", "compute", 2.0),
        LinkedTask("reduce", "network", 3.0, after=(0,)),
        LinkedTask("next gemm", "compute", 1.0),
        LinkedTask("use", "compute", 0.5, after=(1, 0)),
    )
    assert timeline.start_s.tolist() == [0.0, 2.0, 2.0, 5.0]
    assert timeline.end_s.tolist() == [2.0, 5.0, 3.0, 5.5]
    assert timeline.makespan_s == 5.5


def test_a_task_without_duration_ends_when_it_starts() -> None:
    tasks = (
        LinkedTask("work", "a", 1.5),
        LinkedTask("signal", "b", 0.0, after=(0,)),
        LinkedTask("relay", "a", 0.0, after=(1,)),
        LinkedTask("end", "b", 1.0, after=(2,)),
    )
    assert ends(*tasks) == [1.5, 1.5, 1.5, 2.5]


@given(task_lists())
@settings(max_examples=100)
def test_the_makespan_is_the_longest_path(tasks: list[LinkedTask]) -> None:
    # Whole seconds, so sums are exact. The path also runs along each stream's queue.
    end: list[float] = []
    last_on: dict[str, int] = {}
    for index, task in enumerate(tasks):
        before = [*task.after, *([last_on[task.stream]] if task.stream in last_on else [])]
        end.append(max((end[other] for other in before), default=0) + task.duration_s)
        last_on[task.stream] = index
    assert ends(*tasks) == end


@given(task_lists())
@settings(max_examples=60)
def test_the_critical_path_fills_the_makespan(tasks: list[LinkedTask]) -> None:
    timeline = simulate(linked_program(tasks))
    path = timeline.critical_path()
    ends = [0.0, *(span.end_s for span in path)]
    assert [span.start_s for span in path] == ends[:-1]
    assert ends[-1] == timeline.makespan_s


def test_loads_of_a_kernel_and_collectives_add_up() -> None:
    """A kernel loads a device fully, a collective by half.

    At first all run at a speed of 1/(1 + 2 · 0.5): at 4 s each has done 2 s, and the gather has
    ended. Then 1 s of the reduction takes 1.5 s, which leaves 1 s of the kernel at 5.5 s.
    """
    device = Link("device", 1.0)
    tasks = ("gemm", 4.0, 1.0), ("reduce", 3.0, 0.5), ("gather", 2.0, 0.5)
    end = ends(*(LinkedTask(name, name, s, loads=((device, load),)) for name, s, load in tasks))
    assert end == pytest.approx([6.5, 5.5, 4.0], rel=1e-15)


def test_a_deadlock_error_lists_all_waits() -> None:
    tasks = (
        LinkedTask("done", "c", 1.0),
        LinkedTask("send", "a", 1.0, after=(0, 4)),
        LinkedTask("first", "b", 1.0, after=(1,)),
        LinkedTask("second", "b", 1.0),
        LinkedTask("reply", "b", 1.0),
        LinkedTask("onlooker", "d", 1.0, after=(2, 0)),
    )
    with pytest.raises(DeadlockError) as error:
        run(*tasks)
    assert str(error.value) == (
        "deadlock: 3 streams can never continue; each waits for the next: "
        "'send' on a -> 'first' on b -> 'send' on a"
    )
    assert [wait.stream for wait in error.value.waits] == ["a", "b", "d"]
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


@pytest.mark.parametrize("duration_s", [-1.0, -1e-300, math.nan, math.inf, -math.inf])
def test_an_invalid_duration_is_refused(duration_s: float) -> None:
    with pytest.raises(InputError) as error:
        linked_program([LinkedTask("gemm", "compute", duration_s)])
    assert f"E501 task 'gemm' on 'compute' lasts {duration_s!r} s" in str(error.value)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (0, "a task cannot wait for itself"),
        (1, "the program's tasks are 0 to 0"),
        (-1, "the program's tasks are 0 to 0"),
    ],
)
def test_a_wait_that_no_task_can_satisfy(other: int, reason: str) -> None:
    with pytest.raises(InputError) as error:
        linked_program([LinkedTask("gemm", "compute", 1.0, after=(other,))])
    assert f"E502 task 'gemm' (number 0) waits for task number {other}" in str(error.value)
    assert reason in str(error.value)


def test_all_problems_of_a_program_are_reported() -> None:
    """Problems of the graph come first, then problems of durations."""
    for tasks, code in (
        ([LinkedTask("x", "a", 1.0, after=(7,)), LinkedTask("y", "a", 1.0, after=(0, 1))], "E502"),
        ([LinkedTask("x", "a", -1.0), LinkedTask("y", "a", math.nan)], "E501"),
    ):
        with pytest.raises(InputError) as error:
            linked_program(tasks)
        assert [problem.code for problem in error.value.problems] == [code, code]
