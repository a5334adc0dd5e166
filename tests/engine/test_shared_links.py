"""Links that tasks share max-min fairly: closed forms, textbook examples, laws."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_programs import Link, LinkedTask, linked_program
from simtrain.engine import LinkLoads, sharing, simulate
from simtrain.engine.sharing import find_slowdowns, find_slowdowns_alone

CLOSE = 1e-9
"""Relative tolerance: the free capacity of a full link is a difference."""


def transfer(name: str, num_bytes: float, rate: float, *links: Link) -> LinkedTask:
    """Return a task that sends bytes over links, at up to `rate` bytes/s."""
    loads = tuple((link, rate) for link in links)
    return LinkedTask(name, name, num_bytes / rate, loads=loads, weight=1 / rate)


def rates(*flows: LinkedTask) -> list[float]:
    """Return the bytes/s of each transfer while they all run."""
    found = find_slowdowns(shares_of(flows), range(len(flows)))
    return [flow.loads[0][1] / slowdown for flow, slowdown in zip(flows, found, strict=True)]


# Closed forms.


@given(st.integers(1, 30), st.floats(0.1, 10.0), st.floats(1e6, 1e12))
def test_n_equal_flows_take_n_times_as_long(number: int, duration_s: float, rate: float) -> None:
    link = Link("link", rate)
    flows = [transfer(f"flow {i}", duration_s * rate, rate, link) for i in range(number)]
    end_s = simulate(linked_program(flows)).end_s
    assert end_s == pytest.approx([number * duration_s] * number, rel=1e-12)


def test_remaining_flows_share_the_capacity_of_ended_flows() -> None:
    # 1, 2 and 3 bytes share 1 byte/s: a third each until 3 s, half each until 5 s, all of it until
    # 6 s.
    link = Link("link", 1.0)
    flows = [transfer(f"{size} bytes", size, 1.0, link) for size in (1.0, 2.0, 3.0)]
    assert simulate(linked_program(flows)).end_s == pytest.approx([3.0, 5.0, 6.0], rel=1e-15)


# Bertsekas and Gallager, "Data Networks", Section 6.5.2.


def test_the_bottlenecks_of_figure_6_12() -> None:
    # All capacities are 1. Link (2,3) carries sessions 2, 3 and 5, which get a third each. Link
    # (3,5) carries 1 and 5, so 1 gets the two thirds that 5 leaves. Link (4,5) carries only 4.
    one, two, three = Link("(3,5)", 1.0), Link("(2,3)", 1.0), Link("(4,5)", 1.0)
    paths = [(one,), (two,), (two,), (three,), (two, one)]
    sessions = [transfer(f"session {i}", 1.0, 1.0, *path) for i, path in enumerate(paths, 1)]
    assert rates(*sessions) == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1.0, 1 / 3], rel=1e-15)


# Laws.

AMOUNTS = st.floats(0.1, 10.0)


@st.composite
def loaded_tasks(draw: st.DrawFn, max_tasks: int = 12) -> list[LinkedTask]:
    """Draw tasks on four streams. Nearly all have loads, and some wait for earlier tasks."""
    links = [Link(f"link {i}", draw(AMOUNTS)) for i in range(draw(st.integers(1, 4)))]
    tasks = []
    for index in range(draw(st.integers(1, max_tasks))):
        used = draw(st.lists(st.sampled_from(links), unique=True, min_size=index == 0))
        loads = tuple((link, draw(AMOUNTS)) for link in used)
        after = draw(st.lists(st.integers(0, index - 1), max_size=2)) if index else []
        stream, seconds = draw(st.sampled_from("abcd")), draw(st.floats(0.01, 3.0))
        task = LinkedTask(
            f"t{index}", stream, seconds, tuple(after), loads=loads, weight=draw(AMOUNTS)
        )
        tasks.append(task)
    return tasks


def shares_of(tasks: Sequence[LinkedTask]) -> LinkLoads:
    link_loads = linked_program(tasks).link_loads
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
    tasks: list[LinkedTask],
) -> None:
    """Only a max-min fair allocation has this bottleneck property."""
    link_loads, running = shares_of(tasks), range(len(tasks))
    found = find_slowdowns(link_loads, running)
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
def test_work_is_conserved_and_no_link_is_above_its_capacity(tasks: list[LinkedTask]) -> None:
    """Between two events, speeds follow from the running tasks. They add up to each task's work."""
    program, link_loads = linked_program(tasks), shares_of(tasks)
    timeline = simulate(program)
    moments = sorted({*timeline.start_s.tolist(), *timeline.end_s.tolist()})
    done_s, carried = [0.0] * len(tasks), np.zeros(len(link_loads.capacity))
    for start_s, end_s in itertools.pairwise(moments):
        runs = (timeline.start_s <= start_s) & (timeline.end_s >= end_s)
        running = np.flatnonzero(runs).tolist()
        found = find_slowdowns(link_loads, running)
        used = np.array(used_of_links(link_loads, running, found))
        assert (used <= link_loads.capacity * (1 + CLOSE)).all()
        carried += used * (end_s - start_s)
        for task, slowdown in zip(running, found, strict=True):
            done_s[task] += (end_s - start_s) / slowdown
    alone_s = [task.duration_s for task in tasks]
    assert done_s == pytest.approx(alone_s, rel=CLOSE, abs=1e-12)
    num_bytes = used_of_links(link_loads, range(len(tasks)), [1 / seconds for seconds in alone_s])
    assert carried == pytest.approx(num_bytes, rel=CLOSE)


@given(loaded_tasks(), st.floats(0.1, 10.0))
@settings(max_examples=60)
def test_only_ratios_of_loads_to_capacities_and_of_weights_count(
    tasks: list[LinkedTask], unit: float
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
    expected = simulate(linked_program(tasks)).end_s
    assert simulate(linked_program(scaled)).end_s == pytest.approx(expected, rel=CLOSE)


# Steps of the loop.


_LOADS = st.lists(
    st.tuples(
        st.sampled_from([Link("a", 1.0), Link("b", 0.7), Link("c", 3.0)]), st.floats(0.01, 5)
    ),
    max_size=3,
).map(tuple)


@given(st.lists(st.tuples(_LOADS, st.floats(0.01, 100.0)), min_size=1, max_size=6))
def test_a_task_alone_has_the_slowdown_of_a_set_of_one_task(tasks: list[tuple]) -> None:
    linked = [LinkedTask("t", "a", 1.0, loads=loads, weight=weight) for loads, weight in tasks]
    if link_loads := linked_program(linked).link_loads:
        each = [find_slowdowns(link_loads, [task])[0] for task in range(len(tasks))]
        assert find_slowdowns_alone(link_loads) == each


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
    simulate(linked_program(in_turn))
    assert not counted
    # Two tasks share a link from 0 s to 3 s: speeds change at both moments.
    simulate(linked_program([*in_turn, transfer("other", 1.5, 1.0, links[0])]))
    assert 0 < len(counted) <= 6
