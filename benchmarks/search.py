"""Time the search for the 175B model: on 64 GPUs, and with a realistic batch on 512.

With the argument `large`, time the searches of larger spaces from the shell instead.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, TypeVar

import simtrain
from simtrain.iteration.plan import Plan
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.objectives import OBJECTIVES
from simtrain.studies.search.exact_search import Explorer
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.run import search
from simtrain.studies.search.space import Space

SCENARIO, GPUS = "table5_175b_present", 64
LARGE = ("--gpus", "512", "--set", "batch.global=1536")
REPETITIONS = 3
LARGE_SPACES = (
    "deepseek_v3 --gpus 1024",
    "llama3_70b --gpus 256",
    "llama3_70b --gpus 256 --set batch.global=1024",
    "llama3_405b --gpus 1024",
    "llama3_405b --gpus 1024 --vary schedule",
)
R = TypeVar("R")


def main() -> None:
    scenario = simtrain.load_scenario(SCENARIO)
    print(f"python {sys.version.split()[0]}, {SCENARIO} on {GPUS} GPUs, best of {REPETITIONS}")
    searched_s, result = best(lambda: search(scenario, (GPUS,)))
    num_legal = len(result.legal.points)
    counts(result.to_dict())
    simulated_s, (num_simulated, gaps) = best(lambda: simulate_all_that_fit(scenario))
    print(f"{'':32} {'number':>8} {'seconds':>8} {'per s':>9}")
    row("search: legal layouts", num_legal, searched_s)
    row("no bounds: legal layouts", num_legal, simulated_s)
    row("no bounds: simulated layouts", num_simulated, simulated_s)
    print(f"time above the close bound: median {median(gaps):.2%}, worst {max(gaps):.2%}")
    print(f"\nsimtrain search {SCENARIO} {' '.join(LARGE)}")
    shell_s, data = timed(lambda: from_the_shell(*LARGE))
    counts(data)
    row("from the shell: legal layouts", data["num_legal"], shell_s)


def large_spaces() -> None:
    """Print the counts and the times of searches of large spaces ."""
    for space in LARGE_SPACES:
        name, *options = space.split()
        before_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        shell_s, data = timed(partial(from_the_shell, *options, scenario=name))
        user_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before_s
        print(f"\nsimtrain search {space}")
        counts(data)
        best_s, refined_s = (data[of]["iteration_time_s"] for of in ("best", "refined"))
        print(
            f"best {best_s:.2f} s, refined {refined_s:.2f} s, {'not ' * (not data['exact'])}exact"
        )
        print(f"{shell_s:.1f} s, {user_s:.1f} processor seconds")


def counts(data: dict[str, Any]) -> None:
    print(f"{data['num_configurations']:,} layouts, {data['num_legal']:,} legal,", end=" ")
    print(f"{data['num_simulated']:,} simulated")


def simulate_all_that_fit(scenario: simtrain.Scenario) -> tuple[int, list[float]]:
    """Simulate all layouts that fit; return their number, and their times relative to their bounds.

    The close bounds reuse the times of passes from the simulation and so take little time.
    """
    space = Space(scenario, (GPUS,))
    evaluator = Evaluator()
    profile = evaluator.profile_of(space.base)
    explorer = Explorer(space, evaluator, OBJECTIVES["time"], profile.gpu.memory_capacity.value)
    gaps = []
    for point in legal_points(space).points:
        if run := explorer.evaluation(point).run:
            plan = Plan.of(space.scenario(point), profile.cluster.domains)
            gaps.append(run.iteration_time_s / explorer.bounds.iteration_s(plan) - 1)
    return len(gaps), gaps


def from_the_shell(*options: str, scenario: str = SCENARIO) -> dict[str, Any]:
    command = [sys.executable, "-m", "simtrain", "search", scenario, *options, "--json"]
    data: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True).stdout
    )
    return data


def best(run: Callable[[], R]) -> tuple[float, R]:
    """Return the seconds and the result of the fastest of some runs."""
    return min((timed(run) for _ in range(REPETITIONS)), key=lambda timed: timed[0])


def timed(run: Callable[[], R]) -> tuple[float, R]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def row(label: str, number: int, seconds: float) -> None:
    print(f"{label:32} {number:8} {seconds:8.2f} {number / seconds:9.0f}")


if __name__ == "__main__":
    large_spaces() if sys.argv[1:] == ["large"] else main()
