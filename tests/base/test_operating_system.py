"""Differences between operating systems, simulated by removing modules and functions."""

import ctypes
import os
import pathlib
import struct
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from simtrain.base.process import num_processors, physical_memory_bytes
from simtrain.studies.sweep import executors
from simtrain.studies.sweep.executors import local_executor
from tests.helpers.command_line import call
from tests.helpers.sweep_files import SMALL, files_of


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)


@pytest.mark.usefixtures("windows")
def test_a_sweep_runs_without_modules_that_windows_lacks(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert num_processors() == 1
    for _ in range(2):
        done = call("sweep", str(tmp_path / "small.yaml"), "-o", str(tmp_path / "out"))
        assert (done.exit_code, done.stderr) == (0, "")
    assert files_of(tmp_path / "out")


def test_windows_has_at_most_61_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = []
    monkeypatch.setattr(executors, "ProcessPoolExecutor", lambda number, *_: numbers.append(number))
    for most in (61, None):
        monkeypatch.setattr(executors, "MOST_WORKERS", most)
        local_executor(200)
    assert numbers == [61, 200]


@pytest.mark.skipif(not pathlib.Path("/proc/meminfo").exists(), reason="Linux lists its memory")
def test_the_memory_of_the_machine() -> None:
    pages = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").split()
    assert physical_memory_bytes() == pytest.approx(1024 * int(pages[1]), rel=0.01)


def test_windows_returns_its_memory_in_a_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory_status(status: Any) -> int:
        assert struct.unpack_from("<I", status.raw) == (len(status),) == (64,)
        struct.pack_into("<Q", status, 8, 16 << 30)
        return 1

    monkeypatch.delattr(os, "sysconf", raising=False)
    kernel = SimpleNamespace(GlobalMemoryStatusEx=memory_status)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert physical_memory_bytes() == 16 << 30
