"""`simtrain import` ends in a command that works, and shares its options with all commands."""

import json
import shlex
from pathlib import Path

import pytest

from tests.commands.test_loading import CONFIG, JOB, SCRIPT
from tests.guests.importing.test_bridge import EVEN
from tests.helpers.command_line import MACHINE, call, commands, option_names, parsed, refused
from tests.helpers.imported import GPT

LARGE = CONFIG | {"num_hidden_layers": 48, "hidden_size": 4096, "num_attention_heads": 32}
FILES = {
    "train.sh": SCRIPT.format("torchrun --nproc-per-node 8"),
    "gpt.sh": GPT.replace('"\n\npython', '"\npython'),
    "large.sh": GPT.replace("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 1"),
    "config.json": json.dumps(CONFIG),
    "large.json": json.dumps(LARGE),
    "job.toml": JOB,
    "ds.json": '{"train_micro_batch_size_per_gpu": 1}',
    "bridge.yaml": EVEN,
}
IMPORTS = (
    "train.sh --ignore-unknown",
    "config.json",
    "config.json --gpus 64",
    "config.json --gpus 8 --set model.seq_length=512",
    ". --gpus 2 --set batch.global=64",
    "ds.json --model config.json --gpus 8",
)
LONG_IMPORTS = ("large.json --gpus 64", "gpt.sh", "large.sh", "job.toml", "bridge.yaml --gpus 64")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a source of each kind."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")


@pytest.mark.ci
@pytest.mark.parametrize(
    "words", [*IMPORTS, *(pytest.param(words, marks=pytest.mark.ci) for words in LONG_IMPORTS)]
)
def test_an_import_ends_in_a_command_that_works(words: str) -> None:
    machine = () if words.startswith("train") else MACHINE
    outcome = call("import", *shlex.split(words), *machine, "-o", "scenario.yaml")
    assert outcome.exit_code == 0, outcome.stderr
    _, _, command = outcome.stdout.strip().partition("Run it with: simtrain ")
    outcome = call(*shlex.split(command))
    assert outcome.exit_code == 0, (command, outcome.stderr)


def test_a_model_that_does_not_fit_is_searched_at_a_usual_length() -> None:
    options = "--gpus", "64", "--set", "cluster=h200_sxm", "-o", "s.yaml"
    words = call("import", "large.json", *options).stdout
    assert "simtrain search s.yaml --gpus 64 --set model.seq_length=8192 " in words
    assert "cluster" not in words


def test_an_import_replaces_a_file_only_by_force() -> None:
    Path("o.yaml").write_text("mine\n", "utf-8")
    errors = refused("import", "config.json", "-o", "o.yaml")
    assert errors.startswith("o.yaml: E113 the file exists") and "--force" in errors
    assert Path("o.yaml").read_text("utf-8") == "mine\n"
    assert call("import", "config.json", *MACHINE, "-o", "o.yaml", "--force").exit_code == 0
    assert "num_layers: 4" in Path("o.yaml").read_text("utf-8")
    assert "add -o FILE" in refused("import", "config.json", "--force")


@pytest.mark.parametrize("command", ["run", "import"])
def test_a_folder_with_a_config_is_the_config(command: str) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(CONFIG), "utf-8")
    sizes = "--set", "model.seq_length=512", "--set", "batch.global=8"
    words = "model", "--gpus", "8", *sizes, *MACHINE
    outcome = call(*command.split(), *words)
    assert outcome.exit_code == 0, outcome.stderr
    Path("empty").mkdir()
    assert "E102" in refused(*command.split(), "empty")


@pytest.mark.parametrize("option", ["--gpus", "--env", "--ignore-unknown", "--model"])
def test_every_command_that_reads_a_scenario_has_the_options_of_imports(option: str) -> None:
    lacking = []
    for name in commands():
        reads = {each.key for each in parsed(name).options} & {"scenario", "scenarios"}
        if reads and not name.startswith("calibrate"):
            lacking += [name] * (option not in option_names(name))
    assert lacking == []


def test_options_say_the_same_to_run_and_to_import() -> None:
    options = "--gpus", "64", *MACHINE
    call("import", "job.toml", *options, "-o", "job.yaml")
    imported = call("run", "--show", "memory", "job.yaml")
    # Its batch is one per replica, which `import` multiplies and `run` keeps unless it is told.
    direct = call("run", "--show", "memory", "job.toml", *options, "--scale-batch")
    assert direct.exit_code == imported.exit_code
    without_name = [
        [line.replace("job.yaml", "").replace("job.toml", "") for line in text.splitlines()[1:]]
        for text in (imported.stdout, direct.stdout)
    ]
    assert without_name[0] == without_name[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run llama3_8b --env A=3", "is only for files of other tools"),
        ("run config.json --env A=3", "has no effect on a config of a model on Hugging Face"),
        ("run train.sh --model config.json", "has no effect on a shell script"),
    ],
)
def test_an_option_that_a_source_does_not_read_is_refused(words: str, message: str) -> None:
    assert f"E908 {message}" in refused(*words.split())
