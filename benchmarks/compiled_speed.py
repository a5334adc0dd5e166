"""The compiled executor against SimPy on the 1T model, and an evaluator's time for a scenario.

One process, one core; ratios within one run.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import simtrain
from simtrain.durations.model import DurationModel
from simtrain.engine import simulate
from simtrain.evaluation import Evaluator
from simtrain.hardware.load import profile_of
from simtrain.plan import Plan
from simtrain.programs.iteration_layout import iteration_layout
from simtrain.programs.seconds import IterationSeconds, Machine

LARGEST = "table5_1t_present"
TYPICAL = "table5_175b_present"


def main() -> None:
    print(f"python {sys.version.split()[0]}")
    executors()
    scenarios()


def executors() -> None:
    """Both executors on the same program, laid out before."""
    scenario = simtrain.load_scenario(LARGEST)
    profile = profile_of(scenario)
    plan = Plan.of(scenario, profile.cluster.domains)
    seconds = IterationSeconds.of(plan, Machine(DurationModel(profile)))
    pattern, _ = iteration_layout(seconds.structure)
    program = pattern.program(seconds.of_slot)
    durations_s = np.array([task.duration_s for task in program.tasks])
    simpy_s, timeline = best_of(3, lambda: simulate(program, "simpy"))
    pattern.wiring.run(durations_s)  # compiled now, or read from where numba keeps it
    compiled_s, (_, end_s) = best_of(20, lambda: pattern.wiring.run(durations_s))
    assert np.array_equal(end_s, timeline.end_s)
    print(
        f"{LARGEST}, {len(program.tasks)} tasks: SimPy {simpy_s * 1e3:.0f} ms, "
        f"compiled {compiled_s * 1e3:.2f} ms, {simpy_s / compiled_s:.0f} times as fast"
    )


def scenarios() -> None:
    """A whole scenario by `simulate` and by an evaluator that has seen its like."""
    scenario = simtrain.load_scenario(TYPICAL)
    whole_s, _ = best_of(3, lambda: simtrain.simulate(scenario, engine="simpy"))
    for breakdowns in (True, False):
        evaluator = Evaluator(breakdowns=breakdowns)
        evaluator.evaluate(scenario)
        warm_s, _ = best_of(200, lambda evaluator=evaluator: evaluator.evaluate(scenario))
        print(
            f"{TYPICAL}, {'with' if breakdowns else 'without'} breakdown: "
            f"{warm_s * 1e3:.2f} ms warm, {whole_s / warm_s:.0f} times as fast as simulate()"
        )


def best_of(number: int, run: Callable[[], Any]) -> tuple[float, Any]:
    """The least seconds of some runs, and what the last of them returned."""
    seconds = []
    for _ in range(number):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


if __name__ == "__main__":
    main()
