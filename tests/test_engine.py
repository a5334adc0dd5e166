"""The engine: closed forms worked by hand, laws of queues, deadlocks, and its text forms."""

import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import (
    DeadlockError,
    Interference,
    Program,
    ProgramBuilder,
    Span,
    Task,
    simulate,
)
from simtrain.errors import InputError


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Up to 25 tasks of whole seconds on 4 streams; each waits only for earlier ones."""
    tasks = []
    for index in range(draw(st.integers(0, 25))):
        earlier = st.integers(0, index - 1) if index else st.nothing()
        after = draw(st.lists(earlier, max_size=4)) if index else []
        stream = draw(st.sampled_from("abcd"))
        tasks.append(Task(f"t{index}", stream, draw(st.integers(0, 9)), tuple(after)))
    return Program(tuple(tasks))


def test_tasks_queue_on_a_stream_and_wait_across_streams() -> None:
    builder = ProgramBuilder()
    gemm = builder.add("gemm", "compute", 2.0)
    reduce = builder.add("reduce", "network", 3.0, after=(gemm,))
    builder.add("next gemm", "compute", 1.0)
    builder.add("use", "compute", 0.5, after=(reduce, gemm))
    timeline = simulate(builder.build())
    assert timeline.start_s == (0.0, 2.0, 2.0, 5.0)
    assert timeline.end_s == (2.0, 5.0, 3.0, 5.5)
    assert timeline.makespan_s == 5.5
    assert timeline.busy_s() == {"compute": 3.5, "network": 3.0}


def test_a_task_may_wait_for_one_that_is_added_later() -> None:
    builder = ProgramBuilder()
    first = builder.add("first", "a", 1.0)
    later = builder.add("later", "b", 2.0)
    builder.wait(first, after=(later,))
    assert simulate(builder.build()).start_s == (2.0, 0.0)


def test_a_blocked_head_holds_up_the_whole_stream() -> None:
    tasks = (Task("slow", "a", 5.0), Task("head", "b", 1.0, after=(0,)), Task("free", "b", 1.0))
    assert simulate(Program(tasks)).start_s == (0.0, 5.0, 6.0)


def test_tasks_without_duration_pass_on_the_moment() -> None:
    tasks = (
        Task("work", "a", 1.5),
        Task("signal", "b", 0.0, after=(0,)),
        Task("relay", "a", 0.0, after=(1,)),
        Task("end", "b", 1.0, after=(2,)),
    )
    timeline = simulate(Program(tasks))
    assert timeline.start_s == (0.0, 1.5, 1.5, 1.5)
    assert timeline.makespan_s == 2.5


def test_an_empty_program_takes_no_time() -> None:
    timeline = simulate(Program(()))
    assert (timeline.makespan_s, list(timeline.spans()), timeline.busy_s()) == (0.0, [], {})


@given(programs())
@settings(max_examples=100)
def test_the_makespan_is_the_longest_path(program: Program) -> None:
    # Whole seconds, so sums are exact. The path also runs along each stream's queue.
    end: list[float] = []
    last_on: dict[str, int] = {}
    for index, task in enumerate(program.tasks):
        before = [*task.after, *([last_on[task.stream]] if task.stream in last_on else [])]
        end.append(max((end[other] for other in before), default=0) + task.duration_s)
        last_on[task.stream] = index
    assert simulate(program).end_s == tuple(end)


@given(programs())
@settings(max_examples=100)
def test_no_program_beats_its_busiest_stream_or_its_critical_path(program: Program) -> None:
    timeline = simulate(program)
    path: list[float] = []
    for task in program.tasks:
        path.append(max((path[other] for other in task.after), default=0) + task.duration_s)
    assert timeline.makespan_s >= max(path, default=0)
    assert timeline.makespan_s >= max(timeline.busy_s().values(), default=0)
    assert timeline.makespan_s <= sum(task.duration_s for task in program.tasks)


@given(programs())
@settings(max_examples=60)
def test_the_same_program_gives_the_same_timeline(program: Program) -> None:
    assert simulate(program) == simulate(Program(program.tasks))
    assert list(simulate(program).spans()) == list(simulate(program).spans())


def test_spans_that_start_together_come_in_the_order_of_the_program() -> None:
    tasks = (Task("z", "b", 1.0), Task("y", "a", 1.0), Task("x", "b", 0.0), Task("w", "c", 2.0))
    names = [span.name for span in simulate(Program(tasks)).spans()]
    assert names == ["z", "y", "w", "x"]


SLOWED = {"compute": Interference(("network",), slowdown=0.5)}


def contended(*tasks: Task) -> tuple[float, ...]:
    return simulate(Program(tasks, SLOWED)).end_s


def test_a_victim_is_slowed_only_while_the_aggressor_runs() -> None:
    # In the aggressor's 1 s the 2 s GEMM does 1/1.5 = 2/3 s of its work; 4/3 s are left.
    gemm = Task("gemm", "compute", 2.0)
    end = contended(gemm, Task("reduce", "network", 1.0, contends=True))
    assert end == pytest.approx((1 + 4 / 3, 1.0), rel=1e-15)


def test_a_victim_that_lives_shorter_than_the_aggressor_is_stretched_throughout() -> None:
    gemm = Task("gemm", "compute", 2.0)
    end = contended(gemm, Task("reduce", "network", 8.0, contends=True), Task("g", "compute", 4.0))
    # 2 s take 3 s; of the next 4 s, 5/1.5 s are done at 8 s.
    assert end == pytest.approx((3.0, 8.0, 8 + 4 - 5 / 1.5), rel=1e-15)


def test_an_aggressor_that_starts_in_the_middle() -> None:
    # Starts at 1 s for 3 s: of the 4 s, 1 s is done before, 2 s during, 1 s after: ends at 5 s.
    wait = Task("wait", "network", 1.0)
    reduce = Task("reduce", "network", 3.0, contends=True)
    assert contended(Task("gemm", "compute", 4.0), wait, reduce) == pytest.approx((5, 1, 4))


def test_back_to_back_aggressors_are_one_long_aggressor() -> None:
    parts = [Task(f"part {i}", "network", 0.25, contends=True) for i in range(4)]
    whole = Task("whole", "network", 1.0, contends=True)
    gemm = Task("gemm", "compute", 2.0)
    assert contended(gemm, *parts)[0] == pytest.approx(contended(gemm, whole)[0], rel=1e-14)


def test_tasks_that_do_not_contend_slow_nobody() -> None:
    assert contended(Task("gemm", "compute", 2.0), Task("copy", "network", 9.0)) == (2.0, 9.0)
    assert contended(Task("gemm", "compute", 2.0)) == (2.0,)


def test_two_streams_can_slow_each_other() -> None:
    # Side by side both run at 1/2 until the shorter ends at 2 s; then the other has 2 s left.
    both = {"a": Interference(("b",), 1.0), "b": Interference(("a",), 1.0)}
    tasks = (Task("short", "a", 1.0, contends=True), Task("long", "b", 3.0, contends=True))
    assert simulate(Program(tasks, both)).end_s == (2.0, 4.0)


def test_two_aggressors_at_once_slow_no_more_than_one() -> None:
    # Slowed to 2/3 from 0 s to 3 s, where they overlap too: 2 s done, 1 s left.
    slowed = {"compute": Interference(("network", "fabric"), 0.5)}
    first = Task("reduce", "network", 2.0, contends=True)
    wait, second = Task("wait", "fabric", 1.0), Task("gather", "fabric", 2.0, contends=True)
    program = Program((Task("gemm", "compute", 3.0), first, wait, second), slowed)
    assert simulate(program).end_s == pytest.approx((4.0, 2.0, 1.0, 3.0), rel=1e-15)


@given(
    durations_s=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=5),
    aggressors=st.lists(st.tuples(st.floats(0.01, 3.0), st.booleans()), max_size=5),
    slowdown=st.floats(0.0, 2.0),
)
@settings(max_examples=100)
def test_work_is_conserved_under_interference(
    durations_s: list[float], aggressors: list[tuple[float, bool]], slowdown: float
) -> None:
    victims = [Task(f"v{i}", "v", duration_s) for i, duration_s in enumerate(durations_s)]
    others = [
        Task(f"a{i}", "a", s, contends=contends) for i, (s, contends) in enumerate(aggressors)
    ]
    program = Program((*victims, *others), {"v": Interference(("a",), slowdown)})
    spans = list(map(simulate(program).span, range(len(program.tasks))))
    slow = [span for span, task in zip(spans, program.tasks, strict=True) if task.contends]
    for span, duration_s in zip(spans, durations_s, strict=False):
        side_by_side_s = math.fsum(
            max(0.0, min(span.end_s, other.end_s) - max(span.start_s, other.start_s))
            for other in slow
        )
        lost_s = side_by_side_s * (1 - 1 / (1 + slowdown))
        assert span.duration_s - lost_s == pytest.approx(duration_s, rel=1e-9)


def test_a_deadlock_says_who_waits_for_whom() -> None:
    tasks = (
        Task("done", "c", 1.0),
        Task("send", "a", 1.0, after=(0, 4)),
        Task("first", "b", 1.0, after=(1,)),
        Task("second", "b", 1.0),
        Task("reply", "b", 1.0),
        Task("onlooker", "d", 1.0, after=(2, 0)),
    )
    with pytest.raises(DeadlockError) as error:
        simulate(Program(tasks))
    assert str(error.value).splitlines() == [
        "deadlock: 3 streams can never go on",
        "  each waits for the next: 'send' on a -> 'first' on b -> 'send' on a",
        "  'send' on a waits for 'reply' on b, queued behind 'first' and 1 more",
        "  'first' on b waits for 'send' on a",
        "  'onlooker' on d waits for 'first' on b",
    ]
    assert [wait.stream for wait in error.value.cycle] == ["a", "b"]
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_a_task_that_waits_for_its_own_queue_is_a_deadlock() -> None:
    tasks = (Task("early", "a", 1.0, after=(1,)), Task("late", "a", 1.0))
    with pytest.raises(DeadlockError, match="'early' on a waits for 'late' on a, queued behind"):
        simulate(Program(tasks))


def test_a_large_deadlock_is_shown_in_part_and_known_in_full() -> None:
    ring = tuple(Task(f"t{i}", f"s{i}", 1.0, after=((i + 1) % 40,)) for i in range(40))
    with pytest.raises(DeadlockError) as error:
        simulate(Program(ring))
    assert str(error.value).endswith("and 24 more streams")
    assert len(error.value.waits) == len(error.value.cycle) == 40


@pytest.mark.parametrize("duration_s", [-1.0, -1e-300, math.nan, math.inf, -math.inf])
def test_a_duration_that_is_none(duration_s: float) -> None:
    with pytest.raises(InputError) as error:
        Program((Task("gemm", "compute", duration_s),))
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
        Program((Task("gemm", "compute", 1.0, after=(other,)),))
    assert f"E502 task 'gemm' (number 0) waits for task number {other}" in str(error.value)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "interference",
    [
        Interference(("b",), -0.1),
        Interference(("b",), math.nan),
        Interference(("b",), math.inf),
        Interference(("a",), 0.5),
    ],
)
def test_an_interference_that_cannot_be(interference: Interference) -> None:
    with pytest.raises(InputError, match="E503 stream 'a' is slowed by"):
        Program((), {"a": interference})


def test_all_problems_of_a_program_are_told() -> None:
    with pytest.raises(InputError) as error:
        Program((Task("x", "a", -1.0, after=(7,)), Task("y", "a", math.nan)))
    assert [problem.code for problem in error.value.problems] == ["E501", "E502", "E501"]


def test_a_timeline_as_text() -> None:
    tasks = (
        Task("0F0", "stage 0", 0.1, kind="forward"),
        Task("0F0 to 1F0", "link 0->1", 0.2, after=(0,), kind="transfer"),
    )
    text = simulate(Program(tasks)).to_tsv()
    assert text == (
        "start_s\tend_s\tstream\tkind\tname\n"
        "0.0\t0.1\tstage 0\tforward\t0F0\n"
        "0.1\t0.30000000000000004\tlink 0->1\ttransfer\t0F0 to 1F0\n"
    )


@given(programs())
@settings(max_examples=40)
def test_a_timeline_survives_its_text(program: Program) -> None:
    timeline = simulate(program)
    rows = [line.split("\t") for line in timeline.to_tsv().splitlines()[1:]]
    read = [Span(name, stream, kind, float(s), float(e)) for s, e, stream, kind, name in rows]
    assert read == [*timeline.spans()]
