"""Time each step of an iteration with two million tasks: the 1T model with ten times its batch."""

import resource
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import simtrain
from simtrain.durations.model import DurationModel
from simtrain.engine import Program, Task, simulate
from simtrain.hardware.load import profile_of
from simtrain.iteration.memory.report import memory_report
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.seconds import IterationSeconds, Machine
from simtrain.iteration.report.breakdown import stage_breakdowns

SCENARIO = "table5_1t_present"
BATCH = 5120

T = TypeVar("T")


def main() -> None:
    print(f"python {sys.version.split()[0]}, {SCENARIO} with a global batch of {BATCH:,}")
    scenario = simtrain.load_scenario(SCENARIO).replace({"batch.global": BATCH})
    profile = profile_of(scenario)
    plan = Plan.of(scenario, profile.cluster.domains)
    step("load numba", lambda: simulate(Program.of([Task("t", "a", 1.0)]), "compiled"))
    step("build the schedule", lambda: plan.schedule)
    seconds = step(
        "time its passes", lambda: IterationSeconds.of(plan, Machine(DurationModel(profile)))
    )
    tasks = step("build tasks", lambda: tasks_of(seconds.structure))
    program = tasks.program(seconds)
    timeline = step("run", lambda: simulate(program))
    step("run again", lambda: simulate(program))
    iteration = IterationTimeline(timeline, tasks, seconds)
    step("break down", lambda: stage_breakdowns(iteration))
    step("replay memory", lambda: memory_report(plan, profile, iteration))
    print(f"{program.num_tasks:,} tasks, {timeline.makespan_s:.4g} s simulated")


def step(name: str, run: Callable[[], T]) -> T:
    """Run one step, and print its seconds and the peak memory of the process so far."""
    start_s = time.perf_counter()
    result = run()
    elapsed_s = time.perf_counter() - start_s
    most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{name:<20}{elapsed_s:7.3f} s   peak {most_bytes / 2**20:6.0f} MiB")
    return result


if __name__ == "__main__":
    main()
