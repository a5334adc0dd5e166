"""Commands that take a scenario also take what can be imported, and say what is left to choose."""

import json
import shlex
from pathlib import Path

import pytest

from simtrain.commands.group import MISSED
from tests.helpers.command_line import call, refused

ARGUMENTS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 "
    "--max-position-embeddings 1024 --tensor-model-parallel-size 2 --micro-batch-size 1 "
    "--global-batch-size 12 --bf16 --deterministic-mode --some-new-flag"
)
SCRIPT = f"#!/bin/bash\n#SBATCH -p gpu-h100\n{{}} pretrain_gpt.py {ARGUMENTS}\n"
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
}
JOB = '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ndata_parallel_shard_degree = 8\n'
COMMANDS = (
    "run FILE",
    "run FILE --show memory",
    "compare FILE --change recompute=full",
    "run FILE --show schedule",
    "cost FILE --tokens 1B",
    "export FILE",
    "run FILE --show settings",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a source of each kind."""
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(SCRIPT.format("torchrun --nproc-per-node 8"), "utf-8")
    Path("open.sh").write_text(SCRIPT.format("python"), "utf-8")
    Path("config.json").write_text(json.dumps(CONFIG), "utf-8")
    Path("job.toml").write_text(JOB, "utf-8")
    Path("ds.json").write_text('{"train_micro_batch_size_per_gpu": 1}', "utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reads_a_script(command: str) -> None:
    outcome = call(*shlex.split(command.replace("FILE", "train.sh")))
    assert outcome.exit_code == 0, outcome.stderr
    line = "Imported train.sh: 11 settings; not modelled: --some-new-flag, --deterministic-mode. "
    assert line + "simtrain import train.sh says where each value comes from." in (outcome.stderr)


@pytest.mark.parametrize("file", ["job.toml", "ds.json --set parallelism.data=2"])
def test_other_sources_are_read_too(file: str) -> None:
    assert (
        "Imported "
        in call("run", "--show", "memory", "--set", "cluster=h100_sxm", *shlex.split(file)).stderr
    )


def last_line(*arguments: str) -> list[str]:
    """Return the words of the command in the last line of an error."""
    line = refused(*arguments).splitlines()[-1]
    assert line.startswith("  fix: simtrain "), line
    return shlex.split(line.removeprefix("  fix: simtrain "))


@pytest.mark.ci
@pytest.mark.parametrize(
    "command",
    [
        "run open.sh",
        "run open.sh --show memory --set recompute=full",
        "run config.json --show memory --set model.num_layers=1",
        "search config.json --gpus 4 --set model.seq_length=2048",
        "run ds.json --set model.seq_length=1024",
    ],
)
def test_what_remains_to_be_chosen_is_a_command_that_works(command: str) -> None:
    words = last_line(*shlex.split(command))
    outcome = call(*words)
    assert outcome.exit_code in (0, MISSED), (words, outcome.stderr)
    assert "Imported" in outcome.stderr
