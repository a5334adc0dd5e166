"""Logs of nccl-tests adapt the links and the network of a profile, and nothing else."""

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from calibrate.fit.adapt import adapt_links
from calibrate.fit.base import Base
from calibrate.records.nccl_tests import Log, bus_factor
from calibrate.records.schema import CollectiveRecord
from simtrain.errors import InputError
from simtrain.hardware.entries import entries_of
from simtrain.hardware.load import load_profile
from tests.helpers.command_line import call, refused
from tests.helpers.measured_records import took

pytestmark = pytest.mark.slow

H100 = "NVIDIA H100 80GB HBM3"
LISTED = "".join(
    f"#  Rank {rank:2} Group  0 Pid 47{rank} on node device  {rank} [0x0{rank}] {H100}\n"
    for rank in range(8)
)
SIZES = [1 << power for power in range(16, 31, 2)]


def times(num_ranks: int, latency_s: float, bytes_per_s: float, op: Any = "all_reduce") -> Any:
    """Yield size and seconds of a collective with this bus bandwidth beyond its latency."""
    for size in SIZES:
        yield size, latency_s + size * bus_factor(op, num_ranks) / bytes_per_s


def log(op: Any, timed: Iterator[tuple[int, float]], num_ranks: int, nodes: int = 1) -> Log:
    group: Any = {"num_ranks": num_ranks, "num_nodes": nodes}
    records = [
        CollectiveRecord(op=op, array_bytes=size, time=took(seconds), **group)
        for size, seconds in timed
    ]
    return Log(pathlib.Path(f"{op}_{num_ranks}.txt"), H100, records)


def test_only_the_entries_that_the_logs_show_change() -> None:
    base = Base.load("h100_sxm")
    logs = [
        log("all_reduce", times(8, 20e-6, 200e9), 8),
        log("all_reduce", times(16, 60e-6, 190e9), 16, 2),
    ]
    fit = adapt_links(base, logs, "mine")
    before, after = dict(entries_of(base.profile)), dict(entries_of(fit.profile))
    changed = {name for name, entry in after.items() if entry != before[name]}
    assert changed == {"intra_node.all_reduce", "inter_node.whole_node_efficiency"}
    for name in changed:
        assert after[name].source.startswith("nccl-tests, all_reduce_8.txt, all_reduce_16.txt")
    # Curves of groups that no log has stay, and their source says so.
    old, new = (p.links.all_reduce for p in (base.profile, fit.profile))
    assert [curve.num_ranks for curve in new.value] == [curve.num_ranks for curve in old.value]
    assert [c for c in new.value if c.num_ranks != 8] == [c for c in old.value if c.num_ranks != 8]
    assert "2, 4 ranks: " in new.source and old.source in new.source
    assert fit.data["description"].endswith("all_reduce_8.txt, all_reduce_16.txt")


def test_the_adapted_links_have_the_rates_of_the_logs() -> None:
    logs = [
        log("all_reduce", times(8, 20e-6, 200e9), 8),
        log("all_reduce", times(16, 60e-6, 190e9), 16, 2),
        log("send_recv", times(2, 10e-6, 225e9, "send_recv"), 2),
    ]
    profile = adapt_links(Base.load("h100_sxm"), logs, "mine").profile
    (curve,) = (each for each in profile.links.all_reduce.value if each.num_ranks == 8)
    assert curve.efficiency[-1] == pytest.approx(200 / 450, rel=0.01)
    assert profile.links.point_to_point.efficiency.value == pytest.approx(0.5, rel=0.02)
    # Eight adapters of 50 GB/s.
    assert profile.network.whole_node_efficiency.value == pytest.approx(190 / 400, rel=0.05)


def test_logs_that_show_nothing_are_refused() -> None:
    few = log("all_reduce", iter([(1 << 20, 1e-4), (1 << 24, 1e-3)]), 8)
    with pytest.raises(InputError, match="E720 the logs change nothing") as caught:
        adapt_links(Base.load("h100_sxm"), [few], "mine")
    assert "2 sizes of all_reduce over 8 ranks" in str(caught.value)


def test_the_command_writes_a_profile_that_loads(tmp_path: pathlib.Path) -> None:
    rows = "".join(
        f"{size} {size // 4} float sum -1 {seconds * 1e6:.2f} {size / seconds / 1e9:.2f} "
        f"{size / seconds / 1e9 * 7 / 4:.2f} 0\n"
        for size, seconds in times(8, 20e-6, 200e9)
    )
    path, output = tmp_path / "all_reduce.txt", tmp_path / "mine.yaml"
    path.write_text(f"# nThread 1\n{LISTED}{rows}", encoding="utf-8")
    words = ("calibrate", "fit", str(path))
    done = call(*words, "--base", "h100_sxm", "-o", str(output))
    assert done.exit_code == 0, done.stderr
    profile = load_profile(output)
    assert profile.name == "mine"
    assert "intra_node.all_reduce of 8 ranks" in profile.description
    assert "calibrate fit" in output.read_text(encoding="utf-8").splitlines()[2]
    assert profile.gemm == load_profile("h100_sxm").gemm
    assert "E723" in refused(*words)
