"""Tests that start torch in many processes: four ranks, a rank that dies, ranks on two nodes.

CI runs this file after the suite (`pytest -m ci`), because it takes longer than most of it.
"""

import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from calibrate.benchmarks.sizes import BenchmarkPart
from calibrate.fit.links import fit_links
from calibrate.fit.network import NetworkFit, missing_for_network, ranks_per_node
from calibrate.records.file import read_records
from calibrate.records.schema import CollectiveRecord, OverlapRecord
from calibrate.torch_model.models import expert_split
from tests.calibrate.benchmarks.test_measure import identities, wait_for_lines
from tests.calibrate.torch_model.test_layer import assert_ranks_equal_the_plain_layer, shape
from tests.calibrate.torch_model.test_training import assert_ranks_train_as_one_does
from tests.helpers.training_ranks import EXPERTS, LLAMA, scenario

pytestmark = [pytest.mark.slow, pytest.mark.ci]
SCRIPT = Path(__file__).parents[1] / "helpers/measure_tiny.py"


def test_four_ranks_equal_the_plain_layer(tmp_path: Path) -> None:
    shapes = [
        shape(4),
        shape(4, sequence=True),
        shape(4, sequence=True, heads=8, batch=1),
        shape(4, sequence=True, fused=True),
    ]
    assert_ranks_equal_the_plain_layer(tmp_path, shapes)


def test_four_ranks_train_like_one(tmp_path: Path) -> None:
    splits: list[dict[str, Any]] = [
        {"tensor": 2, "sequence_parallel": True, "pipeline": 2},
        {"tensor": 2, "pipeline": 2},
        {"tensor": 4, "sequence_parallel": True},
        {"pipeline": 4},
    ]
    cases = [
        scenario(tied=tied, recompute=recompute, **split)
        for split in splits
        for tied, recompute in ((True, "full"), (False, "selective"))
    ] + [
        scenario(tied=False, model=LLAMA, **splits[0]),
        scenario(tied=False, model=EXPERTS, **expert_split(EXPERTS, 2), **splits[0]),
    ]
    assert_ranks_train_as_one_does(tmp_path, cases)


def start_two(folder: Path, *parts: str, ranks_per_node: int = 2) -> list[Any]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return [start(folder, *parts, rank=rank, here=ranks_per_node, port=port) for rank in range(2)]


def start(folder: Path, *parts: str, rank: int, here: int, port: int) -> Any:
    """Start one of two ranks as torchrun does, with `here` ranks on its node."""
    world = {"RANK": rank, "LOCAL_RANK": rank % here, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": here}
    names = world | {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    environment = os.environ | {name: str(value) for name, value in names.items()}
    command = [sys.executable, str(SCRIPT), str(folder), *parts]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_two_ranks_measure_and_survive_a_rank_that_dies(tmp_path: Path) -> None:
    first, second = start_two(tmp_path, BenchmarkPart.COLLECTIVES, BenchmarkPart.LAYERS)
    wait_for_lines(tmp_path, 3)
    second.kill()
    second.communicate()
    _, message = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "E715 another rank died or hangs" in message
    kept = read_records(tmp_path)[1]
    for process in start_two(tmp_path, BenchmarkPart.COLLECTIVES, BenchmarkPart.LAYERS):
        _, message = process.communicate(timeout=60)
        assert process.returncode == 0, message
    found, records = read_records(tmp_path)
    assert (found.backend, found.num_ranks) == ("gloo", 2)
    assert records[: len(kept)] == kept
    assert Counter(each.kind for each in records) == {"collective": 10, "overlap": 3, "layer": 16}
    assert max(identities(tmp_path).values()) == 1
    assert [each.what for each in records if isinstance(each, OverlapRecord)] == [
        "32 x 64 x 64 beside an all-reduce of 4096 bytes over 2 ranks",
        "32 x 64 x 256 beside an all-gather of 4096 bytes over 2 ranks",
        "256 x 64 x 32 beside a reduce-scatter of 4096 bytes over 2 ranks",
    ]


def test_measurements_on_two_nodes_give_a_network(tmp_path: Path) -> None:
    for process in start_two(tmp_path, "collectives", "fit", ranks_per_node=1):
        _, message = process.communicate(timeout=100)
        assert process.returncode == 0, message
    found, measured = read_records(tmp_path)
    assert (found.num_ranks, found.num_nodes) == (2, 2)
    records = [record for record in measured if isinstance(record, CollectiveRecord)]
    assert ranks_per_node(records) == 1
    assert missing_for_network(records, 1) == []
    network = NetworkFit(records, 1, fit_links(records, None))
    assert network.adapter_bytes_per_s > 0
    assert network.step_latency_s > 0
    assert all(0 < fraction <= 1 for fraction in network.efficiency.values())
    assert 0 < network.transfer_efficiency <= 1
