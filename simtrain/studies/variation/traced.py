"""One drawn iteration with the starts and ends of all tasks, for a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simtrain.engine import TaskGraph
from simtrain.engine.compiled import Floats
from simtrain.iteration.report.result import Result
from simtrain.studies.variation.draws import Draws
from simtrain.studies.variation.result import DrawnTimes


@dataclass(frozen=True, slots=True, eq=False)
class TracedDraw:
    """When each task of each simulated replica runs in one draw.

    Args:
        name: of the scenario.
        number: of the draw.
        graph: the tasks of a replica.
        replicas: numbers of the simulated replicas.
        start_s, end_s: [tasks, replicas].
    """

    name: str
    number: int
    graph: TaskGraph
    replicas: tuple[int, ...]
    start_s: Floats
    end_s: Floats


def traced_draw(result: Result, drawn: DrawnTimes) -> TracedDraw:
    """Draw again the iteration whose time is the 95th percentile, with the times of its tasks."""
    order = np.argsort(drawn.times_s, kind="stable")
    number = int(order[min(len(order) - 1, int(0.95 * len(order)))])
    iteration = Draws.of_scenario(result.iteration, drawn.seed).drawn
    start_s, end_s = iteration.moments_s(drawn.seed, number)
    return TracedDraw(
        result.scenario.name or "unnamed",
        number,
        result.iteration.tasks.graph,
        tuple(iteration.tasks.replicas.tolist()),
        start_s,
        end_s,
    )
