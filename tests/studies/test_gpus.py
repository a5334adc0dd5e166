"""`--gpus N` of every command: replicas and nodes are added, and the batch stays."""

import json
from pathlib import Path

import pytest

from simtrain import load_scenario
from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.studies.changes import with_gpus
from tests.helpers.command_line import call, refused
from tests.helpers.imported import BASE, written

NAME = "llama3_70b"
TRAIN = f"torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py {BASE} --global-batch-size 64"


def base() -> Scenario:
    """Tensor 8 x pipeline 4 x data 2, and a batch of 64."""
    return load_scenario(NAME)


@pytest.mark.parametrize(("scale_batch", "batch"), [(False, 64), (True, 512)])
def test_replicas_and_nodes_are_added_and_the_batch_stays(scale_batch: bool, batch: int) -> None:
    changed = with_gpus(base(), 512, scale_batch)
    assert (changed.num_gpus, changed.parallelism.data, changed.batch.global_) == (512, 16, batch)
    layout = changed.replace({"parallelism.data": 2, "batch.global": 64})
    assert layout == base() == with_gpus(base(), 64)


@pytest.mark.parametrize(
    ("gpus", "code", "fix"),
    [
        (100, "E886", "write --gpus 96"),
        (-8, "E886", "write --gpus 32"),
        (True, "E886", "write --gpus 32"),
        (96, "E306", "batch.global"),
    ],
)
def test_what_is_illegal_has_its_place_and_a_fix(gpus: int, code: str, fix: str) -> None:
    with pytest.raises(InputError) as raised:
        with_gpus(base(), gpus)
    (problem,) = raised.value.problems
    assert (str(problem.location), problem.code) == (f"--gpus {gpus}", code)
    assert fix in str(problem.fix)


@pytest.mark.parametrize("command", ["run", "compare", "cost --tokens 1B"])
def test_every_command_means_the_same(command: str) -> None:
    word, *options = command.split()
    short = "--gpus", "128", "--scale-batch", "--format=json"
    long = "--set", "parallelism.data=4", "--set", "batch.global=128", "--format=json"
    first, second = (call(word, NAME, *options, *words).stdout for words in (short, long))
    assert first == second and json.loads(first)["schema_version"]
    assert call(word, NAME, *options, *short[:2], short[3]).stdout != first


def test_a_script_that_says_no_number_has_none_to_scale_from(tmp_path: Path) -> None:
    words = TRAIN.replace(" --nproc-per-node 8 --nnodes 2", "").replace("torchrun", "srun python")
    file = written(str(tmp_path / "run.sh"), f"#!/bin/bash\n{words}\n")
    run = ("run", file, "--gpus", "8", "--set", "cluster=h100_sxm")
    assert call(*run).exit_code == 0
    assert "--scale-batch: E908 " in refused(*run, "--scale-batch")


def test_a_sweep_has_its_base_on_them(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"base: {NAME}\naxes: {{batch.micro: [1, 2]}}\n", "utf-8")
    out = str(tmp_path / "out")
    assert call("sweep", str(sweep), "-o", out, "--gpus", "128", "--workers", "1").exit_code == 0
    sql = "select distinct num_gpus from results"
    assert call("sweep", out, "--query", sql, "--format=csv").stdout == "num_gpus\n128\n"
    assert "an axis sets" in refused("sweep", "interleave", "-o", out + "2", "--gpus", "128")


def test_a_search_refuses_a_batch_that_does_not_grow_to_whole_sequences() -> None:
    words = ("search", NAME, "--scale-batch", "--set", "batch.global=8", "--gpus")
    errors = refused(*words, "100")
    assert "--scale-batch --gpus 100: E886 a global batch of 8 on 64 GPUs" in errors
    assert "a multiple of 8" in errors
