"""Overrides of profile entries in a scenario's `hardware:` section."""

import pathlib
import re

import pytest

from simtrain.base.entry import Entry
from simtrain.base.importer import FileKind, load_kind
from simtrain.base.resources import find_profile
from simtrain.base.strict_yaml import Positions, YamlDocument
from simtrain.errors import InputError
from simtrain.hardware import load
from simtrain.hardware.load import load_profile, profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import load_unchecked
from tests.helpers.scenario_texts import MINIMAL, scenario_of
from tests.helpers.toys import a100


def overlaid(hardware: str) -> HardwareProfile:
    """Load the shipped profile with a scenario's overrides, which are its lines from line 9."""
    return load_profile("a100_sxm4_80gb", scenario_of(MINIMAL + hardware).hardware_document)


def test_a_scenario_sets_an_entry_and_leaves_the_others() -> None:
    profile = overlaid("hardware: {intra_node: {bandwidth: 450 GB/s}, host: {issue: 0 s}}\n")
    assert profile.intra_node.bandwidth == Entry(value=450e9, source="set in the scenario")
    assert profile.host.issue.value == 0.0
    assert profile.intra_node.in_situ_speed == a100().intra_node.in_situ_speed
    assert profile.gpu == a100().gpu


@pytest.mark.parametrize(
    ("hardware", "excerpt"),
    [
        ("{intra_node: {bandwith: 450 GB/s}}", ":25: E205 hardware.intra_node.bandwith is not an"),
        ("{intra_nodes: {bandwidth: 450 GB/s}}", ":12: E205 hardware.intra_nodes is not an entry"),
        ("{intra_node: {bandwidth: 450 us}}", ':36: E206 hardware.intra_node.bandwidth: "us" is a'),
        (
            "{intra_node: {bandwidth: 450}}",
            ":36: E206 hardware.intra_node.bandwidth: 450 has no unit",
        ),
        ("{intra_node: {bandwidth: }}", ":25: E206 hardware.intra_node.bandwidth: None is not a"),
        ("{intra_node: 450 GB/s}", ":24: E205 hardware.intra_node is not an entry"),
        ("{overlap: {slowdown: -1}}", ":32: E204 hardware.overlap.slowdown is -1, but must be"),
        ("{name: mine}", ":18: E205 hardware.name is not an entry of the profile"),
        (
            "{intra_node: {all_reduce: [{num_ranks: 1}]}}",
            ":50: E204 hardware.intra_node.all_reduce.0.num_ranks is 1",
        ),
    ],
)
def test_a_bad_override_is_reported_at_its_line(hardware: str, excerpt: str) -> None:
    with pytest.raises(InputError) as caught:
        overlaid(f"hardware: {hardware}\n")
    message = str(caught.value)
    assert f"x.yaml:9{excerpt}" in message
    assert f" 9 | hardware: {hardware}" in message


@pytest.mark.parametrize(
    ("override", "excerpt"),
    [
        (
            "gpu.memory_capacity=1B",
            "1 B is below 2.11 GiB, which memory.allocator_reserve reaches\n"
            "  fix: write more than 2.11",
        ),
        ("memory.allocator_reserve=90GiB", "90 GiB is above gpu.memory_capacity 80 GiB"),
        ("gpu.peak_flops=1 TFLOP/s", "1 TFLOP/s is below 268.4 TFLOP/s, which gemm.mainloop_flops"),
        ("gemm.in_situ_speed=1.5", "multiplied by gemm.mainloop_flops it is 399.8 TFLOP/s, above"),
        ("gemm.sustained_flops=1 PFLOP/s", "1 PFLOP/s is above gpu.peak_flops 312 TFLOP/s"),
        ("gpu.memory_bandwidth=1 GB/s", "1 GB/s is below 1.61 TB/s, which memory_bound.stream_"),
        ("host_link.bandwidth=9 TB/s", "9 TB/s is above gpu.memory_bandwidth 2.039 TB/s\n"),
        (
            "intra_node.in_situ_speed=2",
            "multiplied by the efficiency 0.7449 of all_reduce it exceeds "
            "the link\n  fix: write at most 1.342",
        ),
        ("running_costs.gpu_power=1 kW", "multiplied by cluster.gpus_per_node it is 8 kW, above"),
        ("running_costs.node_power=1 kW", "1 kW is below 3.2 kW, which running_costs.gpu_power"),
        ("running_costs.gpu_power=200 W", "200 W is below 391 W, which running_costs.gpu_product"),
        ("running_costs.gpu_idle_power=0.1 kW", "100 W is above running_costs.gpu_waiting_power"),
        ("cluster.gpus_per_node=32", "multiplied by running_costs.gpu_power it is 12.8 kW, above"),
    ],
)
def test_a_contradiction_is_reported_at_the_override(override: str, excerpt: str) -> None:
    with pytest.raises(InputError) as caught:
        profile_of(load_unchecked("table5_22b_present", [f"hardware.{override}"]))
    name = override.partition("=")[0]
    assert str(caught.value).startswith(
        f"--set hardware.{override}: E206 hardware.{name}: {excerpt}"
    )
    mended(name, str(caught.value))


def mended(name: str, message: str) -> HardwareProfile:
    """Write what messages say, until there is none: the speed of products counts in each type."""
    (words, number, unit) = re.findall(r"write (\w+ \w+) ([\d.]+)([^;,\n]*)", message)[0]
    number = float(number) * {"more than": 1.01, "less than": 0.99}.get(words, 1)
    try:
        return profile_of(
            load_unchecked("table5_22b_present", [f"hardware.{name}={number:g}{unit}"])
        )
    except InputError as error:
        assert str(error) != message
        return mended(name, str(error))


def test_an_unchanged_profile_is_read_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overrides apply to the cached profile. A changed file is read again; a removed one is an
    error.
    """

    def counted(path: pathlib.Path, kind: FileKind) -> YamlDocument:
        reads.append(path)
        return load_kind(path, kind)

    def bandwidth() -> float:
        return load_profile(path).intra_node.bandwidth.value

    reads: list[pathlib.Path] = []
    monkeypatch.setattr(load, "load_kind", counted)
    path = tmp_path / "mine.yaml"
    text = find_profile("a100_sxm4_80gb").read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    own = YamlDocument({"intra_node": {"bandwidth": "450 GB/s"}}, Positions())
    assert load_profile(path, own).intra_node.bandwidth.value == 450e9
    assert (bandwidth(), len(reads)) == (300e9, 1)
    path.write_text(text.replace("300 GB/s", "310 GB/s"), encoding="utf-8")
    assert (bandwidth(), len(reads)) == (310e9, 2)
    path.unlink()
    with pytest.raises(InputError, match="E101"):
        bandwidth()
