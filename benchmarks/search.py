"""Configurations a second: the search for the 175B model on 64 GPUs with a global batch of 64."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import simtrain
from simtrain.evaluation import Evaluator
from simtrain.search import search
from simtrain.search.legality import legal_points
from simtrain.search.looker import Looker
from simtrain.search.objective import Objective
from simtrain.search.space import Space

SCENARIO, GPUS = "table5_175b_present", 64
REPETITIONS = 3
R = TypeVar("R")


def main() -> None:
    scenario = simtrain.load_scenario(SCENARIO)
    print(f"python {sys.version.split()[0]}, {SCENARIO} on {GPUS} GPUs, best of {REPETITIONS}")
    searched_s, result = best(lambda: search(scenario, (GPUS,)))
    num_legal = len(result.legal.points)
    print(f"{result.legal.num_configurations} configurations, {num_legal} legal,", end=" ")
    print(f"{result.seen.num_fitting} fit, {result.seen.num_simulated} simulated by the search")
    simulated_s, num_simulated = best(lambda: simulate_all_that_fit(Space(scenario, (GPUS,))))
    print(f"{'':32} {'number':>8} {'seconds':>8} {'a second':>9}")
    row("search: legal ones looked at", num_legal, searched_s)
    row("no bounds: legal ones looked at", num_legal, simulated_s)
    row("no bounds: of these, simulated", num_simulated, simulated_s)


def simulate_all_that_fit(space: Space) -> int:
    """What a search without bounds would do; how many were simulated."""
    capacity_bytes = Evaluator().profile_of(space.base).gpu.memory_capacity.value
    looker = Looker(space, Evaluator(), Objective.TIME, capacity_bytes)
    evaluations = [looker.evaluation(point) for point in legal_points(space).points]
    return sum(evaluation.run is not None for evaluation in evaluations)


def best(run: Callable[[], R]) -> tuple[float, R]:
    """Seconds of the fastest of some repetitions, each with nothing known from before."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return min(times), result


def row(what: str, number: int, seconds: float) -> None:
    print(f"{what:32} {number:8} {seconds:8.2f} {number / seconds:9.0f}")


if __name__ == "__main__":
    main()
