"""Time compiled loops and SimPy on the 1T model, and an evaluator.

Uses one process on one core. Ratios compare times of the same run.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import simtrain
from simtrain.durations.model import DurationModel
from simtrain.engine import Program, simulate
from simtrain.hardware.load import profile_of
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.seconds import IterationSeconds, Machine
from simtrain.studies.evaluation import Evaluator

LARGEST = "table5_1t_present"
TYPICAL = "table5_175b_present"


def main() -> None:
    print(f"python {sys.version.split()[0]}")
    executors()
    scenarios()


def executors() -> None:
    """Time SimPy and compiled loops on the same program, without building it."""
    program = program_of(LARGEST)
    simpy_s, timeline = best_of(3, lambda: simulate(program, "simpy"))
    simulate(program, "compiled")  # compiles, or reads numba's cache
    compiled_s, found = best_of(20, lambda: simulate(program, "compiled"))
    assert np.array_equal(found.end_s, timeline.end_s)
    print(
        f"{LARGEST}, {program.num_tasks:,} tasks: SimPy {simpy_s * 1e3:.0f} ms, "
        f"compiled {compiled_s * 1e3:.2f} ms, {simpy_s / compiled_s:.0f} times as fast"
    )


def program_of(name: str) -> Program:
    """Return the program of a shipped scenario's iteration."""
    scenario = simtrain.load_scenario(name)
    profile = profile_of(scenario)
    plan = Plan.of(scenario, profile.cluster.domains)
    seconds = IterationSeconds.of(plan, Machine(DurationModel(profile)))
    return tasks_of(seconds.structure).program(seconds)


def scenarios() -> None:
    """Time a scenario with `simulate`, and with an evaluator that has evaluated it before."""
    scenario = simtrain.load_scenario(TYPICAL)
    whole_s, _ = best_of(3, lambda: simtrain.run(scenario, engine="simpy"))
    for breakdowns in (True, False):
        evaluator = Evaluator(breakdowns=breakdowns)
        evaluator.evaluate(scenario)
        warm_s, _ = best_of(200, lambda evaluator=evaluator: evaluator.evaluate(scenario))
        print(
            f"{TYPICAL}, {'with' if breakdowns else 'without'} breakdown: "
            f"{warm_s * 1e3:.2f} ms warm, {whole_s / warm_s:.0f} times as fast as simulate()"
        )


def best_of(number: int, run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least seconds of some runs, and the result of the last run."""
    seconds = []
    for _ in range(number):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


if __name__ == "__main__":
    main()
