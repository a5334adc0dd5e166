"""Scenarios with a recorded program: what follows from it, what can be set, what is refused."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from simtrain.errors import InputError
from simtrain.guests.recording.program import write_program
from simtrain.scenario import Scenario, check_scenario, load_scenario
from simtrain.scenario.resolved import settings_of
from simtrain.scenario.template import scenario_schema
from simtrain.studies.simulation import simulate
from simtrain.studies.variation import draw
from tests.helpers.recorded_programs import TOKENS, W, X, linear_layers, run, scenario_of


def test_model_batch_and_layout_are_those_of_the_program(tmp_path: Path) -> None:
    program = linear_layers(gpus=32, tensor=8, sequences=3)
    scenario = scenario_of(program, tmp_path)
    check_scenario(scenario)
    assert (scenario.num_gpus, scenario.parallelism.tensor, scenario.parallelism.data) == (32, 8, 4)
    assert (scenario.batch.micro, scenario.batch.global_, scenario.num_microbatches) == (3, 12, 1)
    assert scenario.model.seq_length == TOKENS
    assert scenario.precision.compute == "bf16"
    assert {"model", "batch", "parallelism"}.isdisjoint(scenario.model_fields_set)


def test_products_of_fp32_numbers_have_their_own_type(tmp_path: Path) -> None:
    x, w = (each.replace("bf16", "f32") for each in (X, W))
    wide = {"op": "aten.mm", "reads": [x, w], "writes": [x]}
    for products in ("fp32", "tf32"):
        program = linear_layers(forward=[run(wide)], f32_products=products)
        scenario = scenario_of(program, tmp_path)
        assert (scenario.precision.compute, scenario.precision.product_type) == ("fp32", products)


def test_settings_name_no_sizes_that_the_program_does_not_say(tmp_path: Path) -> None:
    settings = settings_of(scenario_of(linear_layers(), tmp_path))
    assert {field for field in settings if field.startswith("model.")} == {"model.seq_length"}


def test_the_path_is_relative_to_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    write_program(linear_layers(), tmp_path / "inner" / "a.program.json.gz")
    file = tmp_path / "inner" / "a.yaml"
    file.write_text("program: a.program.json.gz\ncluster: h100_sxm\n", "utf-8")
    assert load_scenario(file).program == str(tmp_path / "inner" / "a.program.json.gz")


@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism.tensor": 2},
        {"batch.micro": 2},
        {"model.num_layers": 3},
        {"recompute": "full"},
        {"memory.zero_stage": 1},
        {"precision.compute": "fp8"},
        {"schedule": "gpipe"},
        {"overlap.data_parallel": True},
        {"placement.order": "tp-cp-ep-pp-dp"},
    ],
    ids=str,
)
def test_what_decides_the_ops_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    scenario = scenario_of(linear_layers(gpus=8), tmp_path)
    with pytest.raises(InputError, match="E206") as caught:
        scenario.replace(changes)
    (name, *_) = next(iter(changes)).split(".")
    assert f"{name}: a recorded program has its own" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster": "b200_sxm"},
        {"software.host_issue": "1 us"},
        {"hardware": {"scale": {"memory_bandwidth": 2}}},
    ],
    ids=str,
)
def test_what_does_not_decide_them_can_be_set(changes: dict[str, Any], tmp_path: Path) -> None:
    scenario = scenario_of(linear_layers(gpus=8), tmp_path)
    before, after = simulate(scenario), simulate(scenario.replace(changes))
    assert after.hardware_flops == before.hardware_flops
    assert after.iteration_time_s != before.iteration_time_s


def test_ranks_may_vary(tmp_path: Path) -> None:
    idle_host = {"stack": "torchtitan", "host_issue": "0 s", "host_call": "0 s"}
    scenario = scenario_of(linear_layers(gpus=8), tmp_path, software=idle_host)
    slow = draw(scenario.replace({"variation.slow": {"factor": 2.0}}), draws=20)
    assert slow.time.mean > 1.2 * draw(scenario, draws=20).time.mean


def test_a_scenario_needs_a_model_or_a_program() -> None:
    with pytest.raises(InputError, match="E202 model is missing"):
        Scenario()


def test_the_schema_takes_a_program_in_place_of_a_model() -> None:
    validator = jsonschema.Draft202012Validator(scenario_schema())
    assert validator.is_valid({"program": "a.program.json.gz", "cluster": "h100_sxm"})
    assert not validator.is_valid({"cluster": "h100_sxm"})
    assert not validator.is_valid({"batch": {"micro": 1, "global": 1}})
