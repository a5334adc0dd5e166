"""Time the same workloads in two revisions, in alternation."""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.prediction_changes import WIDTH
from benchmarks.revisions import Revision
from benchmarks.speed_probe import GPUS, PART_SIZE, TYPICAL, WORKLOADS

Seconds = dict[str, float]
Timing = Callable[[Revision], Seconds]

_SWEEP = """\
base: table5_22b_present
axes:
  model.seq_length: [1024, 2048]
  batch.global: [64, 128]
  parallelism.tensor: [1, 2, 4, 8]
  parallelism.pipeline: [1, 2, 4, 8]
  parallelism.data: [1, 2, 4]
  batch.micro: [1, 2, 4]
  parallelism.interleave: [1, 3]
  recompute: [none, selective, full]
"""
NUM_POINTS = 2 * 2 * 4 * 4 * 3 * 3 * 2 * 3


def compare_speed(old: Revision, new: Revision, rounds: int, workloads: Sequence[str] = ()) -> None:
    """Print a table of the seconds in both revisions and of their ratios.

    Each workload runs in a fresh process: in the old revision, the new one, the old one, ... The
    first round of each is not counted, because it compiles and writes caches.

    Args:
        old, new: the revisions.
        rounds: number of counted rounds.
        workloads: names of workloads of `speed_probe`; by default all, and commands of the shell.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "speed.yaml"
        file.write_text(_SWEEP, encoding="utf-8")
        timings = [*map(_in_process, workloads or WORKLOADS)]
        if not workloads:
            timings += _commands(file)
        seconds = _alternated(timings, old, new, rounds)
    Console(width=WIDTH, highlight=False).print(_table(seconds))
    for label, (olds, news) in seconds.items():
        if label.startswith("sweep"):
            number = NUM_POINTS if label.startswith("sweep of") else PART_SIZE
            rates = " old, ".join(f"{number / min(times):,.0f}" for times in (olds, news))
            print(f"{label}: {rates} new points per second (fastest round)")


def _alternated(
    timings: list[Timing], old: Revision, new: Revision, rounds: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Return by label the seconds of each round, in the old and in the new revision."""
    seconds: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for number, timing in enumerate(timings, start=1):
        for round_ in range(rounds + 1):
            words = f"workload {number} of {len(timings)}, round {round_} of {rounds}"
            print(words, file=sys.stderr, flush=True)
            for side, revision in enumerate((old, new)):
                for label, value in timing(revision).items():
                    if round_ > 0:
                        seconds[label][side].append(value)
    return seconds


def _in_process(workload: str) -> Timing:
    """Time a workload of `speed_probe` inside its process, and for `cold` also the
    whole process.
    """

    def timing(revision: Revision) -> Seconds:
        start = time.perf_counter()
        process = revision.start_script("speed_probe.py", workload)
        (line,) = revision.lines(process)
        whole_s = time.perf_counter() - start
        found: Seconds = json.loads(line)
        return {"175B, process of simulate()": whole_s} | found if workload == "cold" else found

    return timing


def _commands(sweep_file: pathlib.Path) -> list[Timing]:
    """Time commands of the shell, from the start of the process to its end."""

    def timing(label: str, *arguments: str) -> Timing:
        def seconds(revision: Revision) -> Seconds:
            with tempfile.TemporaryDirectory() as folder:
                out = ("-o", f"{folder}/out") if arguments[0] == "sweep" else ()
                command = ("-m", "simtrain", *arguments, *out)
                start = time.perf_counter()
                with revision.start(*command, stdout=subprocess.DEVNULL) as process:
                    process.wait()
                if process.returncode:
                    raise RuntimeError(f"{revision.name}: simtrain {arguments[0]} failed")
                return {label: time.perf_counter() - start}

        return seconds

    return [
        timing("175B, simtrain search", "search", TYPICAL, "--gpus", str(GPUS), "--format=json"),
        timing(f"sweep of {NUM_POINTS:,} points", "sweep", str(sweep_file), "--workers", "1"),
    ]


def _table(seconds: dict[str, tuple[list[float], list[float]]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, width=WIDTH, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("workload", ratio=1)
    for name in ("old", "new"):
        for statistic in ("min", "median"):
            table.add_column(f"{name}\n{statistic}\nms", justify="right", no_wrap=True)
    for statistic in ("min", "median"):
        table.add_column(f"new/old\n{statistic}\nratio", justify="right", no_wrap=True)
    for label, (olds, news) in seconds.items():
        figures = [f(times) for times in (olds, news) for f in (min, statistics.median)]
        ratios = [f(news) / f(olds) for f in (min, statistics.median)]
        table.add_row(
            label,
            *(f"{1e3 * one:,.{2 if one < 0.01 else 0}f}" for one in figures),
            *(f"{ratio:.2f}" for ratio in ratios),
        )
    return table
