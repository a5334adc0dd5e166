"""Differences between operating systems, simulated by removing modules and functions."""

import ctypes
import os
import pathlib
import signal
import struct
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from simtrain.base.operating_system import num_processors, physical_memory_bytes, try_to_lock
from simtrain.studies.sweep import executors
from simtrain.studies.sweep.executors import local_executor
from tests.helpers.command_line import call
from tests.helpers.sweep_files import SMALL, files_of

fcntl = pytest.importorskip("fcntl", reason="POSIX locks stand in for those of Windows")


class FakeMsvcrt:
    """Lock bytes of a file until it is closed, as on Windows."""

    LK_NBLCK = 2

    @staticmethod
    def locking(descriptor: int, mode: int, num_bytes: int) -> None:
        assert (mode, num_bytes) == (FakeMsvcrt.LK_NBLCK, 1)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(13, "Permission denied") from error


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", FakeMsvcrt())
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(executors, "_HAS_SIGNAL_MASKS", False)
    monkeypatch.delattr(signal, "pthread_sigmask", raising=False)


def check_locks(path: pathlib.Path) -> None:
    with path.open("ab") as first, path.open("ab") as second:
        assert try_to_lock(first)
        assert not try_to_lock(second)
    with path.open("ab") as third:
        assert try_to_lock(third)
    assert path.read_bytes() == b""


def test_a_file_is_locked_until_it_is_closed(tmp_path: pathlib.Path) -> None:
    check_locks(tmp_path / "lock")


@pytest.mark.usefixtures("windows")
def test_windows_locks_the_same(tmp_path: pathlib.Path) -> None:
    check_locks(tmp_path / "lock")


@pytest.mark.usefixtures("windows")
def test_a_sweep_runs_without_modules_that_windows_lacks(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert num_processors() == 1
    for _ in range(2):
        done = call("sweep", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"))
        assert (done.exit_code, done.stderr) == (0, "")
    assert files_of(tmp_path / "out")


def test_windows_has_at_most_61_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = []
    monkeypatch.setattr(executors, "_Pool", lambda number, **options: numbers.append(number))
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
