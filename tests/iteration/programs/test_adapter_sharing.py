"""Pipeline transfers and gradient buckets share the adapters of their nodes, per direction."""

import itertools
import re

import numpy as np
import pytest

from simtrain.engine import Program, simulate
from simtrain.engine.sharing import find_slowdowns
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.iteration_tasks import IterationTasks
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.scenario import Scenario
from tests.helpers.toys import a100, changed, machine_of, plan_of, small

GRID = {"tensor": 8, "data": 2, "interleave": 2}
"""Each tensor-parallel group fills a node of eight GPUs, so that all else goes between nodes."""


def built(scenario: Scenario, adapter: float | None = None) -> tuple[IterationTasks, Program]:
    profile = changed(a100(), inter_node__adapter_bandwidth=adapter) if adapter else a100()
    seconds = IterationSeconds.of(plan_of(scenario), machine_of(profile))
    tasks = tasks_of(seconds.structure)
    return tasks, tasks.program(seconds)


def overlapping(**grid: int) -> Scenario:
    return small(GRID | grid, overlap={"data_parallel": True, "pipeline": True})


def test_without_buckets_between_nodes_nothing_is_shared() -> None:
    exposed = small(GRID, overlap={"data_parallel": False, "pipeline": True})
    assert built(exposed)[1].link_loads is None
    assert built(overlapping(tensor=4))[1].link_loads is None  # two replicas on a node


def test_a_transfer_is_limited_by_both_its_links() -> None:
    """A message loads its sender's outgoing and its receiver's incoming link; a bucket loads both
    of its stage.
    """
    tasks, program = built(overlapping())
    link_loads, num_stages = program.link_loads, tasks.num_stages
    assert link_loads is not None and link_loads.capacity.tolist() == [1.0] * (2 * num_stages)
    kinds = set()
    for task in range(program.num_tasks):
        stream, kind = program.graph.stream(task), program.graph.kinds[program.graph.kind_of[task]]
        places = slice(*link_loads.load_starts[task : task + 2])
        expected = []
        if kind in ("transfer", "data bucket"):
            ends = [int(end) for end in re.findall(r"\d+", stream)]
            expected = [ends[0], num_stages + ends[-1]]
            kinds.add(kind)
            both = [1 / link_loads.weight[task]] * 2
            assert link_loads.load[places].tolist() == pytest.approx(both)
            assert 0 < link_loads.load[places][0] <= 1
        assert link_loads.link[places].tolist() == expected, stream
    assert kinds == {"transfer", "data bucket"}


@pytest.mark.parametrize("adapter", [1e9, 25e9])
def test_no_adapter_carries_more_than_it_can(adapter: float) -> None:
    _, program = built(overlapping(), adapter)
    timeline, link_loads = simulate(program), program.link_loads
    assert link_loads is not None
    num_slowed = 0
    moments = np.unique([timeline.start_s, timeline.end_s])
    for start_s, end_s in itertools.pairwise(moments):
        runs = (timeline.start_s <= start_s) & (timeline.end_s >= end_s)
        running = np.flatnonzero(runs).tolist()
        found = find_slowdowns(link_loads, running)
        used = np.zeros(len(link_loads.capacity))
        for task, slowdown in zip(running, found, strict=True):
            places = slice(*link_loads.load_starts[task : task + 2])
            used[link_loads.link[places]] += link_loads.load[places] / slowdown
            num_slowed += slowdown > 1
        assert used.max() <= 1 + 1e-9
    assert num_slowed > 0
    alone = simulate(Program(program.graph, program.duration_s))
    assert alone.makespan_s <= timeline.makespan_s <= program.duration_s.sum()
