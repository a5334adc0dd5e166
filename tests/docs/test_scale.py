"""Shards over one folder, with the scripts of docs/how_to/run_a_sweep_on_a_cluster.md."""

import json
import os
import pathlib
import re
import shlex
import subprocess
from collections.abc import Callable

import pytest
from pytest import MonkeyPatch

from simtrain.base.strict_yaml import parse_document
from tests.helpers.command_line import ROOT, Outcome, call
from tests.helpers.sweep_files import NUM_PARTS, SMALL, files_of

PAGE = (ROOT / "docs/how_to/run_a_sweep_on_a_cluster.md").read_text(encoding="utf-8")


def block(heading: str) -> str:
    """Return the first fenced block below a heading."""
    return PAGE.partition(f"{heading}\n")[2].split("```")[1].partition("\n")[2]


SBATCH, MANIFEST = block("## Slurm"), block("## Kubernetes")
POD = parse_document(MANIFEST, "job.yaml").data["spec"]["template"]["spec"]["containers"][0]


def commands_of(script: str, folder: pathlib.Path, environment: dict[str, str]) -> list[list[str]]:
    """Run a script with bash, and return the arguments that it passes to simtrain."""
    (folder / "simtrain").write_text('#!/bin/bash\necho "${@@Q}"\n')
    (folder / "simtrain").chmod(0o755)
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=path | environment, capture_output=True, text=True, check=True
    )
    return [shlex.split(line) for line in done.stdout.splitlines()]


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: MonkeyPatch) -> pathlib.Path:
    """Use a folder with my_sweep.yaml as working directory, and with an unsharded
    run in `whole`.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_sweep.yaml").write_text(SMALL, encoding="utf-8")
    return tmp_path


def done(*words: str) -> Outcome:
    outcome = call(*words)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    return outcome


def on_slurm(number: int, here: pathlib.Path, monkeypatch: MonkeyPatch) -> list[str]:
    """Return the command of a task, which has Slurm's variables of the script's array."""
    first, last = re.findall(r"--array=(\d+)-(\d+)\n", SBATCH)[0]
    (words,) = commands_of(SBATCH, here, {"SLURM_ARRAY_TASK_ID": str(number)})
    assert words[words.index("--shard") + 1] == f"{number}/{int(last) - int(first) + 1}"
    return [*words, "--workers", "1"]


def on_kubernetes(number: int, here: pathlib.Path, monkeypatch: MonkeyPatch) -> list[str]:
    (words,) = commands_of(POD["args"][0], here, {"JOB_COMPLETION_INDEX": str(number)})
    assert words[words.index("--shard") + 1] == f"{number}/8"
    words[words.index("--workers") + 1] = "1"
    return words


@pytest.mark.slow
@pytest.mark.parametrize("words_of", [on_slurm, on_kubernetes])
def test_shards_of_a_script_are_the_parts_of_one_run(
    words_of: Callable[[int, pathlib.Path, MonkeyPatch], list[str]],
    here: pathlib.Path,
    monkeypatch: MonkeyPatch,
) -> None:
    """There are five parts and three more shards, which have nothing to do."""
    for number in range(8):
        done(*words_of(number, here, monkeypatch), "--part-size", "5")
        assert len(files_of(here / "results")) == min(number + 1, NUM_PARTS)
    done("sweep", "my_sweep.yaml", "--out", "whole", "--part-size", "5", "--workers", "1")
    assert files_of(here / "results") == files_of(here / "whole")
    assert (here / "results/sweep.json").read_bytes() == (here / "whole/sweep.json").read_bytes()


def test_scripts_request_one_task_per_shard() -> None:
    """Tasks count from 0, as shards do."""
    assert re.findall(r"--array=(\S+)\n", SBATCH) == ["0-7"] and "ID/8" in SBATCH
    spec = parse_document(MANIFEST, "job.yaml").data["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", 8)
    assert '_INDEX/8"' in POD["args"][0] and POD["command"] == ["bash", "-c"]


def test_the_command_without_shards_prints_the_whole_sweep(here: pathlib.Path) -> None:
    *shards, whole, query = block("summary of the whole sweep:\n").splitlines()
    for command in shards:
        assert "there already" not in done(*shlex.split(command)[1:]).stdout
    data = json.loads(done(*shlex.split(whole)[1:], "--json").stdout)
    assert data["num_parts"] == data["num_parts_found"] > 1
    assert str(data["num_rows"]) in done(*shlex.split(query)[1:]).stdout.split()


def test_folders_that_are_not_shared_can_be_put_together(here: pathlib.Path) -> None:
    for number in range(2):
        shard = ("--shard", f"{number}/2", "--part-size", "5", "--workers", "1")
        done("sweep", "my_sweep.yaml", "--out", f"out-{number}", *shard)
    for part in (here / "out-1/parts").iterdir():
        part.rename(here / "out-0/parts" / part.name)
    words = ("sweep", "my_sweep.yaml", "--out", "out-0", "--json")
    data = json.loads(done(*words).stdout)
    assert data["num_parts_found"] == NUM_PARTS


def test_shell_blocks_parse() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    shell = [text for language, text in blocks if language in ("", "bash")]
    assert len(shell) == len(blocks) - 1
    for text in (*shell, POD["args"][0]):
        subprocess.run(["bash", "-n", "-c", text], check=True)
