"""What each source becomes: the whole file with its comments, or all of the error.

`pytest tests/guests/importing/test_written_files.py --snapshot-update` writes it. A difference is a
field, a place or a text that moved: its commit says why.
"""

import json
import random
import re
import tomllib
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from simtrain.errors import InputError
from simtrain.guests.importing.hugging_face.keys import FAMILIES
from simtrain.guests.importing.shell.script_reader import read_script
from simtrain.guests.importing.shell.syntax import Lines
from tests.guests.importing import (
    test_bridge,
    test_deepspeed,
    test_errors,
    test_experts,
    test_gpus,
    test_hugging_face,
    test_launch,
    test_megatron,
    test_megatron_cases,
    test_own_scripts,
    test_shell,
    test_torchtitan,
)
from tests.helpers.command_line import MACHINE, call
from tests.helpers.imported import (
    BASE,
    GPT,
    LLAMA,
    bridge_draft,
    import_deepspeed,
    import_hugging_face,
    import_megatron,
    import_torchtitan,
    written,
)
from tests.helpers.shell_scripts import drawn_script, ordinary_script


def answer(read: Callable[..., Any], source: str, *overrides: str, **options: Any) -> str:
    """Return the file that a source becomes, or its error."""
    try:
        return str(read(source, overrides, **options)[1])
    except InputError as error:
        return str(error)


def import_bridge(source: str, overrides: Any) -> Any:
    return bridge_draft(source, overrides, gpus=64).finished()


def bash(lines: str) -> str:
    return f"#!/bin/bash\n{lines}\n"


SCRIPTS = {
    "gpt": GPT,
    "llama": LLAMA,
    "own": test_own_scripts.OWN,
    "experts": test_experts.MIXTRAL,
    "an unknown program": bash(f"$X a.py {BASE}\n$X $Y\ntorchrun $Y\ntorchrun --x $Y --z"),
    "an unknown launch": bash("torchrun a.py --num-layers $N\n$X b.py --hidden-size 8"),
    **test_errors.WRONG,
    **{bash(each): bash(each) for each in (*test_launch.LAUNCHES, *test_launch.UNKNOWN)},
    **{each: bash(f"{each}\n{test_gpus.TRAIN}") for each in (*test_gpus.SAID, *test_gpus.ASSUMED)},
}
JOBS = {
    "plain": test_torchtitan.JOB,
    "float8": test_torchtitan.JOB + test_torchtitan.FLOAT8,
    "eager": test_torchtitan.JOB.replace("compile = true", ""),
    "compiled loss": test_torchtitan.JOB.replace(
        "compile = true", "[compile]\nenable = true\ncomponents = ['loss']"
    ),
    "experts": test_experts.JOB,
    **test_torchtitan.VARIANTS,
    **test_torchtitan.WRONG,
}
CONFIGS = {
    **{kind: test_hugging_face.of(kind) for kind in FAMILIES},
    **test_hugging_face.WRONG,
    **test_hugging_face.VARIANTS,
}
BRIDGES = {
    "even": test_bridge.EVEN,
    "layout": test_bridge.PRINTED,
    **{
        name: test_bridge.EVEN.replace(test_bridge.PRECISION, f"mixed_precision: {name}\n")
        for name in ("bf16_with_mxfp8_mixed", "nemotron_3_super_bf16_with_nvfp4_mixed", "fp9")
    },
    "experts": test_bridge.EVEN.replace("num_moe_experts: null", test_bridge.EXPERTS),
}
FILES = {
    "config.json": json.dumps(test_hugging_face.of("llama", max_position_embeddings=1 << 17)),
    "small.txt": BASE,
    "batch.txt": f"{BASE} --global-batch-size 64 --world-size 8 --tensor-model-parallel-size 2",
    "large.txt": f"{BASE} --world-size 2".replace("heads 16", "heads 128")
    .replace("size 1024", "size 16384")
    .replace("2048", "16384"),
    "five.txt": f"{BASE} --world-size 2 --a-1 1 --a-2 1 --a-3 1 --a-4 1 --a-5 1",
    "ds.json": '{"train_micro_batch_size_per_gpu": 3}',
    "job.toml": test_torchtitan.JOB,
    "unknown.txt": f"{BASE} --world-size 2 "
    + " ".join(f"--a-{letter} 1" for letter in "abcdefghi"),
}
COMMANDS = """\
import config.json -o o.yaml --force
import config.json -o o.yaml --force --gpus 4 --set batch.global=3
import small.txt -o o.yaml --force
import large.txt -o o.yaml --force
import job.toml -o o.yaml --force
import unknown.txt -o o.yaml --force --ignore-unknown
run config.json
run config.json --gpus 4
run config.json --set model.seq_length=512
run small.txt
run small.txt --gpus 8
run small.txt --gpus 8 --scale-batch
run batch.txt
run batch.txt --gpus 7
run batch.txt --gpus 16 --scale-batch
run unknown.txt --set batch.global=4
run five.txt --set batch.global=4
run unknown.txt --gpus 4 --scale-batch --set batch.global=4
import ds.json --model config.json -o o.yaml --force --gpus 8
import ds.json --model config.json
run ds.json
search ds.json --gpus 7
search config.json --gpus 4 --set model.seq_length=512
"""


LAYOUTS = (
    "--use-distributed-optimizer --overlap-grad-reduce --global-batch-size 64",
    "--pipeline-model-parallel-size 2 --world-size 8 --global-batch-size 64",
    "--fp8-format hybrid --fp8-param-gather",
)


@pytest.mark.parametrize("machine", [(), MACHINE])
def test_the_commands_say_what_was_read_and_how_to_go_on(
    machine: tuple[str, ...], snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simtrain.commands.printing._PLAIN_WIDTH", 80)
    for name, text in FILES.items():
        written(name, text)
    told = {}
    for command in COMMANDS.splitlines():
        outcome = call(*command.split(), *machine)
        told[command] = outcome.exit_code, outcome.stderr
        if command.startswith("import"):
            told[command] += (outcome.stdout,)
    assert told == snapshot


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_script_becomes_this_file(case: str, snapshot: SnapshotAssertion) -> None:
    assert answer(import_megatron, written("run.sh", SCRIPTS[case])) == snapshot


def test_a_log_becomes_this_file(snapshot: SnapshotAssertion) -> None:
    assert answer(import_megatron, written("log.txt", test_megatron.PRINTED)) == snapshot


def test_arguments_change_these_lines(snapshot: SnapshotAssertion) -> None:
    """Arguments of each case, each example, and drawn examples together."""
    data, plain = test_megatron_cases.DATA, answer(import_megatron, BASE).splitlines()
    changed, draw, examples = {}, random.Random(1), [*data["examples"].values()]
    drawn = [" ".join(draw.sample([*examples, *LAYOUTS * 9], 3)) for _ in range(80)]
    for words in [*(case["arguments"] for case in data["case"]), *examples, *drawn]:
        text = answer(import_megatron, f"{BASE} {test_megatron_cases.completed(words)}")
        lines = (" ".join(line.split()) for line in text.splitlines() if line not in plain)
        changed[words] = "; ".join(lines)
    assert changed == snapshot


PLAIN = {
    "torchtitan": tomllib.loads(test_torchtitan.JOB),
    "deepspeed": test_deepspeed.ZERO | test_deepspeed.zero(stage=3),
    "hugging_face": test_hugging_face.of("mistral"),
    "bridge": yaml.safe_load(test_bridge.EVEN),
}
READERS = {
    "hugging_face": (import_hugging_face, "config.json"),
    "bridge": (import_bridge, "config.yaml"),
}
DRAWN = tomllib.loads(Path(__file__).with_name("drawn_keys.toml").read_text("utf-8"))


def with_keys(kind: str, keys: dict[str, Any]) -> str:
    """Return what becomes of a plain source with these keys."""

    def inner(section: dict[str, Any], name: str) -> Any:
        section[name] = each if isinstance(each := section.get(name), dict) else {}
        return section[name]

    plain = json.loads(json.dumps(PLAIN[kind]))
    for *sections, last, value in ((*key.split("."), value) for key, value in keys.items()):
        reduce(inner, sections, plain)[last] = value
    if kind == "torchtitan":
        pairs = [(f"{name}.{key}", each) for name in plain for key, each in plain[name].items()]
        job = "\n".join(f"{name} = {json.dumps(value)}" for name, value in pairs)
        return answer(import_torchtitan, written("job.toml", job))
    if kind == "deepspeed":
        return answer(import_deepspeed, test_deepspeed.config(plain), gpus=16)
    read, file = READERS[kind]
    return answer(read, written(file, json.dumps(plain, indent=1)))


@pytest.mark.parametrize("kind", DRAWN)
def test_keys_change_these_lines(kind: str, snapshot: SnapshotAssertion) -> None:
    """Each value alone, and drawn values together; places move, and are left out."""
    draw, values = random.Random(3), DRAWN[kind].items()
    pairs = [(key, value) for key, each in values for value in each]
    places = re.compile(r",? lines? \d+(, \d+)*|\.(toml|json|yaml):\d+:\d+|of \w+\.json")
    plain = places.sub("", with_keys(kind, {})).splitlines()
    changed = {"": "; ".join(plain)}
    for keys in [*([pair] for pair in pairs), *(draw.sample(pairs, 5) for _ in range(99))]:
        lines = places.sub("", with_keys(kind, dict(keys))).splitlines()
        gone = [f"no {line}" for line in plain if line not in lines and lines[0] == plain[0]]
        new = [line for line in lines if line not in plain]
        changed[json.dumps(keys)] = "; ".join(" ".join(line.split()) for line in new + gone)
    assert changed == snapshot


@pytest.mark.parametrize("case", JOBS)
def test_a_job_becomes_this_file(case: str, snapshot: SnapshotAssertion) -> None:
    assert answer(import_torchtitan, written("job.toml", JOBS[case])) == snapshot


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_becomes_this_file(case: str, snapshot: SnapshotAssertion) -> None:
    file = written("config.json", json.dumps(CONFIGS[case], indent=1))
    assert answer(import_hugging_face, file) == snapshot


@pytest.mark.parametrize("case", BRIDGES)
def test_a_printed_config_becomes_this_file(case: str, snapshot: SnapshotAssertion) -> None:
    assert answer(import_bridge, written("config.yaml", BRIDGES[case])) == snapshot


def test_the_words_of_scripts_are_these(snapshot: SnapshotAssertion) -> None:
    """With their places, and what is not known of them and why."""
    lines = [*test_shell.KNOWN, *test_shell.UNKNOWN, *test_shell.REASONS]
    scripts = [*test_shell.WHOLE.values(), *(f"N=24\n{line}\ntorchrun $N" for line in lines)]
    scripts += [draw(seed) for draw in (drawn_script, ordinary_script) for seed in range(12)]
    words = {}
    for script in scripts:
        try:
            commands = read_script(script, Lines(script, "run.sh")).commands
            words[script] = [str(word) for command in commands for word in command]
        except InputError as error:
            words[script] = [str(error)]
    assert words == snapshot
