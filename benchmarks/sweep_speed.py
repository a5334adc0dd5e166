"""Run a large sweep; measure rows per second, memory, and the loss after a kill -9.

`python -m benchmarks.sweep_speed [LENGTHS]` takes the number of sequence lengths, of 34,560 points
each. The default is 3; 29 are a million points. Only the run that is killed uses more than one
process.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from simtrain.scenario import RULES, Scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.sweep.executors import SerialExecutor
from simtrain.studies.sweep.folder import SweepFolder
from simtrain.studies.sweep.load import load_plan
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.points import Points
from simtrain.studies.sweep.run import Progress, run_sweep
from simtrain.studies.sweep.workers import PartWorkers

GRID = """\
axes:
  model.seq_length: {{range: [1024, {last}, 128]}}
  base: [table5_22b_present, table5_175b_present]
  batch.global: [64, 128, 256, 512]
  parallelism.tensor: [1, 2, 4, 8]
  parallelism.pipeline: [1, 2, 4, 8, 16]
  parallelism.data: [1, 2, 4, 8]
  batch.micro: [1, 2, 4]
  parallelism.interleave: [1, 2, 3]
  recompute: [none, selective, full]
  memory.zero_stage: [0, 1]
"""
PART_SIZE = 1000
WORKERS, MAX_UNFINISHED_PARTS = 2, 4
KILLED_AFTER = 10
SAMPLE = 997


def main() -> None:
    lengths = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as name:
        file, out = pathlib.Path(name) / "grid.yaml", pathlib.Path(name) / "out"
        file.write_text(GRID.format(last=1024 + 128 * (lengths - 1)), encoding="utf-8")
        plan = load_plan(file, part_size=PART_SIZE)
        print(f"{plan.num_points:,} points in {plan.num_parts:,} parts")
        kept = killed(file, out)
        progress = whole(plan, SweepFolder(out))
    lost = MAX_UNFINISHED_PARTS / plan.num_parts
    print(
        f"kept {progress.found} of {kept} parts; "
        f"at most {MAX_UNFINISHED_PARTS} were unfinished, {lost:.1%} of all"
    )
    split(plan, range(0, plan.num_points, SAMPLE))


def killed(file: pathlib.Path, out: pathlib.Path) -> int:
    """Kill the command, which has two workers, and return the number of parts on disk."""
    command = [sys.executable, "-m", "simtrain", "sweep", str(file), "--out", str(out)]
    options = ["--workers", str(WORKERS), "--part-size", str(PART_SIZE)]
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    while (number := len(list(out.glob("parts/part-*")))) < KILLED_AFTER:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    number = len(list(out.glob("parts/part-*")))
    print(f"killed with {number} parts on disk")
    return number


def whole(plan: SweepPlan, folder: SweepFolder) -> Progress:
    """Run the rest of the sweep in this process, and print its memory at intervals."""
    start, tenths = time.perf_counter(), 0

    def report(progress: Progress) -> None:
        nonlocal start, tenths
        if progress.done == progress.found:
            start = time.perf_counter()
        elif progress.done * 10 // plan.num_parts > tenths:
            tenths = progress.done * 10 // plan.num_parts
            print(
                f"{tenths * 10} %: {time.perf_counter() - start:.0f} s, {rss_mib()} MiB", flush=True
            )

    print(f"before: {rss_mib()} MiB")
    progress = run_sweep(plan, folder, PartWorkers(SerialExecutor), report)
    seconds, counts = time.perf_counter() - start, progress.counts
    rows = (progress.done - progress.found) * PART_SIZE
    print(f"{rows / seconds:,.0f} rows/s; of all {counts.num_points:,}: {counts.ok:,} ok, ", end="")
    print(f"{counts.does_not_fit:,} do not fit, {sum(counts.illegal.values()):,} illegal")
    return progress


def split(plan: SweepPlan, indices: Sequence[int]) -> None:
    """Print the time of each step of a row, with warm caches."""
    evaluator = Evaluator()
    scenarios, build_s = timed(Points(plan).scenario, indices)
    codes, rules_s = timed(broken, scenarios)
    legal = [one for one, code in zip(scenarios, codes, strict=True) if code is None]
    for evaluate in (evaluator.evaluate, evaluator.peak_bytes):
        timed(evaluate, legal)
    _, memory_s = timed(evaluator.peak_bytes, legal)
    found, all_s = timed(evaluator.evaluate, legal)
    num_run = sum(one.run is not None for one in found)
    time_s = (all_s * len(legal) - memory_s * len(legal)) / num_run
    print(f"per row: scenario {build_s * 1e6:.0f} us and rules {rules_s * 1e6:.0f} us;")
    print(f"per legal row: memory {memory_s * 1e6:.0f} us;")
    print(f"per row that fits: time {time_s * 1e6:.0f} us")


def broken(scenario: Scenario) -> str | None:
    """Return the code of the first rule that a scenario breaks."""
    return next((rule.code for rule in RULES if rule.check(scenario)), None)


def timed(step: Callable[[Any], Any], of: Sequence[Any]) -> tuple[list[Any], float]:
    """Return the result of a step for each item, and its mean seconds."""
    start = time.perf_counter()
    found = [step(one) for one in of]
    return found, (time.perf_counter() - start) / len(of)


def rss_mib() -> int:
    """Return the memory that this process uses now, in MiB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


if __name__ == "__main__":
    main()
