"""The README's commands with a wheel in an empty environment, outside the clone; run by CI."""

import os
import pathlib
import shlex
import subprocess
import sys
from collections import Counter

import pytest

from docs.update.documents import blocks, documents
from tests.docs.test_docs import newcomer
from tests.helpers.command_line import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.ci]
MAX_PACKAGES, MAX_MB = 20, 250
DOES_NOT_FIT = 3  # the tutorial shows it
LONG = ("reproduce all", "reproduce appendix-c")  # of the same code as the others
__all__ = ["newcomer"]


def run(*words: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run a program that finds no module of the clone, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, encoding="utf-8")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the folder of programs of an environment with the wheel and its dependencies only."""
    folder = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("simtrain-*.whl")
    run(sys.executable, "-m", "venv", folder / "venv")
    found = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    pip = found / "pip"
    installed = run(pip, "install", "-q", "-c", ROOT / "constraints.txt", wheel)
    assert installed.returncode == 0, installed.stderr
    return found


def test_the_core_has_few_dependencies(programs: pathlib.Path) -> None:
    packages = run(programs / "pip", "list", "--format", "freeze").stdout.splitlines()
    sizes = [path.stat().st_size for path in programs.parent.rglob("*") if path.is_file()]
    assert len(packages) <= MAX_PACKAGES
    assert sum(sizes) <= MAX_MB * 1e6


def test_commands_work_or_say_what_to_install(
    programs: pathlib.Path, newcomer: pathlib.Path
) -> None:
    lacking, runs = set(), Counter[str]()
    # Commands of the page need the scenario that only torch can record.
    left_out = "docs/how_to/record_a_program.md"
    pages = [page for page in documents() if page != left_out]
    found = (line for page in pages for block in blocks(page) for line in block.text.splitlines())
    for command in dict.fromkeys(line for line in found if line.startswith("simtrain ")):
        if any(word in command for word in (*LONG, "$", "validate my_")):
            continue
        name, *words = shlex.split(command)
        runs[words[0]] += 1
        if runs[words[0]] > 2:  # tests/docs/test_docs.py runs all of them in the clone
            continue
        done = run(programs / name, *words)
        if "E701" in done.stderr:
            assert done.returncode == 2 and "pip install 'simtrain[" in done.stderr
            lacking.add(words[0])
        else:
            assert done.returncode in (0, DOES_NOT_FIT), f"{command}\n{done.stderr}"
    extras = "run sweep reproduce validate cost calibrate"
    assert lacking and lacking <= set(extras.split())
