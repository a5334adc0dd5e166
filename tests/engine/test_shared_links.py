"""Links that tasks share max-min fairly: closed forms, textbook examples, laws."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import Link, LinkLoads, Program, Task, sharing, simulate
from simtrain.engine.sharing import find_slowdowns
from simtrain.errors import InputError

CLOSE = 1e-9
"""Relative tolerance: the free capacity of a full link is a difference."""


def transfer(name: str, num_bytes: float, rate: float, *links: Link) -> Task:
    """Return a task that sends bytes over links, at up to `rate` bytes/s."""
    loads = tuple((link, rate) for link in links)
    return Task(name, name, num_bytes / rate, loads=loads, weight=1 / rate)


def slowdowns(link_loads: LinkLoads, tasks: Sequence[int]) -> list[float]:
    """Return the slowdown of each task while they all run."""
    return find_slowdowns(link_loads, tasks)


def rates(*flows: Task) -> list[float]:
    """Return the bytes/s of each transfer while they all run."""
    link_loads = LinkLoads.of([flow.loads for flow in flows], [flow.weight for flow in flows])
    assert link_loads is not None
    found = slowdowns(link_loads, range(len(flows)))
    return [flow.loads[0][1] / slowdown for flow, slowdown in zip(flows, found, strict=True)]


# Closed forms.


@given(st.integers(1, 30), st.floats(0.1, 10.0), st.floats(1e6, 1e12))
def test_n_equal_flows_take_n_times_as_long(number: int, duration_s: float, rate: float) -> None:
    link = Link("link", rate)
    flows = [transfer(f"flow {i}", duration_s * rate, rate, link) for i in range(number)]
    end_s = simulate(Program.of(flows)).end_s
    assert end_s == pytest.approx([number * duration_s] * number, rel=1e-12)


def test_remaining_flows_share_the_capacity_of_ended_flows() -> None:
    # 1, 2 and 3 bytes share 1 byte/s: a third each until 3 s, half each until 5 s, all of it until
    # 6 s.
    link = Link("link", 1.0)
    flows = [transfer(f"{size} bytes", size, 1.0, link) for size in (1.0, 2.0, 3.0)]
    assert simulate(Program.of(flows)).end_s == pytest.approx([3.0, 5.0, 6.0], rel=1e-15)


def test_a_flow_that_cannot_use_its_share_leaves_it_to_the_others() -> None:
    link = Link("link", 1.0)
    flows = [transfer(f"at most {rate}", 1.0, rate, link) for rate in (0.1, 5.0, 20.0)]
    assert rates(*flows) == pytest.approx([0.1, 0.45, 0.45], rel=1e-15)


def test_a_single_flow_has_the_speed_of_its_slowest_link() -> None:
    links = [Link("wide", 8.0), Link("narrow", 2.0), Link("half", 4.0)]
    assert rates(transfer("alone", 1.0, 10.0, *links)) == pytest.approx([2.0], rel=1e-15)


@given(st.floats(0.01, 1.0), st.floats(0.1, 10.0))
def test_a_flow_alone_below_the_capacity_runs_at_full_speed(load: float, weight: float) -> None:
    task = Task("alone", "a", 0.7, loads=((Link("link", 1.0), load),), weight=weight)
    assert simulate(Program.of([task])).end_s.tolist() == [0.7]


def test_speeds_are_proportional_to_weights() -> None:
    # Speeds of 1 : 3 that fill the link: 0.25 and 0.75 for loads of 1.
    device = Link("device", 1.0)
    tasks = [
        Task(f"weight {weight}", f"{weight}", 1.0, loads=((device, 1.0),), weight=weight)
        for weight in (1.0, 3.0)
    ]
    assert rates(*tasks) == pytest.approx([0.25, 0.75], rel=1e-15)


# Bertsekas and Gallager, "Data Networks", Section 6.5.2.


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_long_flow_and_a_short_one_on_each_link(number: int) -> None:
    links = [Link(f"link {i}", 1.0) for i in range(number)]
    short = [transfer(f"short {i}", 1.0, 1.0, link) for i, link in enumerate(links)]
    long = transfer("long", 1.0, 1.0, *links)
    assert rates(long, *short) == pytest.approx([0.5] * (number + 1), rel=1e-15)


def test_the_bottlenecks_of_figure_6_12() -> None:
    # All capacities are 1. Link (2,3) carries sessions 2, 3 and 5, which get a third each. Link
    # (3,5) carries 1 and 5, so 1 gets the two thirds that 5 leaves. Link (4,5) carries only 4.
    one, two, three = Link("(3,5)", 1.0), Link("(2,3)", 1.0), Link("(4,5)", 1.0)
    paths = [(one,), (two,), (two,), (three,), (two, one)]
    sessions = [transfer(f"session {i}", 1.0, 1.0, *path) for i, path in enumerate(paths, 1)]
    assert rates(*sessions) == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1.0, 1 / 3], rel=1e-15)


def test_bottlenecks_that_follow_from_others() -> None:
    # The first link gives 1 to each of two flows. The second link then has 2 left for the third
    # flow, and the third link 8 for the fourth.
    links = [Link("first", 2.0), Link("second", 3.0), Link("third", 10.0)]
    paths = [links[:1], links[:2], links[1:], links[2:]]
    flows = [transfer(f"flow {i}", 1.0, 20.0, *path) for i, path in enumerate(paths)]
    assert rates(*flows) == pytest.approx([1.0, 1.0, 2.0, 8.0], rel=1e-15)


# Laws.

AMOUNTS = st.floats(0.1, 10.0)


@st.composite
def loaded_tasks(draw: st.DrawFn, max_tasks: int = 12) -> list[Task]:
    """Draw tasks on four streams. Nearly all have loads, and some wait for earlier tasks."""
    links = [Link(f"link {i}", draw(AMOUNTS)) for i in range(draw(st.integers(1, 4)))]
    tasks = []
    for index in range(draw(st.integers(1, max_tasks))):
        used = draw(st.lists(st.sampled_from(links), unique=True, min_size=index == 0))
        loads = tuple((link, draw(AMOUNTS)) for link in used)
        after = draw(st.lists(st.integers(0, index - 1), max_size=2)) if index else []
        stream, seconds = draw(st.sampled_from("abcd")), draw(st.floats(0.01, 3.0))
        task = Task(f"t{index}", stream, seconds, tuple(after), loads=loads, weight=draw(AMOUNTS))
        tasks.append(task)
    return tasks


def shares_of(tasks: Sequence[Task]) -> LinkLoads:
    link_loads = Program.of(tasks).link_loads
    assert link_loads is not None
    return link_loads


def used_of_links(
    link_loads: LinkLoads, tasks: Sequence[int], found: Sequence[float]
) -> list[float]:
    """Return how much of each link the running tasks use."""
    used = [0.0] * len(link_loads.capacity)
    for task, slowdown in zip(tasks, found, strict=True):
        for place in range(*link_loads.load_starts[task : task + 2]):
            used[link_loads.link[place]] += link_loads.load[place] / slowdown
    return used


@given(loaded_tasks())
@settings(max_examples=100)
def test_a_slowed_task_has_a_full_link_on_which_no_other_is_faster_for_its_weight(
    tasks: list[Task],
) -> None:
    """Only a max-min fair allocation has this bottleneck property."""
    link_loads, running = shares_of(tasks), range(len(tasks))
    found = slowdowns(link_loads, running)
    used = used_of_links(link_loads, running, found)
    assert all(slowdown >= 1 for slowdown in found)
    assert all(
        amount <= link_loads.capacity[link] * (1 + CLOSE) for link, amount in enumerate(used)
    )
    links = [
        link_loads.link[slice(*link_loads.load_starts[task : task + 2])].tolist()
        for task in running
    ]
    speeds = [1 / slowdown / link_loads.weight[task] for task, slowdown in enumerate(found)]

    def is_bottleneck(link: int, task: int) -> bool:
        fastest = max(speeds[other] for other in running if link in links[other])
        is_full = used[link] >= link_loads.capacity[link] * (1 - CLOSE)
        return is_full and speeds[task] >= fastest * (1 - CLOSE)

    for task in running:
        assert found[task] == 1 or any(is_bottleneck(link, task) for link in links[task])


@given(loaded_tasks())
@settings(max_examples=100)
def test_work_is_conserved_and_no_link_is_above_its_capacity(tasks: list[Task]) -> None:
    """Between two events, speeds follow from the running tasks. They add up to each task's work."""
    program, link_loads = Program.of(tasks), shares_of(tasks)
    timeline = simulate(program)
    moments = sorted({*timeline.start_s.tolist(), *timeline.end_s.tolist()})
    done_s, carried = [0.0] * len(tasks), np.zeros(len(link_loads.capacity))
    for start_s, end_s in itertools.pairwise(moments):
        runs = (timeline.start_s <= start_s) & (timeline.end_s >= end_s)
        running = np.flatnonzero(runs).tolist()
        found = slowdowns(link_loads, running)
        used = np.array(used_of_links(link_loads, running, found))
        assert (used <= link_loads.capacity * (1 + CLOSE)).all()
        carried += used * (end_s - start_s)
        for task, slowdown in zip(running, found, strict=True):
            done_s[task] += (end_s - start_s) / slowdown
    alone_s = [task.duration_s for task in tasks]
    assert done_s == pytest.approx(alone_s, rel=CLOSE, abs=1e-12)
    num_bytes = used_of_links(link_loads, range(len(tasks)), [1 / seconds for seconds in alone_s])
    assert carried == pytest.approx(num_bytes, rel=CLOSE)


@given(
    st.lists(st.tuples(st.floats(0.01, 3.0), AMOUNTS, AMOUNTS), min_size=1, max_size=8),
    AMOUNTS,
    st.floats(1.0, 5.0),
)
@settings(max_examples=100)
def test_more_capacity_never_slows_independent_tasks_of_one_link(
    sizes: list[tuple[float, float, float]], capacity: float, more: float
) -> None:
    """All tasks start at 0. With more capacity, each has done at least as much at every moment."""

    def end_s(capacity: float) -> np.ndarray:
        link = Link("link", capacity)
        tasks = [
            Task(f"t{i}", f"s{i}", seconds, loads=((link, load),), weight=weight)
            for i, (seconds, load, weight) in enumerate(sizes)
        ]
        return simulate(Program.of(tasks)).end_s

    assert (end_s(capacity * more) <= end_s(capacity) * (1 + CLOSE)).all()


@given(loaded_tasks(), st.floats(0.1, 10.0))
@settings(max_examples=60)
def test_only_ratios_of_loads_to_capacities_and_of_weights_count(
    tasks: list[Task], unit: float
) -> None:
    scaled = [
        replace(
            task,
            loads=tuple(
                (Link(link.name, link.capacity * unit), x * unit) for link, x in task.loads
            ),
            weight=task.weight * unit,
        )
        for task in tasks
    ]
    expected = simulate(Program.of(tasks)).end_s
    assert simulate(Program.of(scaled)).end_s == pytest.approx(expected, rel=CLOSE)


NO_AMOUNTS = [0.0, -1.0, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("value", NO_AMOUNTS)
def test_invalid_loads_capacities_and_weights_are_refused(value: float) -> None:
    good, bad = Link("link", 1.0), Link("bad", value)
    for task, words in (
        (Task("t", "a", 1.0, loads=((good, value),)), "a task's load of 'link' is"),
        (Task("t", "a", 1.0, loads=((bad, 1.0),)), "link 'bad' has a capacity of"),
        (Task("t", "a", 1.0, loads=((good, 1.0),), weight=value), "a task's weight is"),
    ):
        with pytest.raises(InputError) as error:
            Program.of([task])
        assert f"E503 {words} {value!r}" in str(error.value)


def test_all_invalid_amounts_are_reported() -> None:
    tasks = [Task("t", "a", 1.0, loads=((Link("link", -1.0), 0.0),), weight=math.nan)]
    with pytest.raises(InputError) as error:
        Program.of(tasks)
    assert [problem.code for problem in error.value.problems] == ["E503"] * 3


# Steps of the loop.


_LOADS = st.lists(
    st.tuples(
        st.sampled_from([Link("a", 1.0), Link("b", 0.7), Link("c", 3.0)]), st.floats(0.01, 5)
    ),
    max_size=3,
).map(tuple)


@given(st.lists(st.tuples(_LOADS, st.floats(0.01, 100.0)), min_size=1, max_size=6))
def test_a_task_alone_has_the_slowdown_of_a_set_of_one_task(tasks: list[tuple]) -> None:
    link_loads = LinkLoads.of(*zip(*tasks, strict=True))
    if link_loads is not None:
        each = [find_slowdowns(link_loads, [task])[0] for task in range(len(tasks))]
        assert link_loads.alone.tolist() == each


def test_speeds_are_computed_again_only_when_tasks_share_a_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = []
    find = sharing.find_all_slowdowns
    monkeypatch.setattr(
        sharing, "find_all_slowdowns", lambda *args: [counted.append(1), find(*args)][1]
    )
    monkeypatch.setattr("simtrain.engine.run.runs_compiled", lambda num_tasks=0: False)
    links = [Link(f"link {number}", 1.0) for number in range(20)]
    apart = [transfer(f"{one} {link.name}", 1.0, 1.0, link) for one in range(9) for link in links]
    in_turn = [replace(task, stream=task.loads[0][0].name) for task in apart]
    simulate(Program.of(in_turn))
    assert not counted
    # Two tasks share a link from 0 s to 3 s: speeds change at both moments.
    simulate(Program.of([*in_turn, transfer("other", 1.5, 1.0, links[0])]))
    assert 0 < len(counted) <= 6


@given(st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_followers_are_the_opposite_of_waits(num_tasks: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    waits = [
        random.choice(task, random.integers(0, task + 1)).tolist() for task in range(1, num_tasks)
    ]
    tasks = [Task(f"{one}", f"{one}", 1.0, tuple(w)) for one, w in enumerate([[], *waits])]
    graph = Program.of(tasks).graph
    starts, followers = graph.followers
    pairs = [
        (task, int(one))
        for task in range(num_tasks)
        for one in followers[slice(*starts[task : task + 2])]
    ]
    assert sorted(pairs) == sorted((w, one) for one in range(num_tasks) for w in graph.waits(one))
