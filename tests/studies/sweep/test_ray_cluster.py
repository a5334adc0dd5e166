"""A sweep on a real Ray cluster; half a minute.

CI runs this file after the suite (`pytest -m ci`).
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

from tests.helpers.command_line import ROOT, spawn
from tests.helpers.sweep_files import files_of, run, sweep_of

pytestmark = [pytest.mark.slow, pytest.mark.ci]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
NODE = ("--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats")


@pytest.fixture
def cluster() -> Iterator[str]:
    """Start a cluster of one node; return its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # Paths of sockets have at most 107 characters; pytest's folders are longer.
    folder = tempfile.mkdtemp(prefix="ray-")
    ray = str(pathlib.Path(sys.executable).with_name("ray"))
    head = ("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
    command, quiet = [ray, "start", "--block", *NODE, *head], subprocess.DEVNULL
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=quiet, stderr=quiet) as node:
        while not listens(port):
            assert node.poll() is None, f"it ended with {node.returncode}"
            time.sleep(0.01)
        yield f"127.0.0.1:{port}"
        node.terminate()  # ends the processes that it started
    shutil.rmtree(folder, ignore_errors=True)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_cluster_writes_the_same_bytes(tmp_path: pathlib.Path, cluster: str) -> None:
    run(sweep_of(tmp_path, part_size=2), tmp_path / "here")
    words = ("sweep", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"))
    outcome = spawn("-m", "simtrain", *words, "--part-size", "2", "--ray", cluster, "--json")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    data = json.loads(outcome.stdout)
    assert (data["num_parts_found"], data["num_parts"], data["num_rows"]) == (0, 12, 20)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "here")


def test_an_address_without_a_cluster_is_an_error_in_bounded_time(tmp_path: pathlib.Path) -> None:
    """A server accepts connections at the address, but never answers."""
    sweep_of(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = ("sweep", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"))
        outcome = spawn("-m", "simtrain", *words, "--ray", address)
    assert outcome.exit_code == 2 and "E852 no Ray cluster answers" in outcome.stderr
