"""`simtrain show` of profiles: each is checked, and printed with its sources."""

import json
import pathlib

import pytest

from simtrain.base.resources import find_profile, list_profiles
from tests.helpers.command_line import call

pytestmark = pytest.mark.slow

SHIPPED = find_profile("a100_sxm4_80gb").read_text(encoding="utf-8")


def test_show_has_levels_and_algorithms(tmp_path: pathlib.Path) -> None:
    """Each level and protocol has a line."""
    levels = "{name: leaf, nodes: 32, oversubscription: 2}"
    protocol = (
        "{name: LL, base_latency: 6.6 us, node_step: 0.6 us, network_step: 2.7 us, efficiency: 0.1}"
    )
    text = SHIPPED.replace(
        "gpu:\n", f"  levels: {{value: [{levels}], source: the operator}}\ngpu:\n", 1
    )
    text = text.replace(
        "collectives:\n",
        "collectives:\n"
        f"  tree: {{value: [{protocol}], source: NCCL}}\n"
        "  algorithm: {value: tree, source: the operator}\n",
    )
    path = tmp_path / "levels.yaml"
    path.write_text(text, encoding="utf-8")
    shown = call("show", str(path), "--format=md")
    assert (shown.exit_code, shown.stderr) == (0, "")
    steps = "0.6 µs per step within a node, 2.7 µs per network step"
    for words in ("leaf: 32 nodes, uplinks 2:1", f"LL: 6.6 µs, {steps}, 10%"):
        assert words in shown.stdout
    data = json.loads(call("show", str(path), "--format=json").stdout)["entries"]
    assert data["cluster.levels"]["value"][0]["nodes"] == 32
    assert data["collectives.tree"]["value"][0]["network_step"] == pytest.approx(2.7e-6)


@pytest.mark.parametrize("name", list_profiles())
def test_check_accepts_shipped_profiles(name: str) -> None:
    done = call("show", str(find_profile(name)))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{name}\n")


BANDWIDTH = "    source: NVIDIA A100 SXM4 80 GB datasheet\n"


@pytest.mark.parametrize(
    ("old", "new", "message", "fix"),
    [
        ("0.913", "1.2", "point_to_point.efficiency.value is 1.2, but must be less than", "write"),
        ("value: 8 us", "value: -8 us", "latency.value", "write"),
        ("value: 8 us", "value: nan us", "is not a finite number", "write"),
        ("0.4853", ".nan", "overlap.slowdown.value is .nan, but must be a finite", "write"),
        (
            "1.516 TB/s",
            "2.516 TB/s",
            "is above gpu.memory_bandwidth 2.039 TB/s",
            "at most 2.039 TB",
        ),
        (
            "266.5 TFLOP/s",
            "366.5 TFLOP/s",
            "above gpu.peak_flops 312 TFLOP/s",
            "write at most 309.8 TFLOP/s",
        ),
        (
            "253.5 TFLOP/s",
            "353.5 TFLOP/s",
            "above gpu.peak_flops 312 TFLOP/s",
            "at most 312 TFLOP/s",
        ),
        ("value: 1.056", "value: 1.552", "it exceeds the link", "write at most 1.342"),
        ("2.11 GiB", "81 GiB", "81 GiB is above gpu.memory_capacity", "write less than 80 GiB"),
        ("13.14 GB/s", "13.14 TB/s", "host_link.bandwidth.value: 13.14 TB/s", "PCIe 5.0"),
        (BANDWIDTH, "", "gpu.memory_bandwidth.source is missing", "add source"),
        (BANDWIDTH, '    source: "  "\n', "gpu.memory_bandwidth.source: is blank", "name the"),
    ],
)
def test_check_refuses_impossible_values(
    old: str, new: str, message: str, fix: str, tmp_path: pathlib.Path
) -> None:
    """The error has file, line and column, the field, the value, the limit and a remedy."""
    assert old in SHIPPED
    path = tmp_path / "mine.yaml"
    path.write_text(SHIPPED.replace(old, new, 1), encoding="utf-8")
    done = call("show", str(path))
    assert (done.exit_code, done.stdout) == (2, "")
    place, _, problem = done.stderr.partition(": E20")
    assert place.startswith(f"{path}:") and place.count(":") >= 2
    assert message in problem
    assert fix in problem
