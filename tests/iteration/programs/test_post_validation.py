"""Zero Bubble's optimizer steps that are validated after they ran (Qi et al. 2023, Section 4)."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simtrain.engine import Program, Task, simulate
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.pass_tasks import PassTime
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from tests.helpers.toys import run, small

MODEL = {"num_layers": 8, "hidden_size": 512, "vocab_size": 512, "tied_embeddings": False}


def scenario(schedule: str, *, validates: bool, pipeline: int = 4, **sections: Any) -> Scenario:
    interleave = 2 if schedule in ("zbv", "v_half") else 1
    return small(
        {"tensor": 1, "data": 1, "pipeline": pipeline, "interleave": interleave},
        model=MODEL,
        batch={"micro": 1, "global": 12},
        schedule=schedule,
        overlap={"optimizer_post_validation": validates},
        **sections,
    )


def ends_after(result: Result, readies_s: np.ndarray) -> np.ndarray:
    """Return [stages], when each stage ends an iteration that it can begin at `readies_s`."""
    graph, num_stages = result.timeline.program.graph, result.num_stages
    tasks = [Task("wait", f"stage {stage}", ready_s) for stage, ready_s in enumerate(readies_s)]
    for number, duration_s in enumerate(result.timeline.program.duration_s.tolist()):
        after = tuple(num_stages + other for other in graph.waits(number))
        tasks.append(Task(graph.name_of(number), graph.stream(number), duration_s, after))
    timeline = simulate(Program.of(tasks))
    ends_s = np.zeros(num_stages)
    for task, end_s in zip(tasks, timeline.end_s.tolist(), strict=True):
        if task.stream.startswith("stage "):
            ends_s[int(task.stream.removeprefix("stage "))] = end_s
    return ends_s


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_h2", "zbv", "v_half"])
def test_repeated_iterations_take_the_time_of_one(schedule: str) -> None:
    """Iterations of which each stage begins the next one right after its own optimizer step."""
    result = run(scenario(schedule, validates=True))
    moments_s = [np.zeros(4)]
    for _ in range(6):
        moments_s.append(ends_after(result, moments_s[-1]))
    periods_s = [(after - before).max() for before, after in pairwise(moments_s)]
    assert periods_s[-1] == pytest.approx(result.iteration_time_s, rel=1e-9)
    assert result.iteration_time_s <= result.timeline.makespan_s


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize(("schedule", "chunks"), [("zb_h2", 1), ("zbv", 2)])
def test_iterations_are_shorter_by_the_first_passes_of_earlier_stages(
    schedule: str, chunks: int, p: int
) -> None:
    """(p - 1)F with passes of a second: no stage waits for another (Section 4)."""
    times_s = []
    for validates in (False, True):
        iteration = run(scenario(schedule, validates=validates, pipeline=p)).iteration
        passes = {
            part: PassTime(2.0 if part.kind == "B" else 1.0, 0.0, 0.0, 0.0, 0.0, ())
            for part in iteration.seconds.passes
        }
        seconds = replace(iteration.seconds, passes=passes)
        timeline = simulate(iteration.tasks.program(seconds))
        times_s.append(IterationTimeline(timeline, iteration.tasks, seconds).time_s)
    assert times_s[0] - times_s[1] == pytest.approx(p - 1, abs=0.01)
    assert times_s[1] == pytest.approx(3 * chunks * 12, abs=0.1)


def test_norms_travel_along_the_pipeline() -> None:
    """Each stage's Adam waits for its own norm and for those of the stages before it."""
    result = run(scenario("zb_h2", validates=True))
    graph, timeline = result.timeline.program.graph, result.timeline
    names = [graph.name_of(task) for task in range(graph.num_tasks)]
    messages = [task for task, name in enumerate(names) if name == "norm of the stages so far"]
    steps = [task for task, name in enumerate(names) if name == "Adam"]
    assert [graph.stream(task) for task in messages] == [
        f"link {stage}->{stage + 1}" for stage in range(3)
    ]
    for message, step in zip(messages, steps[1:], strict=True):
        assert timeline.end_s[message] <= timeline.start_s[step]
    assert "gradient norm all-reduce" not in names
