"""Settings without effect are reported, and no others."""

import json

import pytest

from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.machines import Machines
from simtrain.studies.unused_settings import settings_without_effect
from tests.helpers.command_line import call

ON_ONE_NODE = "table5_22b_present"


def unused(scenario: Scenario) -> dict[str, str]:
    return settings_without_effect(scenario, Machines().of(scenario, "auto"))


@pytest.mark.parametrize(
    ("field", "value", "is_idle"),
    [
        ("hardware.inter_node.adapter_bandwidth", "400 Gb/s", True),
        ("hardware.gpu.peak_flops", "2000 TFLOP/s", True),
        ("hardware.memory_bound.stream_bandwidth", "1 TB/s", False),
        ("hardware.gpu.memory_capacity", "70 GiB", False),
        ("hardware.running_costs.price", "2 USD/h", False),  # read by another command
        ("overlap.data_parallel", "true", True),
        ("memory.deallocate_outputs", "false", True),
        ("model.attention_dropout", "0.2", False),
    ],
)
def test_settings_that_change_neither_time_nor_memory_are_listed(
    field: str, value: str, is_idle: bool
) -> None:
    found = unused(load_scenario(ON_ONE_NODE, [f"{field}={value}"]))
    assert set(found) == ({field} if is_idle else set())


def test_settings_that_fused_attention_does_not_use_are_listed() -> None:
    fused = ["attention_backend=fused", "cluster=h100_sxm"]
    idle = {"model.attention_window": 2048, "model.attention_dropout": 0.2}
    written = [f"{field}={value}" for field, value in idle.items()]
    assert {*unused(load_scenario(ON_ONE_NODE, fused + written))} == {*idle}
    shorter = load_scenario(ON_ONE_NODE, [*fused, "model.attention_window=512"])
    assert not unused(shorter)


def test_run_reports_settings_without_effect() -> None:
    peak = ("--set", "hardware.gpu.peak_flops=2000 TFLOP/s")
    words = "hardware.gpu.peak_flops changes MFU and HFU here, but neither time nor memory."
    assert words in " ".join(call("run", ON_ONE_NODE, *peak).stdout.split())
    found = json.loads(call("run", ON_ONE_NODE, *peak, "--json").stdout)["without_effect"]
    assert found == {"hardware.gpu.peak_flops": words}
