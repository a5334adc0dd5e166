"""Runs of sweeps: every point once, and the same bytes with any workers, even if some die."""

import errno
import json
import os
import pathlib
import signal
import time
from concurrent.futures import BrokenExecutor, Future
from typing import Any
from unittest.mock import Mock

import pytest

import simtrain
from simtrain.errors import InputError
from simtrain.iteration.report.difference import Difference
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.sweep.grid import Sweep, load_sweep
from simtrain.studies.sweep.run import SerialExecutor, SweepFolder
from tests.helpers.command_line import call, spawn
from tests.helpers.sweep_files import NUM_PARTS, PART_SIZE, SMALL, files_of, rows_of, run, sweep_of


def command(folder: pathlib.Path, *options: str) -> tuple[str, ...]:
    """Return the words of the small sweep with results in `folder / "out"`."""
    sweep_of(folder)
    return ("sweep", str(folder / "small.yaml"), "-o", str(folder / "out"), *options)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parts have as many points as those of `whole`."""
    monkeypatch.setattr("simtrain.studies.sweep.grid._FEWEST_POINTS", PART_SIZE)


def test_every_point_is_a_row_or_excluded(sweep: Sweep, whole: pathlib.Path) -> None:
    """By hand: 3 stages for 4 layers and 8 ranks for 4 heads are illegal, and the constraint
    excludes 8 * 3 and 8 * 4.
    """
    rows = {row["index"]: row for row in rows_of(whole)}
    assert [*rows] == sorted(rows)
    for index in range(24):
        tensor, pipeline, micro = sweep.cells(index).values()
        assert isinstance(tensor, int) and isinstance(pipeline, int)
        if tensor * pipeline > 16:
            assert index not in rows
            continue
        row = rows[index]
        assert (*row.values(),)[1:4] == (tensor, pipeline, micro)
        assert row["num_gpus"] == tensor * pipeline
        expected = "E301" if tensor == 8 else "E305" if pipeline == 3 else None
        assert (row["status"], row["rule"]) == ("illegal" if expected else "ok", expected)
        assert (row["iteration_time_s"] is None) == bool(expected)
        if not expected:
            evaluation = Evaluator().evaluate(sweep.scenario(index))
            assert evaluation.run and row["peak_bytes"] == evaluation.peak_bytes
            for name in ("iteration_time_s", "tokens_per_s", "mfu", "hfu"):
                assert row[name] == getattr(evaluation.run, name)
            assert evaluation.run.breakdown
            assert row["breakdown_bubble_s"] == evaluation.run.breakdown.bubble_s


@pytest.mark.parametrize(
    ("objective", "choose", "excerpt"),
    [
        ("tokens_per_s", max, "best tokens_per_s of 20 points"),
        ("iteration_time_s", min, "best iteration_time_s of"),
        ("peak_bytes", min, "best peak_bytes 2.111 GiB of"),
        ("num_gpus", min, "best num_gpus 1 of"),
    ],
)
def test_the_summary_counts_all_points_and_names_the_best(
    whole: pathlib.Path, tmp_path: pathlib.Path, objective: str, choose: Any, excerpt: str
) -> None:
    """Of equally good points, the first of the grid is the best."""
    words = command(tmp_path, "--workers", "1")
    sweep_of(tmp_path, f"{SMALL}objective: {objective}\n")
    assert excerpt in call(*words).stdout
    data = json.loads(call(*words, "--format=json").stdout)
    assert (data["num_points"], data["num_rows"], data["excluded"]) == (24, 20, 4)
    assert (data["ok"], data["illegal"]) == (12, {"E301": 4, "E305": 4})
    values = {row["index"]: row[objective] for row in rows_of(whole) if row["status"] == "ok"}
    best = choose(values, key=values.__getitem__)
    assert (data["best"]["index"], data["best"]["value"]) == (best, values[best])
    assert (data["cannot_be_told_from_best"] is None) == (objective in ("peak_bytes", "num_gpus"))


@pytest.mark.parametrize("objective", ["tokens_per_s", "iteration_time_s"])
def test_a_sweep_names_the_points_that_cannot_be_told_apart_from_the_best(
    tmp_path: pathlib.Path, objective: str
) -> None:
    """Twice the batch takes twice the time of an iteration, which can be told; not of a token."""
    file = tmp_path / "micro.yaml"
    axes = "{batch.micro: [1, 2], batch.global: [8, 16]}"
    file.write_text(f"base: gpt2_1_5b\naxes: {axes}\nobjective: {objective}\n", "utf-8")
    words = ("sweep", str(file), "-o", str(tmp_path / "out"), "--workers", "1")
    data = json.loads(call(*words, "--format", "json").stdout)
    sweep, best = load_sweep(file), data["best"]["index"]
    runs = [Evaluator().evaluate(sweep.scenario(index)).run for index in range(4)]
    first, alike = runs[best], []
    for index, result in enumerate(runs):
        assert first and result
        has_equal_batch = result.scenario.batch.global_ == first.scenario.batch.global_
        if index != best and (objective == "tokens_per_s" or has_equal_batch):
            alike += [index] * (Difference(first, result).ratio.p5 <= 1)
    assert sorted(data["cannot_be_told_from_best"]) == alike != []
    said = call(*words).stdout.replace("\n", " ")
    assert "The best point cannot be told apart from the points with batch." in said


def test_python_gets_the_rows(whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    sweep_of(tmp_path)
    file = tmp_path / "small.yaml"
    assert simtrain.sweep(file, tmp_path / "out").records() == rows_of(whole)
    assert files_of(tmp_path / "out") == files_of(whole)
    with pytest.raises(InputError, match="E834 workers is 0"):
        simtrain.sweep(file, workers=0)


# ------------------------------------------------------------------------- workers that die


class LosingExecutor(SerialExecutor):
    """Executor that computes two calls, and breaks with the third."""

    def __init__(self, num_workers: int) -> None:
        self.left = 2

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.left -= 1
        if self.left >= 0:
            return super().submit(fn, *args, **kwargs)
        future: Future[Any] = Future()
        future.set_exception(BrokenExecutor("a worker died"))
        return future


def test_a_worker_that_dies_and_a_full_disk_lose_no_finished_part(
    sweep: Sweep, whole: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr("simtrain.studies.sweep.run.local_executor", LosingExecutor)
        with pytest.raises(InputError, match=r"E850 a worker died(.|\n)*--workers 1"):
            run(sweep, out)
    finished = files_of(out)
    assert finished.items() <= files_of(whole).items() and len(finished) == 2
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", Mock(side_effect=full))
        with pytest.raises(InputError, match=r"E113 cannot write results here: No space left"):
            run(sweep, out)
    assert files_of(out) == finished
    assert run(sweep, out) == 2 and files_of(out) == files_of(whole)


@pytest.mark.ci
def test_two_processes_write_the_same_bytes(
    sweep: Sweep, whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    run(sweep, tmp_path / "out", 2)
    assert files_of(tmp_path / "out") == files_of(whole)


# Kill this process when its fifth file is written but not yet renamed.
KILLED = """
import multiprocessing, os, signal
from simtrain.commands.cli import main
import simtrain.studies.sweep.grid as grid

grid._FEWEST_POINTS = 5

def replace(source, target, renamed=[], rename=os.replace):
    renamed.append(target)
    if len(renamed) == 5:
        print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)

os.replace = replace
main()
"""


@pytest.mark.ci
@pytest.mark.slow
def test_a_killed_sweep_resumes_with_the_same_command(
    whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """kill -9 ends the process; its two workers end too, and no part is lost or computed twice.

    The unfinished part leaves a hidden file.
    """
    words, parts = command(tmp_path), tmp_path / "out" / "parts"
    killed = spawn("-c", KILLED, *words, "--workers", "2")
    workers = [int(pid) for pid in killed.stdout.split()]
    assert killed.exit_code == -signal.SIGKILL and len(workers) == 2
    there = {path: path.stat().st_mtime_ns for path in parts.glob("part-*")}
    assert len(there) == 3 and len(list(parts.iterdir())) == 4
    assert all(map(ends, workers))
    outcome = call(*words, "--workers", "1", "--format=json")
    data = json.loads(outcome.stdout)
    assert (outcome.exit_code, data["num_parts_found"], data["num_parts"]) == (0, 3, NUM_PARTS)
    assert {path: path.stat().st_mtime_ns for path in there} == there
    assert files_of(tmp_path / "out") == files_of(whole)


def ends(pid: int) -> bool:
    """Return whether a process ends within a minute, far more time than needed."""
    for _ in range(6000):
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


def test_ctrl_c_reports_the_parts_on_disk(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(folder: SweepFolder, number: int, table: Any) -> None:
        write(folder, number, table)
        if number == 1:
            raise KeyboardInterrupt

    write = SweepFolder.write
    monkeypatch.setattr(SweepFolder, "write", interrupt)
    outcome = call(*command(tmp_path, "--workers", "1"))
    assert outcome.exit_code == 130
    assert "2 of 5 parts are on disk; run the same command to resume" in outcome.stderr
    assert len(files_of(tmp_path / "out")) == 2


# ------------------------------------------------------------------------------------- the folder


def test_a_folder_of_something_else_is_refused(sweep: Sweep, tmp_path: pathlib.Path) -> None:
    out, other = tmp_path / "out", sweep_of(tmp_path, overrides=["model.vocab_size=1024"])

    def refusal(folder: pathlib.Path, sweep: Sweep) -> str:
        with pytest.raises(InputError) as refused:
            SweepFolder(folder).open(sweep.header)
        assert all(problem.fix for problem in refused.value.problems)
        return str(refused.value)

    SweepFolder(out).open(sweep.header)
    assert "E821 the folder contains the results of another sweep" in refusal(out, other)
    SweepFolder(out).open(sweep_of(tmp_path).header)
    (out / "sweep.json").write_text('{"hash": ')
    assert "E822 cannot be read" in refusal(out, sweep)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "thesis.tex").touch()
    assert "E821 the folder contains files, but no" in refusal(tmp_path / "texts", sweep)
    assert "E113 cannot write" in refusal(tmp_path / "texts" / "thesis.tex", sweep)
