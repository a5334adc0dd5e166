"""Time one workload in this process, with the imported simtrain.

`python speed_probe.py WORKLOAD` prints the path of simtrain, then {label: seconds} as JSON.
"""

import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

_BEFORE_IMPORT = time.perf_counter()
import simtrain  # noqa: E402 (the import is timed)

_IMPORT_S = time.perf_counter() - _BEFORE_IMPORT
_run = getattr(simtrain, "run", None) or simtrain.simulate  # of older revisions

TYPICAL, LARGEST, GPUS = "table5_175b_present", "table5_1t_present", 64
Seconds = dict[str, float]


def cold() -> Seconds:
    """Time the first simulation of a process."""
    simulate_s = _seconds(lambda: _run(simtrain.load_scenario(TYPICAL)))
    return {
        "175B, first simulate() and import": _IMPORT_S + simulate_s,
        "175B, first simulate()": simulate_s,
    }


def warm() -> Seconds:
    """Time simulations after the first, and return medians."""
    return {
        f"{label}, simulate(), {engine}": _median(
            repetitions,
            partial(_run, simtrain.load_scenario(name), engine=engine),
        )
        for label, name, repetitions in (("175B", TYPICAL, 7), ("1T", LARGEST, 3))
        for engine in ("simpy", "auto")
    }


def evaluator() -> Seconds:
    """Time an evaluator's first scenario, and the same scenario again (median)."""
    from simtrain.studies.evaluation import Evaluator

    scenario = simtrain.load_scenario(TYPICAL)
    evaluator = Evaluator()
    return {
        "175B, first evaluate()": _seconds(lambda: evaluator.evaluate(scenario)),
        "175B, evaluate()": _median(300, lambda: evaluator.evaluate(scenario)),
    }


def search() -> Seconds:
    """Time a search that the process has run before."""
    from simtrain.studies.search.run import search

    scenario = simtrain.load_scenario(TYPICAL)
    return {"175B, second search()": _median(3, lambda: search(scenario, (GPUS,)))}


_GRID = """\
base: table5_22b_present
axes:
  model.seq_length: [1024, 1152, 1280]
  batch.global: [64, 128]
  parallelism.tensor: [1, 2, 4, 8]
  parallelism.pipeline: [1, 2, 4, 8]
  parallelism.data: [1, 2, 4, 8]
  batch.micro: [1, 2, 4]
  parallelism.interleave: [1, 2, 3]
  recompute: [none, selective, full]
  memory.zero_stage: [0, 1]
"""
PART_SIZE = 2 * 4 * 4 * 4 * 3 * 3 * 3 * 2
"""Points per sequence length."""


def sweep() -> Seconds:
    """Measure processor seconds of a sweep. Its first part lays out pipelines that others reuse."""
    from simtrain.studies.sweep.grid import load_sweep
    from simtrain.studies.sweep.run import run_part

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "grid.yaml"
        file.write_text(_GRID, encoding="utf-8")
        grid = load_sweep(file, part_size=PART_SIZE)
    first_s, *others_s = (
        _seconds(partial(run_part, grid, number), time.process_time)
        for number in range(grid.num_parts)
    )
    return {
        f"sweep, first {PART_SIZE:,} points": first_s,
        f"sweep, {PART_SIZE:,} more points": statistics.median(others_s),
    }


def _seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    run()
    return clock() - start


def _median(repetitions: int, run: Callable[[], object]) -> float:
    """Return the median seconds of some runs, after one that is not counted."""
    run()
    return statistics.median(_seconds(run) for _ in range(repetitions))


WORKLOADS = {workload.__name__: workload for workload in (cold, warm, evaluator, search, sweep)}


def main() -> None:
    print(simtrain.__file__)
    print(json.dumps(WORKLOADS[sys.argv[1]]()))


if __name__ == "__main__":
    main()
