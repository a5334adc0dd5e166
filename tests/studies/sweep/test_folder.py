"""Folders of sweeps: edited plans, files of other programs, damaged parts, Ctrl-C at the start."""

import json
import multiprocessing
import pathlib
import re
import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.studies.sweep.executors import local_executor
from simtrain.studies.sweep.folder import SweepFolder
from simtrain.studies.sweep.plan import SweepPlan
from tests.helpers.command_line import call, refused
from tests.helpers.sweep_files import NUM_PARTS, files_of, plan_of, rows_of, run, with_axes


@pytest.fixture
def out(whole: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a copy of the results that a test may change."""
    return shutil.copytree(whole, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "value", "excerpt"),
    [
        ("part_size", 0, "part_size is 0, but must be 1 or more"),
        ("part_size", "5", 'part_size is "5", but must be int'),
        ("part_size", True, "part_size is true"),
        ("part_size", None, "part_size is null"),
        ("part_size", float("nan"), "part_size is NaN"),
        ("versions", [], "versions is .., but must be dict"),
        ("name", None, "name is null"),
        ("hash", 3, "hash is 3"),
    ],
)
def test_an_edited_plan_is_refused(
    plan: SweepPlan, out: pathlib.Path, name: str, value: Any, excerpt: str
) -> None:
    plan_data = json.loads((out / "sweep.json").read_text())
    (out / "sweep.json").write_text(json.dumps(plan_data | {name: value}))
    before = files_of(out)
    with pytest.raises(InputError, match=f"E822 cannot be read: {excerpt}"):
        SweepFolder(out).open(plan)
    assert files_of(out) == before


@pytest.mark.parametrize(
    ("text", "excerpt"),
    [("[]", "does not contain"), ("{}", "'hash' is missing"), ("[" * 100_000, "recursion")],
)
def test_files_without_a_plan_are_refused(
    plan: SweepPlan, out: pathlib.Path, text: str, excerpt: str
) -> None:
    (out / "sweep.json").write_text(text)
    with pytest.raises(InputError, match=f"E822 .*{excerpt}"):
        SweepFolder(out).open(plan)


def test_files_of_other_programs_are_unchanged(plan: SweepPlan, out: pathlib.Path) -> None:
    foreign = (".part-000001.parquet.swp", ".part-", ".part-one-two", "notes.txt")
    for name in foreign:
        (out / "parts" / name).write_bytes(b"mine")
    assert run(plan, out).found == plan.num_parts
    assert {name for name in files_of(out)} >= set(foreign)


@pytest.mark.ci
@pytest.mark.slow
def test_copies_of_parts_are_neither_queried_nor_plotted(out: pathlib.Path) -> None:
    query = ("query", str(out), "select count(*) from results", "--csv")
    plot = ("plot", str(out), "--json", "--out", str(out / "pictures"))
    before = [call(*command).stdout for command in (query, plot)]
    part = out / "parts" / "part-000001.parquet"
    for name in ("part-000001 (copy).parquet", "part-1.parquet"):
        shutil.copy(part, out / "parts" / name)
    assert [call(*command).stdout for command in (query, plot)] == before
    # A part with a number above those of this sweep.
    shutil.copy(part, out / "parts" / "part-000099.parquet")
    assert call(*query).stdout == before[0]


def cut(part: pathlib.Path) -> bytes:
    return part.read_bytes()[:-20]


def with_a_flipped_bit_of_a_column_name(part: pathlib.Path) -> bytes:
    """No checksum of Parquet covers the names of columns, and DuckDB reads the file."""
    return part.read_bytes().replace(b"iteration_time_s", b"iteration_time_r")


def copy_of_another(part: pathlib.Path) -> bytes:
    return part.with_name("part-000002.parquet").read_bytes()


@pytest.mark.parametrize("damage", [cut, with_a_flipped_bit_of_a_column_name, copy_of_another])
def test_a_damaged_or_swapped_part_is_an_error_of_the_query(
    damage: Callable[[pathlib.Path], bytes], out: pathlib.Path
) -> None:
    part = out / "parts" / "part-000003.parquet"
    part.write_bytes(damage(part))
    errors = refused("query", str(out), "select max(mfu) from results")
    assert f"E827 the results cannot be read: {part}: " in errors
    assert "fix: run the same simtrain sweep command again" in errors


def test_parts_of_another_pyarrow_are_queried_if_their_checksums_hold(
    out: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simtrain.studies.sweep.part._file_of", lambda table: b"other bytes")
    monkeypatch.setattr("simtrain.studies.sweep.folder.versions", lambda: {"pyarrow": "0.0.0"})
    files, num_missing = SweepFolder(out).finished()
    assert (len(files), num_missing) == (NUM_PARTS, 0)
    (out / "parts" / "part-000003.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="E827 "):
        SweepFolder(out).finished()


def test_the_name_of_the_folder_adds_no_column(whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = shutil.copytree(whole, tmp_path / "gpus=8" / "out")
    sql = "select * from results limit 1"
    assert call("query", str(out), sql).stdout == call("query", str(whole), sql).stdout


def is_blocked(process: int | None) -> bool:
    """Return whether a process blocks the signal of Ctrl-C."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    (blocked,) = re.findall(r"SigBlk:\s*([0-9a-f]+)", status)
    return bool(int(blocked, 16) & 1 << signal.SIGINT - 1)


@pytest.mark.slow
def test_ctrl_c_waits_until_a_worker_is_prepared() -> None:
    """Otherwise its interpreter would print a traceback while it starts."""
    with local_executor(2) as executor:
        future = executor.submit(len, "abc")
        (worker,) = multiprocessing.active_children()
        assert is_blocked(worker.pid)
        assert future.result() == 3
        assert not is_blocked(worker.pid)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_numbers_of_bytes_above_64_bits_are_null(tmp_path: pathlib.Path) -> None:
    plan = plan_of(tmp_path, with_axes("model.seq_length: [64, 2147483647]"))
    run(plan, tmp_path / "out")
    fits, vast = rows_of(tmp_path / "out")
    assert (fits["status"], vast["status"]) == ("ok", "does_not_fit")
    assert fits["peak_bytes"] > 0 and vast["peak_bytes"] is None


def test_rules_of_clusters_are_summarized_in_words(tmp_path: pathlib.Path) -> None:
    text = with_axes("cluster: [a100_sxm4_80gb, v100_p3]", "attention_backend: [fused]")
    (tmp_path / "s.yaml").write_text(text)
    outcome = call("sweep", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "out"))
    assert outcome.exit_code == 0
    assert "1  illegal, E331: the time of fused attention" in outcome.stdout
