"""Errors of `simtrain import`: place, code and remedy."""

from pathlib import Path

import pytest
import yaml

from tests.helpers.command_line import MACHINE, call, refused
from tests.helpers.imported import BASE, GPT, written

WRONG = {
    "an unknown argument": (
        GPT.replace("--hidden-size", "--hidden-sise"),
        "run.sh:13:5: E871 --hidden-sise is not a known argument of Megatron-LM",
        "did you mean --hidden-size?",
    ),
    "not a number": (GPT.replace("6144", "6k"), "run.sh:13:5: E872 --hidden-size 6k", "an integer"),
    "a missing argument": (
        GPT.replace("--num-layers 48", ""),
        "run.sh: E873 --num-layers is missing",
        "--set model.num_layers=...",
    ),
    "an unknown value": (
        GPT.replace("--hidden-size 6144", "--hidden-size $2"),
        "run.sh:13:5: E874 --hidden-size is $2, which the file does not define",
        "add --set model.hidden_size=...; or write its value",
    ),
    "a missing script": (
        GPT.replace("pretrain_gpt.py", ""),
        "run.sh:19:1: E875 python starts no training script",
        "import the script that starts torchrun",
    ),
    "no command": ("#!/bin/sh\necho -l 2\n", "run.sh: E875 no commands with arguments", "torchrun"),
    "two commands": (GPT + GPT, "run.sh: E875 2 commands with arguments", "--capture"),
    "an open quote": (
        'A="b\n',
        'run.sh:1:3: E876 the syntax is not read: reached EOF without closing quote `"`',
        "correct it",
    ),
    "too few GPUs": (
        GPT.replace("NNODES:-2", "NNODES:-1").replace("-size 4 ", "-size 16 "),
        "run.sh:9:19: E872 8 GPUs (--nproc_per_node x --nnodes) are not a multiple of",
        "add --gpus 32, or another multiple",
    ),
    "chunks of unequal size": (
        GPT.replace("--sequence-parallel", "--num-layers-per-virtual-pipeline-stage 5"),
        "run.sh:23:5: E872 --num-layers-per-virtual-pipeline-stage 5 does not divide 48 layers",
        "parallelism.interleave",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_have_their_place_and_a_fix(case: str) -> None:
    source, head, excerpt = WRONG[case]
    errors = refused("import", written("run.sh", source))
    assert errors.startswith(head)
    assert excerpt in errors and "fix:" in errors


def test_a_number_of_gpus_completes_a_script() -> None:
    split = written("args.txt", f"{BASE} --tensor-model-parallel-size 2")
    scenario = yaml.safe_load(call("import", split, "--gpus", "8", *MACHINE).stdout)
    assert (scenario["parallelism"]["data"], scenario["parallelism"]["tensor"]) == (4, 2)
    errors = refused("import", split, "--gpus", "7")
    assert errors.startswith("E880 --gpus is 7, not a multiple of") and "--gpus 8" in errors


def test_the_command_writes_a_file_or_prints_it() -> None:
    words = "import", written("args.txt", BASE), "--set", "batch.micro=2", *MACHINE
    printed = call(*words)
    assert (printed.exit_code, printed.stderr) == (0, "")
    outcome = call(*words, "-o", "o.yaml")
    assert outcome.stdout == (
        "Wrote o.yaml; 0 settings not modelled. Run it with: simtrain run o.yaml\n"
    )
    assert Path("o.yaml").read_text(encoding="utf-8") == printed.stdout
    assert "no/o.yaml: E113 cannot write a file here" in refused(*words, "-o", "no/o.yaml")
    assert call("import", "missing.sh").stderr.startswith("missing.sh: E101")
