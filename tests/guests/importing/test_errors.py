"""Errors of `simtrain import`: place, code and remedy."""

from pathlib import Path

import yaml

from tests.helpers.command_line import MACHINE, call, refused
from tests.helpers.imported import BASE, GPT, written

WRONG = {
    "an unknown argument": GPT.replace("--hidden-size", "--hidden-sise"),
    "not a number": GPT.replace("6144", "6k"),
    "a missing argument": GPT.replace("--num-layers 48", ""),
    "an unknown value": GPT.replace("--hidden-size 6144", "--hidden-size $2"),
    "a missing script": GPT.replace("pretrain_gpt.py", ""),
    "no command": "#!/bin/sh\necho -l 2\n",
    "two commands": GPT + GPT,
    "an open quote": 'A="b\n',
    "too few GPUs": GPT.replace("NNODES:-2", "NNODES:-1").replace("-size 4 ", "-size 16 "),
    "chunks of unequal size": GPT.replace(
        "--sequence-parallel", "--num-layers-per-virtual-pipeline-stage 5"
    ),
}


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
