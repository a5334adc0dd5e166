"""Time the simulation of the 1T model with SimPy, and the replay of its memory.

The model has 64 stages and 512 microbatches.
"""

import sys
import time
from collections.abc import Callable

import simpy

import simtrain
from simtrain.iteration.memory.report import memory_report

SCENARIO = "table5_1t_present"
REPETITIONS = 3


def main() -> None:
    scenario = simtrain.load_scenario(SCENARIO)
    events = count_events(lambda: simtrain.simulate(scenario, engine="simpy"))
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        result = simtrain.simulate(scenario, engine="simpy")
        times.append(time.perf_counter() - start)
    num_tasks = result.timeline.program.num_tasks
    best = min(times)
    print(f"python {sys.version.split()[0]}, {SCENARIO}: {result.iteration_time_s:.4g} s simulated")
    print(f"simulate(): {', '.join(f'{seconds:.2f}' for seconds in times)} s")
    print(f"{num_tasks} tasks, {events} events, {best / num_tasks * 1e6:.1f} us per task")
    start = time.perf_counter()
    memory_report(result.plan, result.profile, result.iteration)
    share = (time.perf_counter() - start) / best
    print(f"of which replay of memory on all stages: {share:.1%}")


def count_events(run: Callable[[], object]) -> int:
    """Return the number of events that SimPy processes during `run`."""
    steps = 0
    original = simpy.Environment.step

    def step(self: simpy.Environment) -> None:
        nonlocal steps
        steps += 1
        original(self)

    simpy.Environment.step = step
    try:
        run()
    finally:
        simpy.Environment.step = original
    return steps


if __name__ == "__main__":
    main()
