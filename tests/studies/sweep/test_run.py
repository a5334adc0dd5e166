"""Runs of sweeps: every point once, and the same bytes with any workers, even if some die."""

import errno
import io
import json
import multiprocessing
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow.parquet
import pytest
from pytest import MonkeyPatch

import simtrain
from simtrain.errors import InputError
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.sweep import folder as folder_module
from simtrain.studies.sweep.counts import Counts
from simtrain.studies.sweep.executors import SerialExecutor, local_executor
from simtrain.studies.sweep.folder import SweepFolder
from simtrain.studies.sweep.part import PartError, decoded, run_part
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.run import Progress
from simtrain.studies.sweep.workers import Shard
from tests.helpers.command_line import call, spawn
from tests.helpers.sweep_files import (
    NUM_PARTS,
    PART_SIZE,
    SMALL,
    files_of,
    plan_of,
    rows_of,
    run,
    with_axes,
)

# --------------------------------------------------------------------------------------- results


def test_every_point_is_a_row_or_counted(plan: SweepPlan, whole: pathlib.Path) -> None:
    """By hand: 3 stages for 4 layers and 8 ranks for 4 heads are illegal, and the constraint
    excludes 8 * 3 and 8 * 4.
    """
    rows = rows_of(whole)
    cells = {row["index"]: tuple(row.values())[1:4] for row in rows}
    assert list(cells) == sorted(cells)
    for index in range(24):
        tensor, pipeline, micro = plan.cells(index).values()
        if tensor * pipeline > 16:
            assert index not in cells
            continue
        row = next(row for row in rows if row["index"] == index)
        assert cells[index] == (tensor, pipeline, micro)
        assert row["num_gpus"] == tensor * pipeline
        expected = "E301" if tensor == 8 else "E305" if pipeline == 3 else None
        assert (row["status"], row["rule"]) == ("illegal" if expected else "ok", expected)
        assert (row["iteration_time_s"] is None) == bool(expected)


def test_a_row_equals_the_evaluation_of_its_point(plan: SweepPlan, whole: pathlib.Path) -> None:
    row = next(row for row in rows_of(whole) if row["index"] == 10)
    evaluation = Evaluator().evaluate(plan.scenario(10))
    assert evaluation.run
    assert row["peak_bytes"] == evaluation.peak_bytes
    assert row["capacity_bytes"] == evaluation.capacity_bytes
    for name in ("iteration_time_s", "tokens_per_s", "mfu", "hfu"):
        assert row[name] == getattr(evaluation.run, name)
    assert row["breakdown_bubble_s"] == evaluation.run.breakdown.bubble_s


def test_points_that_do_not_fit_have_no_time(tmp_path: pathlib.Path) -> None:
    text = with_axes("model.hidden_size: [64, 65536]") + "report: [iteration_time_s, peak_bytes]\n"
    run(plan_of(tmp_path, text), tmp_path / "out")
    fits, does_not = rows_of(tmp_path / "out")
    assert list(fits) == [
        *("index", "model.hidden_size", "status", "rule", "iteration_time_s", "peak_bytes")
    ]
    assert (fits["status"], does_not["status"]) == ("ok", "does_not_fit")
    assert does_not["iteration_time_s"] is None and does_not["peak_bytes"] > 80 * 2**30


def test_counts_add_up_and_the_first_of_the_fastest_is_best(plan: SweepPlan) -> None:
    parts = [run_part(plan, number).counts for number in range(NUM_PARTS)]
    total = sum(parts, Counts())
    assert total.num_points == 24 and total.num_rows == 20
    assert (total.ok, total.illegal, total.excluded) == (12, {"E301": 4, "E305": 4}, {0: 4})
    best = [part.best for part in parts if part.best]
    assert total.best == max(best, key=lambda one: one.tokens_per_s)
    assert sum(reversed(parts), Counts()) == total
    assert Counts.from_json(json.loads(json.dumps(total.to_json()))) == total


def test_an_error_in_a_constraint_names_the_point(tmp_path: pathlib.Path) -> None:
    text = SMALL.replace("tensor * pipeline <= 16", "1 / (4 - pipeline) > 0")
    with pytest.raises(InputError, match=r"has no value(.|\n)*point 6: parallelism.tensor: 1"):
        plan_of(tmp_path, text)


# ------------------------------------------------------------------------- executors, and deaths


@pytest.mark.ci
@pytest.mark.slow
def test_two_processes_write_the_same_bytes_though_one_is_killed(
    plan: SweepPlan, whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def kill_one(progress: Progress) -> None:
        if progress.done == 1 and not killed:
            killed.extend(multiprocessing.active_children()[:1])
            os.kill(killed[0].pid, signal.SIGKILL)

    killed: list[Any] = []
    progress = run(plan, tmp_path / "out", partial(local_executor, 2), 2, on_progress=kill_one)
    assert killed and progress.done == NUM_PARTS
    assert files_of(tmp_path / "out") == files_of(whole)


class LosingExecutor(Executor):
    """Executor that loses a part for each of `deaths`, and then computes."""

    deaths = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        if LosingExecutor.deaths > 0:
            LosingExecutor.deaths -= 1
            future: Future[Any] = Future()
            future.set_exception(BrokenExecutor("a worker died"))
            return future
        return SerialExecutor().submit(fn, *args, **kwargs)


def test_parts_lost_with_a_worker_are_computed_again(
    plan: SweepPlan, whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    LosingExecutor.deaths = 3
    progress = run(plan, tmp_path / "out", LosingExecutor, in_flight=2)
    assert progress.num_lost == 3
    assert files_of(tmp_path / "out") == files_of(whole)


class SharedPool(Executor):
    """Executor whose workers all die with the worker of part 2, like processes of a pool."""

    def __init__(self) -> None:
        self.in_flight: dict[int, Future[Any]] = {}
        self.lock = threading.Lock()
        self.is_broken = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        with self.lock:
            if self.is_broken:
                raise BrokenExecutor
            threading.Timer(0.005, self.finish).start()
            return self.in_flight.setdefault(args[1], Future())

    def finish(self) -> None:
        with self.lock:
            self.is_broken |= 2 in self.in_flight
            for number, future in self.in_flight.items():
                if self.is_broken:
                    future.set_exception(BrokenExecutor())
                else:
                    future.set_result(run_part(self.plan, number))
            self.in_flight.clear()


def test_the_part_that_kills_every_worker_ends_the_sweep(
    plan: SweepPlan, whole: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: MonkeyPatch
) -> None:
    """The error names this part and its points, not other parts that were computed at the same
    time.
    """
    monkeypatch.setattr(SharedPool, "plan", plan, raising=False)
    with pytest.raises(InputError) as ended:
        run(plan, tmp_path / "out", SharedPool, in_flight=4)
    (problem,) = ended.value.problems
    ends = [", ".join(f"{k}: {v}" for k, v in plan.cells(index).items()) for index in (10, 14)]
    assert problem.code == "E850" and problem.fix and "--workers 1" in problem.fix
    assert problem.message == (
        "workers died 4 times while they computed part 2, points 10 to 14: " + " to ".join(ends)
    )
    finished = files_of(tmp_path / "out")
    assert finished.items() <= files_of(whole).items() and len(finished) >= 2


# Kill this process when its fifth file is written but not yet renamed.
KILLED = """
import multiprocessing, os, signal
from simtrain.commands.cli import main

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
    """kill -9 ends the process; its two workers end too, and no part is lost or computed twice."""
    plan_of(tmp_path)
    out, parts = tmp_path / "out", tmp_path / "out" / "parts"
    command = ("sweep", str(tmp_path / "small.yaml"), "--out", str(out), "--part-size", "5")
    killed = spawn("-c", KILLED, *command, "--workers", "2")
    workers = [int(pid) for pid in killed.stdout.split()]
    assert killed.exit_code == -signal.SIGKILL and len(workers) == 2
    there = {path: path.stat().st_mtime_ns for path in parts.glob("part-*")}
    assert len(there) == 3 and len(list(parts.iterdir())) == 4
    assert all(map(ends, workers))
    outcome = call(*command, "--workers", "1", "--json")
    data = json.loads(outcome.stdout)
    assert (outcome.exit_code, data["num_parts_found"], data["num_parts"]) == (0, 3, NUM_PARTS)
    assert {path: path.stat().st_mtime_ns for path in there} == there
    assert files_of(out) == files_of(whole)


def ends(pid: int) -> bool:
    """Return whether a process ends within a minute, far more time than needed."""
    for _ in range(6000):
        if not is_alive(pid):
            return True
        time.sleep(0.01)
    return False


def is_alive(pid: int) -> bool:
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_ctrl_c_reports_the_parts_on_disk(
    plan: SweepPlan, tmp_path: pathlib.Path, monkeypatch: MonkeyPatch
) -> None:
    def interrupt(folder: SweepFolder, part: Any) -> None:
        write(folder, part)
        if part.number == 1:
            raise KeyboardInterrupt

    write = SweepFolder.write
    monkeypatch.setattr(SweepFolder, "write", interrupt)
    plan_of(tmp_path)
    arguments = ("sweep", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"))
    outcome = call(*arguments, "--workers", "1", "--part-size", "5")
    assert outcome.exit_code == 130
    assert "of 5 parts are on disk; run the same command to resume" in outcome.stderr
    assert len(files_of(tmp_path / "out")) == 2


def test_shards_share_the_parts(
    plan: SweepPlan, whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    shards = [Shard(number, 3) for number in range(3)]
    done = [run(plan, tmp_path / "out", shard=shard) for shard in shards]
    assert [one.done for one in done] == [2, 2, 1]
    assert [one.num_points for one in done] == [10, 9, 5]
    assert [one.counts.num_points for one in done] == [10, 9, 5]
    assert files_of(tmp_path / "out") == files_of(whole)


# ------------------------------------------------------------------------------------- the folder


def test_damaged_parts_are_computed_again_and_reported(
    whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    plan = plan_of(tmp_path, part_size=PART_SIZE)
    run(plan, tmp_path / "out")
    parts = tmp_path / "out" / "parts"
    (parts / "part-000001.parquet").write_bytes(b"")
    (parts / "part-000003.parquet").write_bytes((parts / "part-000002.parquet").read_bytes())
    (parts / "part-000004.parquet").unlink()
    (parts / ".part-000000-left").write_bytes(b"half of a p")
    command = ("sweep", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"))
    outcome = call(*command, "--workers", "1")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert "recomputed 2 damaged parts (1, 3)" in outcome.stdout
    assert "2 parts found on disk" in outcome.stdout
    assert files_of(tmp_path / "out") == files_of(whole)


def test_every_changed_byte_and_every_cut_is_found(plan: SweepPlan) -> None:
    part = run_part(plan, 0)
    expected = plan.digest, 0, plan.part_size
    assert decoded(part.content, *expected) == part.counts
    for place in range(0, len(part.content), 37):
        changed = bytearray(part.content)
        changed[place] ^= 1 << place % 8
        for content in (bytes(changed), part.content[:place]):
            with pytest.raises(PartError):
                decoded(content, *expected)


def refusal_of(out: pathlib.Path, plan: SweepPlan, part_size: int | None = None) -> str:
    with pytest.raises(InputError) as refused:
        SweepFolder(out).open(plan, part_size)
    assert all(problem.fix for problem in refused.value.problems)
    return str(refused.value)


def test_a_folder_of_another_sweep_is_refused(plan: SweepPlan, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    SweepFolder(out).open(plan)
    other = plan_of(tmp_path, overrides=["model.vocab_size=1024"])
    assert "E821 the folder contains the results of another sweep" in refusal_of(out, other)
    assert "E821 the results here are cut into parts of 5 points" in refusal_of(out, plan, 7)
    assert SweepFolder(out).open(plan_of(tmp_path)).part_size == PART_SIZE
    plan_data = json.loads((out / "sweep.json").read_text())
    plan_data["versions"]["simtrain"] = "0.0.9"
    (out / "sweep.json").write_text(json.dumps(plan_data))
    assert "made with simtrain 0.0.9, pyarrow" in refusal_of(out, plan)
    (out / "sweep.json").write_text('{"hash": ')
    assert "E822 cannot be read" in refusal_of(out, plan)


def test_a_folder_of_something_else_is_refused(plan: SweepPlan, tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert "E821 the folder contains files, but no sweep" in refusal_of(tmp_path, plan)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    in_the_way = refusal_of(tmp_path / "thesis.tex", plan)
    assert "E824 cannot write" in in_the_way and "move the file that is in the way" in in_the_way


def test_a_sweep_runs_once_in_a_folder(plan: SweepPlan, tmp_path: pathlib.Path) -> None:
    SweepFolder(tmp_path / "out").open(plan)
    with (
        SweepFolder(tmp_path / "out").locked("0-of-1"),
        pytest.raises(InputError, match="E823 this sweep is already running"),
    ):
        run(plan, tmp_path / "out")


@contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_loses_no_finished_part(
    plan: SweepPlan, whole: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run(plan, out, shard=Shard(0, 3))
    finished = files_of(out)
    with (
        files_no_larger_than(1000),
        pytest.raises(InputError, match=r"E825 no space left(.|\n)*same command again"),
    ):
        run(plan, out)
    assert files_of(out) == finished

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(folder_module.os, "fsync", full)
        with pytest.raises(InputError, match="E825 no space left: No space left on device"):
            run(plan, out)
    assert files_of(out) == finished
    assert run(plan, out).found == len(finished)
    assert files_of(out) == files_of(whole)


@pytest.mark.parametrize("shard", ["4/4", "1", "-1/4", "a/b", "0/0"])
def test_a_shard_is_a_number_of_a_count(tmp_path: pathlib.Path, shard: str) -> None:
    outcome = call("sweep", "interleave", "--out", str(tmp_path / "out"), f"--shard={shard}")
    assert outcome.exit_code == 2 and "E828" in outcome.stderr


SLURM = {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_CPUS_PER_TASK": "1"}


def test_tasks_of_a_slurm_array_share_the_parts(
    plan: SweepPlan, whole: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: MonkeyPatch
) -> None:
    plan_of(tmp_path)
    options = ("--part-size", str(PART_SIZE), "--executor", "slurm", "--json")
    for task, num_parts in (("1", 3), ("2", 2)):
        for name, value in (SLURM | {"SLURM_ARRAY_TASK_ID": task}).items():
            monkeypatch.setenv(name, value)
        out = ("--out", str(tmp_path / "out"))
        outcome = call("sweep", str(tmp_path / "small.yaml"), *out, *options)
        assert json.loads(outcome.stdout)["num_parts"] == num_parts
    assert files_of(tmp_path / "out") == files_of(whole)


@pytest.mark.parametrize(
    ("variables", "options", "excerpt"),
    [
        ({}, (), "SLURM_ARRAY_TASK_ID is not set"),
        ({"SLURM_ARRAY_TASK_ID": "3"}, (), "task 3 is beyond an array of 2 tasks from 1 on"),
        ({"SLURM_ARRAY_TASK_ID": "1"}, ("--shard", "1/2"), "number in the array is its shard"),
        ({"SLURM_ARRAY_TASK_ID": "1"}, ("--address", "a:1"), "have no address"),
    ],
)
def test_a_slurm_executor_needs_a_task_of_an_array_and_nothing_else(
    tmp_path: pathlib.Path,
    monkeypatch: MonkeyPatch,
    variables: dict[str, str],
    options: tuple[str, ...],
    excerpt: str,
) -> None:
    for name, value in (SLURM | variables).items():
        monkeypatch.setenv(name, value)
    command = ("sweep", "interleave", "--out", str(tmp_path / "out"), "--executor", "slurm")
    outcome = call(*command, *options)
    assert outcome.exit_code == 2 and "E854" in outcome.stderr and excerpt in outcome.stderr


@pytest.mark.parametrize(
    ("field", "value"),
    [("executor", "threads"), ("workers", 0), ("part_size", -5), ("max_points", None)],
)
def test_wrong_fields_of_a_request_are_refused(
    tmp_path: pathlib.Path, field: str, value: Any
) -> None:
    with pytest.raises(InputError, match=f"E834 {field} is {value!r}"):
        simtrain.sweep("interleave", tmp_path / "out", **{field: value})
    assert not (tmp_path / "out").exists()


def test_parts_are_plain_parquet_files(plan: SweepPlan) -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(run_part(plan, 0).content))
    assert table.num_rows == 5
    assert table.schema.field("batch.micro").type == pyarrow.int64()
