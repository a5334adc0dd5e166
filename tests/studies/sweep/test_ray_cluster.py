"""A sweep on a real Ray cluster of two nodes, one of which dies during the sweep; half a minute.

CI runs this file after the suite (`pytest -m ci`).
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.helpers.command_line import ROOT, spawn
from tests.helpers.sweep_files import BASE, files_of, run, sweep_of

pytestmark = [pytest.mark.slow, pytest.mark.ci]
# 80 * 30 points in 100 parts, so the node joins and dies long before the sweep ends.
NUM_PARTS, PART_SIZE = 100, 24
SWEEP = f"""{BASE}\
axes:
  model.vocab_size: {{range: [512, {512 * 80}, 512]}}
  parallelism.tensor: [1, 2, 4]
  parallelism.pipeline: [1, 2, 3, 4, 6]
  batch.micro: [1, 2]
"""
NUM_BEFORE, NUM_BETWEEN = 5, 5
BUSY = b"ray::on_node"
"""Name of a worker's process while it computes a part."""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
NODE = ("--block", "--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats")


def until(holds: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Wait for a condition, and assert that a process runs until then."""
    while not holds():
        assert process.poll() is None, f"it ended with {process.returncode}"
        time.sleep(0.01)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def processes_below(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def kill(node: "subprocess.Popen[str]") -> None:
    """Kill the raylet of a node, its workers and its agents, as a loss of power would."""
    for pid in processes_below(node.pid):
        os.kill(pid, signal.SIGKILL)
    node.wait()


def workers_of(node: "subprocess.Popen[str]") -> list[int]:
    """Return the busy and idle workers of a node; Ray's agents have other names."""
    pids = processes_below(node.pid)
    return [pid for pid in pids if name_of(pid).startswith((BUSY, b"ray::IDLE"))]


def name_of(pid: int) -> bytes:
    path = pathlib.Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


def stop_with_part(node: "subprocess.Popen[str]") -> bool:
    """Stop the workers of a node if one of them has a part, which it keeps until it is killed."""
    pids = workers_of(node)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    if any(name_of(pid).startswith(BUSY) for pid in pids):
        return True
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    return False


@contextmanager
def node_of_cluster(*options: str) -> Iterator["subprocess.Popen[str]"]:
    command = [str(pathlib.Path(sys.executable).with_name("ray")), "start", *NODE, *options]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=quiet, stderr=quiet, text=True) as node:
        try:
            yield node
        finally:
            if node.poll() is None:
                kill(node)


@pytest.fixture
def cluster() -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Start a cluster of two nodes; return its address, and the node that may be killed."""
    # Paths of sockets have at most 107 characters; pytest's folders are longer.
    folder, port = tempfile.mkdtemp(prefix="ray-"), free_port()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        head = ("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
        first = stack.enter_context(node_of_cluster(*head))
        until(lambda: listens(port), first)
        second = ("--address", f"127.0.0.1:{port}", "--node-ip-address=127.0.0.2")
        yield f"127.0.0.1:{port}", stack.enter_context(node_of_cluster(*second))


@contextmanager
def sweep(path: pathlib.Path, address: str, *options: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "simtrain", "sweep", str(path / "small.yaml")]
    command += ["-o", str(path / "out")]
    command += ["--ray", address, "--format=json", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_node_that_dies_loses_only_its_current_part(
    tmp_path: pathlib.Path, cluster: tuple[str, "subprocess.Popen[str]"]
) -> None:
    address, node = cluster
    (tmp_path / "here").mkdir()
    run(sweep_of(tmp_path / "here", SWEEP), tmp_path / "here" / "out")
    sweep_of(tmp_path, SWEEP)
    parts = tmp_path / "out" / "parts"

    def num_parts() -> int:
        return len(list(parts.glob("part-*"))) if parts.exists() else 0

    with sweep(tmp_path, address, "--workers", "2") as process:
        until(lambda: num_parts() >= NUM_BEFORE and stop_with_part(node), process)
        reached = num_parts() + NUM_BETWEEN
        until(lambda: num_parts() >= reached, process)
        assert num_parts() < NUM_PARTS / 2
        kill(node)
        stdout, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")
    data = json.loads(stdout)
    assert data["num_parts_found"] == 0
    assert data["num_rows"] == NUM_PARTS * PART_SIZE
    assert files_of(tmp_path / "out") == files_of(tmp_path / "here" / "out")
    assert len(files_of(tmp_path / "out")) == NUM_PARTS


def test_an_address_without_a_cluster_is_an_error_in_bounded_time(tmp_path: pathlib.Path) -> None:
    """A server accepts connections at the address, but never answers."""
    sweep_of(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = ("sweep", str(tmp_path / "small.yaml"), "-o", str(tmp_path / "out"))
        outcome = spawn("-m", "simtrain", *words, "--ray", address)
    assert outcome.exit_code == 2 and "E852 no Ray cluster answers" in outcome.stderr
