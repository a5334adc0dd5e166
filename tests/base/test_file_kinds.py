"""Files of another kind than a command reads: the error names the kind and the right command."""

import pathlib
import shlex
import struct

import pytest

from simtrain.base.resources import find_profile, find_scenario, find_sweep
from tests.helpers.command_line import refused

TEXTS = {
    "train.sh": "#!/usr/bin/env bash\nif [ $A ]; then\n  torchrun pretrain_gpt.py\nfi\n",
    "job.sbatch": "#SBATCH --nodes=2\nsrun python pretrain_gpt.py --num-layers 2\n",
    "train.log": "0: ----------- arguments -----------\n0:  bf16 ... True\n",
    "config.json": '{"hidden_size": 8, "model_type": "llama"}\n',
    "ds.json": '{"train_batch_size": 8, "zero_optimization": {"stage": 1}}\n',
    "job.toml": '[model]\nname = "llama3"\n',
    "trace.json": '{"schemaVersion": 1, "traceEvents": [{"ph": "X"}]}',
    "bandwidth.txt": "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor)\n",
    "profile.yaml": find_profile("h100_sxm").read_text("utf-8"),
    "sweep.yaml": find_sweep("interleave").read_text("utf-8"),
    "scenario.yaml": find_scenario("gpt2_1_5b").read_text("utf-8"),
}
BYTES = {
    "model.safetensors": struct.pack("<Q", 19) + b'{"w":{"shape":[1]}}' + bytes(4),
    "model.pt": b"PK\x03\x04" + bytes(40),
    "data.bin": bytes(range(256)) * 9,
}
ADVICE = {
    "ds.json": "a config of DeepSpeed, not {}|simtrain import ds.json",
    "trace.json": "a trace of PyTorch's profiler or of another tool, not {}|-o trace.json",
    "bandwidth.txt": "a log of nccl-tests, not {}|calibrate fit bandwidth.txt",
    "model.safetensors": "a binary file, not {}|write the path of a text file",
    "model.pt": "a binary file, not {}|write the path of a text file",
    "data.bin": "a binary file, not {}|write the path of a text file",
    "train.sh": "a shell script, not {}|simtrain import train.sh",
    "job.sbatch": "a shell script, not {}|simtrain import job.sbatch",
    "train.log": "a log of Megatron-LM, not {}|simtrain import train.log",
    "config.json": "a config of a model on Hugging Face, not {}|simtrain import config.json",
    "job.toml": "a job of torchtitan, not {}|simtrain import job.toml",
    "profile.yaml": "a hardware profile, not {}|--set cluster=profile.yaml",
    "sweep.yaml": "a sweep, not {}|simtrain sweep sweep.yaml -o results",
    "scenario.yaml": "a scenario, not {}|simtrain run scenario.yaml",
}
LINES = {"profile.yaml": "16:1", "sweep.yaml": "3:1", "scenario.yaml": "5:1"}
LINES |= dict.fromkeys(BYTES, "")
"""Where the sign of a file's kind is; binary files have no lines."""
IMPORTED = {"train.sh", "job.sbatch", "train.log", "config.json", "ds.json", "job.toml"}
"""Files that every command which reads a scenario imports."""
# Commands, the kind of file that each reads, and files of this kind.
COMMANDS = {
    "run FILE": ("a scenario", {"scenario.yaml", *IMPORTED}),
    "run FILE --show memory": ("a scenario", {"scenario.yaml", *IMPORTED}),
    "search FILE --gpus 8": ("a scenario", {"scenario.yaml", *IMPORTED}),
    "sweep FILE -o out": ("a sweep", {"sweep.yaml"}),
    "run gpt2_1_5b --set cluster=./FILE": ("a hardware profile", {"profile.yaml"}),
    "import FILE": ("a file of another tool", IMPORTED),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a file of each kind."""
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        pathlib.Path(name).write_text(text, "utf-8")
    for name, content in BYTES.items():
        pathlib.Path(name).write_bytes(content)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_recognises_files_of_other_kinds(command: str) -> None:
    expected, files = COMMANDS[command]
    for name in ADVICE.keys() - files:
        errors = refused(*shlex.split(command.replace("FILE", name)))
        message, fix = ADVICE[name].format(expected).split("|")
        place, _, rest = errors.partition(": E116 ")
        assert rest.startswith(f"this is {message}")
        assert place.removeprefix("./").partition(":")[::2] == (name, LINES.get(name, "1:1"))
        assert fix in errors.replace("./", "").splitlines()[-1]


@pytest.mark.parametrize("name", ["list_scenarios", "list_sweeps", "list_profiles"])
def test_every_shipped_file_is_of_its_kind(name: str) -> None:
    from simtrain.base import importer, resources

    noun = name.removeprefix("list_").removesuffix("s")
    kind = {"scenario": importer.SCENARIO, "sweep": importer.SWEEP, "profile": importer.PROFILE}[
        noun
    ]
    for shipped in getattr(resources, name)():
        importer.load_kind(getattr(resources, f"find_{noun}")(shipped), kind)


def test_a_folder_names_the_config_in_it() -> None:
    pathlib.Path("model").mkdir()
    assert "model: E102 is a folder, not a file" in refused("run", "model")
    pathlib.Path("model/config.json").write_text("{}", "utf-8")
    assert "fix: write model/config.json" in refused("run", "model").replace("\\", "/")
