"""`simtrain export --to torchtitan`: what is written is imported as the same scenario."""

import random
from pathlib import Path
from typing import Any

import pytest

from simtrain.base.resources import list_scenarios
from simtrain.errors import InputError
from simtrain.importing.torchtitan.export import torchtitan_job
from simtrain.importing.torchtitan.reader import chunks_of_sizes, model_of_flavor
from simtrain.scenario import Scenario, check_scenario, load_scenario
from simtrain.scenario.parallelism import layout_of_chunks
from simtrain.scenario.resolved import settings_of
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import call
from tests.helpers.imported import import_torchtitan

FLAVORS = [("llama3", "8B"), ("llama3", "1B"), ("qwen3", "30B-A3B"), ("deepseek_v3", "debugmodel")]

SCHEDULES = {True: ["1f1b", "gpipe"], False: ["1f1b"]}
"""With a pipeline and without; without one, torchtitan frees a microbatch before the next."""


def random_values(rng: random.Random) -> dict[str, Any]:
    """Draw a scenario of torchtitan: flavors, FSDP or replicas, and PyTorch's schedules."""
    fields, _, _ = model_of_flavor(*rng.choice(FLAVORS)) or ({}, "", ())
    layers = fields["num_layers"]
    tensor, pipeline = rng.choice([1, 2, 4]), rng.choice([1, 1, 2, 4])
    interleave = rng.choice([1, 2]) if pipeline > 1 else 1
    data, micro = rng.choice([1, 2, 4, 8]), rng.choice([1, 2])
    split: dict[str, Any] = {
        "tensor": tensor,
        "sequence_parallel": tensor > 1 and rng.random() < 0.8,
        "pipeline": pipeline,
        "interleave": interleave,
        "data": data,
        "scatter_gather": False,
        "context": rng.choice([1, 1, 2]),
    }
    if split["context"] > 1:
        split["context_communication"] = rng.choice(["all_gather", "p2p"])
    if pipeline > 1 and layers >= pipeline * interleave and rng.random() < 0.5:
        if interleave == 1:
            ends = rng.sample(range(1, layers // pipeline + 1), 2)
            split |= dict(zip(("first_stage_layers", "last_stage_layers"), ends, strict=True))
        else:
            sizes = [layers // (pipeline * interleave)] * (pipeline * interleave)
            sizes[-1] += layers - sum(sizes)
            split["layout"] = layout_of_chunks(chunks_of_sizes(sizes))
    if "experts" in fields and rng.random() < 0.5:
        split |= {"expert": 2, "expert_tensor": rng.choice([1, tensor])}
    memory: dict[str, Any] = {"zero_stage": 3 if data > 1 and rng.random() < 0.8 else 0}
    if memory["zero_stage"] and data > 2 and rng.random() < 0.3:
        memory["shard_over"] = data // 2
    if memory["zero_stage"]:
        memory["reshard_after_forward"] = rng.random() < 0.5
    if pipeline > 1 and memory["zero_stage"]:
        memory["reduce_every_microbatch"] = False
    recompute: dict[str, Any] = {"strategy": rng.choice(["none", "full", "ops"])}
    if recompute["strategy"] == "full" and rng.random() < 0.5:
        every = rng.choice([2, 3])
        number = max(1, layers // (pipeline * interleave) // every)
        recompute |= {"method": "block", "num_layers": number}
    return {
        "model": fields | {"seq_length": 2048},
        "parallelism": split,
        "batch": {"micro": micro, "global": micro * data * rng.choice([4, 8])},
        "recompute": recompute,
        "memory": memory,
        "overlap": {"data_parallel": True},
        "schedule": "interleaved" if interleave > 1 else rng.choice(SCHEDULES[pipeline > 1]),
        "attention_backend": "fused",
        "software": rng.choice(["torchtitan", "torchtitan_compiled"]),
        "cluster": "h100_sxm",
    }


def legal_scenario(rng: random.Random) -> Scenario:
    """Draw until torchtitan could run the scenario."""
    while True:
        try:
            scenario = Scenario.model_validate(random_values(rng))
            check_scenario(scenario)
        except (InputError, ValueError):
            continue
        return scenario


def read_back(job: str, folder: Path) -> Scenario:
    file = folder / "job.toml"
    file.write_text(job, "utf-8")
    return import_torchtitan(str(file), ["cluster=h100_sxm"])[0]


def survives(number: int, seed: int, folder: Path) -> None:
    rng = random.Random(seed)
    for _ in range(number):
        scenario = legal_scenario(rng)
        job = torchtitan_job(scenario)
        assert "cannot say" not in job
        again = read_back(job, folder)
        assert settings_of(again) == settings_of(scenario)
        assert again.facts == scenario.facts
        assert torchtitan_job(again) == job


def test_a_random_scenario_survives_a_round_trip(tmp_path: Path) -> None:
    survives(20, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.ci
def test_random_scenarios_survive_a_round_trip(tmp_path: Path) -> None:
    survives(300, 2, tmp_path)


def test_the_scenario_that_comes_back_takes_as_long(tmp_path: Path) -> None:
    scenario = legal_scenario(random.Random(3))
    again = read_back(torchtitan_job(scenario), tmp_path)
    assert simulate(again).iteration_time_s == simulate(scenario).iteration_time_s


@pytest.mark.parametrize("name", list_scenarios())
def test_a_shipped_scenario_comes_back_or_the_error_names_the_field(
    name: str, tmp_path: Path
) -> None:
    scenario = load_scenario(name)
    try:
        job = torchtitan_job(scenario)
    except InputError as error:
        assert "E882" in str(error) and "fix:" in str(error)
        return
    again = read_back(job, tmp_path)
    assert (again.model, again.parallelism) == (scenario.model, scenario.parallelism)


def test_one_field_makes_a_shipped_scenario_a_job(tmp_path: Path) -> None:
    refused = call("export", "--to", "torchtitan", "llama3_8b")
    assert refused.exit_code == 2
    assert "E882 memory.zero_stage is 1" in refused.stderr
    assert "--set memory.zero_stage=3" in refused.stderr
    file = tmp_path / "job.toml"
    sets = ("--set", "memory.zero_stage=3", "--set", "software=torchtitan_compiled")
    done = call("export", "--to", "torchtitan", "llama3_8b", *sets, "-o", str(file))
    assert done.stdout == f"Wrote {file}. Read it back with: simtrain import {file}\n"
    job = file.read_text("utf-8")
    assert 'flavor = "8B"' in job and "tensor_parallel_degree = 4" in job
    assert "# - overlap.data_parallel: False, after an import True" in job
    assert read_back(job, tmp_path).num_gpus == load_scenario("llama3_8b").num_gpus


def test_a_model_without_a_flavor_is_refused() -> None:
    with pytest.raises(InputError, match="E882 the model is none of torchtitan's flavors"):
        torchtitan_job(load_scenario("gpt2_1_5b"))


def test_a_layout_with_an_empty_stage_is_refused() -> None:
    sets = ["parallelism.pipeline=2", "parallelism.layout=E|t*32L", "parallelism.data=1"]
    scenario = load_scenario("llama3_8b", [*sets, "memory.zero_stage=0"])
    assert "tok_embeddings" in torchtitan_job(scenario)
    sets[1:2] = ["parallelism.interleave=2", "parallelism.layout=Et*16||t*16|L"]
    scenario = load_scenario("llama3_8b", [*sets, "memory.zero_stage=0"])
    with pytest.raises(InputError, match=r"E882 parallelism\.layout has a stage without modules"):
        torchtitan_job(scenario)
