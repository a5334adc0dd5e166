"""The examples of `--help`, run in the order of the help by somebody in an empty folder."""

import json
import pathlib
import shlex
import shutil

import pytest

from simtrain.base.resources import find_profile
from simtrain.commands.help import texts_of
from tests.guests.importing.test_bridge import EVEN
from tests.guests.importing.test_torchtitan import JOB
from tests.helpers.command_line import call, commands, parsed
from tests.helpers.imported import GPT

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
RUNS = """\
layers,hidden,heads,seq,gpus,global_batch,iteration_s
24,1024,16,1024,8,32,0.1
"""
LONG = {"calibrate measure", "calibrate fit", "calibrate check"}
"""Commands that take more than three seconds; other tests run them."""
CI_ONLY = {"search"}
"""Commands whose example takes longest."""
MEASURED = {"import torch"}
"""Commands that run other programs; tests/guests/recording runs these commands."""


def examples() -> dict[str, list[list[str]]]:
    """Return the words of each command's examples."""
    return {
        name: [shlex.split(text[9:]) for text in texts_of(command) if text.startswith("Example: ")]
        for name, command in commands().items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the files that the examples call the user's own."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "train.sh").write_text(GPT, "utf-8")
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (folder / "ds_config.json").write_text('{"train_batch_size": 64}', "utf-8")
    (folder / "job.toml").write_text(JOB, "utf-8")
    (folder / "config.yaml").write_text(EVEN.replace("size: 128", "size: 1024"), "utf-8")
    (folder / "runs.csv").write_text(RUNS, "utf-8")
    shutil.copy(find_profile("h100_sxm"), folder / "my_cluster.yaml")
    return folder


@pytest.mark.ci
@pytest.mark.parametrize("name", examples())
def test_help_has_examples_of_its_command(name: str) -> None:
    outcome = call(*name.split(), "--help")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert f"Example: simtrain {name}" in outcome.stdout
    words = ["simtrain", *name.split()]
    for example in examples()[name]:
        assert example[: len(words)] == words
        assert parsed(name, *example[len(words) :]).values()


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.ci, pytest.mark.slow] if name in CI_ONLY else [])
        for name in examples()
        if name not in LONG | MEASURED
    ],
)
def test_examples_run(name: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query reads what the example of `sweep` wrote."""
    monkeypatch.chdir(folder)
    # Recording needs a program of the user; tests of recordings have some.
    for example in (each for each in examples()[name] if "--record" not in each):
        outcome = call(*example[1:])
        # An import says on which GPU it simulates what names none.
        said = ("Simulated on ",)
        notes = [line for line in outcome.stderr.splitlines() if not line.startswith(said)]
        assert (outcome.exit_code, notes) == (0, [])
