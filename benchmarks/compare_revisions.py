"""Compare the predictions of an older revision with those of the working tree.

`python -m benchmarks.compare_revisions OLD_REVISION` predicts the shipped scenarios and random ones
with both, through the public API, and compares every figure. The exit code is 0 if nothing moved
beyond rounding, 1 if something moved or exists in one revision only, 2 if a revision failed.
"""

import argparse
import csv
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.prediction_changes import (
    ROUNDING,
    WIDTH,
    Comparison,
    compare,
    moved_table,
    summary_lines,
)
from benchmarks.revisions import WORKING_TREE, Revision, checked_out, working_tree
from benchmarks.table import ROWS

MOVES = WORKING_TREE / "docs" / "predictions.csv"
"""Shipped predictions that moved: commit, scenario, figure, before, after, why."""

Records = dict[str, str]
Pair = tuple[Revision, Revision]


def main() -> None:
    options = _options()
    # A terminated process also removes the temporary worktree.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with checked_out(options.old_revision) as old:
            revisions = old, working_tree()
            print(f"old: {old.name}\nnew: {working_tree().name}", flush=True)
            comparison = _compare_predictions(revisions, options)
            if options.speed is not None:
                print(flush=True)
                _compare_speed(revisions, options.rounds, options.speed)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    sys.exit(0 if comparison.nothing_moved else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare_revisions",
        description="Compare the predictions of an older revision and of the working tree.",
    )
    parser.add_argument("old_revision", help="a commit, a branch, or HEAD~1")
    parser.add_argument(
        "--random", type=int, default=3000, metavar="N", help="random scenarios (default: 3000)"
    )
    parser.add_argument(
        "--modern",
        type=int,
        default=0,
        metavar="N",
        help="scenarios that merge the cases of all fields and choices (default: 0)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random scenarios (default: 0)"
    )
    parser.add_argument(
        "--why", metavar="REASON", help="add shipped scenarios that moved to docs/predictions.csv"
    )
    parser.add_argument("--sweeps", action="store_true", help="compare the shipped sweeps too")
    parser.add_argument(
        "--speed",
        nargs="*",
        metavar="WORD",
        help="then compare the speeds of benchmarks.table, or of its rows with one of these words",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="timed rounds of --speed (default: 3)"
    )
    return parser.parse_args()


def _compare_predictions(revisions: Pair, options: argparse.Namespace) -> Comparison:
    """Record both revisions, and print the differences of their figures."""
    with tempfile.TemporaryDirectory() as folder:
        draws = pathlib.Path(folder) / "draws"
        scenarios: Records = {}
        for kind, number in (("random", options.random), ("modern", options.modern)):
            scenarios |= _drawn(revisions[0], kind, number, options.seed)
        draws.write_text("".join(scenarios.values()), encoding="utf-8")
        num_shipped = len(list((revisions[1].tree / "scenarios").glob("*.yaml")))
        old, new = _recorded(revisions, num_shipped + len(scenarios), "scenarios", str(draws))
        if options.why:
            _write_moves(revisions[0].name.split()[0], old, new, options.why)
        if options.sweeps:
            for records, rows in zip((old, new), _recorded(revisions, None, "sweeps"), strict=True):
                records |= rows
    comparison = compare(old, new)
    if comparison.moved_scenarios:
        Console(width=WIDTH, highlight=False).print(moved_table(comparison))
    if (example := comparison.largest_in) in scenarios:
        print(f"{example}, as a scenario file:\n{scenarios[example]}")
    for line in summary_lines(comparison):
        print(textwrap.fill(line, WIDTH, subsequent_indent="  "))
    return comparison


def _drawn(revision: Revision, kind: str, number: int, seed: int) -> Records:
    """Return random scenarios that are legal in a revision, as lines of JSON by name."""
    if not number:
        return {}
    process = revision.start_script("random_scenarios.py", kind, str(number), str(seed))
    with _ended(process):
        return {json.loads(line)["name"]: line for line in revision.lines(process)}


def _recorded(revisions: Pair, total: int | None, kind: str, *arguments: str) -> list[Records]:
    """Record both revisions at the same time, and return the records of each as JSON by name.

    `kind` is "scenarios" or "sweeps", `total` the number of records for the progress bar.
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    console = Console(stderr=True)
    with (
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
        ThreadPoolExecutor(len(revisions)) as threads,
        _ended(*(_recorder(revision, kind, arguments) for revision in revisions)) as processes,
    ):

        def read(revision: Revision, process: subprocess.Popen[str], label: str) -> Records:
            task, records = progress.add_task(f"{kind}, {label}", total=total), {}
            for line in revision.lines(process):
                entry = json.loads(line)
                records[entry["name"]] = json.dumps(entry["record"])
                progress.advance(task)
            return records

        readers = [
            threads.submit(read, *one)
            for one in zip(revisions, processes, ("old", "new"), strict=True)
        ]
        # If one revision fails, the other one ends at once.
        for reader in wait(readers, return_when=FIRST_EXCEPTION).done:
            reader.result()
    return [reader.result() for reader in readers]


def _compare_speed(revisions: Pair, rounds: int, words: list[str]) -> None:
    """Print the rows of the table of speeds in both revisions, which run in alternation."""
    names = [row.name for row in ROWS if not words or any(word in row.name for word in words)]
    print(f"{'row, least and median of additions':44}{'old':>22}{'new':>22}{'new/old':>9}")

    for name in names:
        rows: tuple[list[float], list[float]] = [], []
        for _ in range(rounds):
            for additions, revision in zip(rows, revisions, strict=True):
                (line,) = revision.lines(revision.start_script("table.py", "--json", name))
                additions.append(json.loads(line)[name])
        cells = (f"{min(each):,.0f} {statistics.median(each):,.0f}" for each in rows)
        ratio = min(rows[1]) / min(rows[0])
        print(f"{name:44}{''.join(f'{cell:>22}' for cell in cells)}{ratio:9.2f}", flush=True)


def _write_moves(commit: str, old: Records, new: Records, why: str) -> None:
    """Append the times and peaks of shipped scenarios that moved since a commit."""
    with MOVES.open("a", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        for name in sorted(old.keys() & new.keys()):
            if name.startswith(("random-", "modern-")):
                continue
            before, after = (json.loads(records[name])["evaluator"] for records in (old, new))
            for figure in ("iteration_time_s", "peak_bytes"):
                values = before.get(figure), after.get(figure)
                if values[0] != values[1] and _moved(*values):
                    rows.writerow([commit, name, figure, *values, why])


def _moved(before: float | None, after: float | None) -> bool:
    return not before or not after or abs(after - before) > ROUNDING * before


def _recorder(revision: Revision, kind: str, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
    return revision.start_script("record_predictions.py", kind, str(revision.tree), *arguments)


@contextmanager
def _ended(*processes: subprocess.Popen[str]) -> Iterator[tuple[subprocess.Popen[str], ...]]:
    """Kill the processes at the end of the block, also on error."""
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
