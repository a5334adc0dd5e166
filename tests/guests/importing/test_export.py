"""`simtrain export`: what is written is imported as the same scenario."""

import random
from pathlib import Path
from typing import Any

import pytest

import simtrain
from benchmarks.random_scenarios import random_scenario
from simtrain.base.resources import list_scenarios
from simtrain.errors import InputError
from simtrain.guests.importing.megatron.export import megatron_script, values_of
from simtrain.scenario import Scenario, check_scenario, load_scenario
from simtrain.scenario.resolved import settings_of
from tests.helpers.command_line import call
from tests.helpers.imported import import_megatron

OLDER = ("parallelism.scatter_gather", "software.norm_in_linear")
"""What Megatron-LM of 2022 did, which the arguments of today do not say."""


def losses(script: str) -> list[str]:
    """Return the fields that comments of a script list."""
    lines = (line.removeprefix("# - ") for line in script.splitlines() if line.startswith("# - "))
    return [line.partition(":")[0] for line in lines]


def read_back(script: str, scenario: Scenario, tmp_path: Path) -> Scenario:
    file = tmp_path / "train.sh"
    file.write_text(script, "utf-8")
    return import_megatron(str(file), [f"cluster={scenario.cluster}"])[0]


def test_adapters_are_refused() -> None:
    with pytest.raises(InputError, match=r"E882 model\.lora is set"):
        megatron_script(load_scenario("llama3_70b_lora"))


@pytest.mark.parametrize("name", list_scenarios())
def test_shipped_scenarios_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    of_fine_tuning = {"model.lora": None, "batch.packed_lengths": None}
    scenario = load_scenario(name).replace(of_fine_tuning)
    script = megatron_script(scenario)
    can_be_lost = {*OLDER}
    if not scenario.schedule_family.blocks:  # DeepSeek-V3's own framework has it
        can_be_lost |= {"schedule", "overlap.pipeline", "precision.fp8_dispatch"}
        can_be_lost |= {"precision.fp8_activation_inputs", "precision.attention_output_bits"}
        can_be_lost |= {"software.fp8_columns"}
    assert {*losses(script)} <= can_be_lost
    again = read_back(script, scenario, tmp_path)
    assert (again.model, again.batch) == (scenario.model, scenario.batch)
    assert again.num_gpus == scenario.num_gpus
    if not losses(script):
        assert values_of(again) == values_of(scenario)


def sayable(values: dict[str, Any]) -> dict[str, Any]:
    """Return a random scenario without what Megatron-LM's arguments of today do not say."""
    reduces = values["overlap"].get("data_parallel", False)
    reduces = reduces and values["parallelism"]["data"] > 1
    buckets = {"data_parallel": True, "gradient_buckets": "megatron"}
    values |= {"software": "megatron_core", "overlap": buckets if reduces else {}}
    values.pop("schedule", None)
    values["memory"].pop("deallocate_outputs", None)
    values["parallelism"]["scatter_gather"] = False
    return values


@pytest.mark.slow
@pytest.mark.parametrize("fewest_whole", [0, 12])
def test_random_scenarios_survive_a_round_trip(fewest_whole: int, tmp_path: Path) -> None:
    """What the arguments can say comes back; exporting it again writes the same arguments."""
    rng, num_whole, num_written = random.Random(1), 0, 0
    for _ in range(30):
        values = random_scenario(rng)
        scenario = Scenario.model_validate(sayable(values) if fewest_whole else values)
        try:
            check_scenario(scenario)
        except InputError:
            continue
        if scenario.model.vocab_size == 1 or scenario.schedule == "gpipe":
            continue  # Megatron-LM has neither, and its rules may refuse the rest.
        script = megatron_script(scenario)
        num_written += 1
        again = read_back(script, scenario, tmp_path)
        if not losses(script):
            num_whole += 1
            assert (again.model, again.parallelism) == (scenario.model, scenario.parallelism)
            assert (again.recompute, again.batch) == (scenario.recompute, scenario.batch)
            assert again.precision == scenario.precision
            assert settings_of(again)["memory.zero_stage"] == scenario.memory.zero_stage
        once_more = megatron_script(again)
        assert losses(once_more) == []
        assert read_back(once_more, again, tmp_path) == again
    assert num_written > 10
    assert num_whole >= fewest_whole


def test_the_command_writes_a_script_or_prints_it(tmp_path: Path) -> None:
    printed = call("export", "llama3_70b").stdout
    assert "torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py" in printed
    file = tmp_path / "train.sh"
    done = call("export", "llama3_70b", "-o", str(file))
    assert done.stdout == f"Wrote {file}. Read it back with: simtrain import {file}\n"
    assert file.read_text("utf-8") == printed
    assert simtrain.export(load_scenario("llama3_70b")) == printed


def test_what_no_argument_says_is_listed() -> None:
    window = "schedule=gpipe", "model.activation=geglu"
    sets = [word for each in window for word in ("--set", each)]
    script = call("export", "llama3_8b", *sets).stdout
    assert "schedule" in losses(script) and "--quick-geglu" in script
