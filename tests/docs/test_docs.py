"""What README.md and docs/ tell a newcomer to type works as written."""

import functools
import os
import pathlib
import re
import shlex
import subprocess
import tomllib
from dataclasses import dataclass

import pytest
import typer
from pytest import CaptureFixture, MonkeyPatch

from calibrate.__main__ import app as calibrate_app
from calibrate.records.file import RecordFile
from simtrain import paper
from simtrain.commands.reproduce import Target
from simtrain.hardware.load import load_profile
from simtrain.paper.entries import Comparison, Entry
from simtrain.resources import list_profiles, list_scenarios, list_stacks, list_sweeps
from simtrain.scenario import load_scenario
from simtrain.simulation import simulate
from tests.helpers.command_line import ROOT, call, spawn
from tests.helpers.measured_records import alone, header

DOCUMENTS = (
    *("README.md", "docs/design.md", "docs/validation.md", "docs/what_ifs.md", "docs/scale.md"),
    "docs/data_parallelism.md",
    "benchmarks/README.md",
    "docs/experts.md",
)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a document."""

    language: str
    text: str


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str) -> list[Block]:
    return [Block(*found.groups()) for found in _FENCED.finditer(text_of(document))]


def commands(start: str) -> list[str]:
    """The lines of all documents' blocks that start so."""
    lines = [
        line for name in DOCUMENTS for block in blocks(name) for line in block.text.split("\n")
    ]
    found = sorted({line for line in lines if line.startswith(start)})
    assert found, f'no document shows how to use "{start}"'
    return found


def marked(name: str) -> str:
    """The command in the README's block after `<!-- NAME -->`."""
    found = re.search(rf"<!-- {name} -->\n```\n(.*)\n```\n", text_of("README.md"))
    assert found, f"README.md has no {name}"
    return found[1]


@pytest.fixture
def newcomer(tmp_path: pathlib.Path, monkeypatch: MonkeyPatch) -> pathlib.Path:
    """A folder with the files that the README tells to write, as the working directory."""
    for block in blocks("README.md"):
        if block.language in ("yaml", "bash", "json", "toml"):
            first = block.text.split("\n")[0]
            name = "config.json" if block.language == "json" else first.removeprefix("# ")
            (tmp_path / name).write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/errors.md", "CHANGELOG.md"])
def test_documents_are_there_and_their_links_lead_somewhere(document: str) -> None:
    text = text_of(document)
    assert text.startswith("# ") and text.count("```") % 2 == 0
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or ((ROOT / document).parent / link).exists()


def test_every_command_is_shown() -> None:
    shown = {command.split()[1] for command in commands("simtrain ")}
    assert shown == {
        *("run", "memory", "reproduce", "schedule", "scenarios", "profile", "cost", "search"),
        *("sweep", "sweeps", "query", "plot", "import", "init", "schema"),
        "explain",
    }
    targets = {command.split()[2] for command in commands("simtrain reproduce")}
    assert targets == {target.value for target in Target}


SHORT = ("table2", "table4", "fig1", "fig7", "fig8", "fig9", "zero")
_ONCE = {target: functools.cache(getattr(paper, target)) for target in SHORT}


def blocks_of_sweeps(*documents: str) -> list[list[str]]:
    """The lines of the blocks that run a sweep; what asks for its results stands below it."""
    lines = [block.text.splitlines() for name in documents for block in blocks(name)]
    return [block for block in lines if any(line.startswith("simtrain sweep ") for line in block)]


ALONE = [
    command
    for command in commands("simtrain ")
    if not any(command in block for block in blocks_of_sweeps(*DOCUMENTS))
]


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks_of_sweeps("README.md"), ids="; ".join)
@pytest.mark.usefixtures("newcomer")
def test_sweeps_run_as_written(block: list[str]) -> None:
    """Those of the README; tests/docs/test_what_ifs.py has the larger ones of docs/what_ifs.md."""
    for command in block:
        outcome = call(*shlex.split(command)[1:])
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert outcome.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ALONE)
@pytest.mark.usefixtures("newcomer")
def test_commands_run_as_written(command: str, monkeypatch: MonkeyPatch) -> None:
    """But for the long simulations, which tests/paper runs; the short ones run once."""
    for target, once in _ONCE.items():
        monkeypatch.setattr(paper, target, lambda progress, once=once: once())
    quick = Comparison("stands for a long one", [Entry(("22B", "full"), 1.42, 1.42)], 0.01, 0.01)
    for target in ("table5", "dp530b", "appendix_c"):
        monkeypatch.setattr(paper, target, lambda progress: quick)
    outcome = call(*shlex.split(command)[1:])
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout


@pytest.mark.parametrize("command", commands("python -m calibrate") + commands("torchrun "))
def test_calibrate_understands_its_commands(command: str) -> None:
    """The tests of tests/calibrate run what they do."""
    words = shlex.split(command)
    name, *options = words[words.index("calibrate") + 1 :]
    assert typer.main.get_command(calibrate_app).commands[name].make_context(name, options)


@pytest.mark.slow
@pytest.mark.parametrize("command", commands("python -m calibrate fit calibrate/"))
def test_the_fit_runs_as_written(command: str, newcomer: pathlib.Path) -> None:
    """It reads the figures of the clone and writes where it is told to."""
    (newcomer / "calibrate").symlink_to(ROOT / "calibrate")
    outcome = spawn(*shlex.split(command)[1:], folder=newcomer, PYTHONHASHSEED="7")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    written = (newcomer / "my_a100.yaml").read_text(encoding="utf-8")
    assert written == text_of("hw_profiles/a100_sxm4_80gb.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("command", commands("python -m calibrate fit my_node"))
def test_measurements_are_fitted_as_written(command: str, newcomer: pathlib.Path) -> None:
    file = RecordFile(newcomer / "my_node", header())
    for record in alone():
        file.append(record)
    outcome = spawn(*shlex.split(command)[1:], folder=newcomer)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert load_profile(newcomer / shlex.split(command)[-1]).gemm.mainloop_flops.fitted_on


@pytest.mark.parametrize("command", commands("python -m benchmarks"))
def test_benchmarks_can_be_imported(command: str) -> None:
    _, _, module, *_ = command.split()
    assert callable(__import__(module, fromlist=["main"]).main)


def test_python_blocks_run(capsys: CaptureFixture[str]) -> None:
    (block,) = (block for block in blocks("README.md") if block.language == "python")
    exec(compile(block.text, "README.md", "exec"), {})
    first, *spans, changed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"1\.\d{3} s, MFU 4\d\.\d%", first)
    assert len(spans) == 3 and all(span.startswith("stage 0 ") for span in spans)
    full_s = simulate(load_scenario("table5_22b_full")).iteration_time_s
    assert changed == f"{full_s:.3f} s"


@pytest.mark.usefixtures("newcomer")
def test_the_import_notes_what_the_readme_says() -> None:
    section = text_of("README.md").partition("## From a training script")[2]
    (said,) = re.findall(r"would change, here\n`(.*)`", section)
    outcome = call("import", "megatron", "train.sh")
    assert f"\n# - {said}\n" in outcome.stdout


# ------------------------------------------------------------------------- the project around it


def test_ci_runs_the_test_command_of_the_readme(tmp_path: pathlib.Path) -> None:
    """With a python3 that only fails: CI shows the command, tries it, and fails with it."""
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci" / "run"
    script.write_text(text_of(".ci/run"), encoding="utf-8")
    (tmp_path / "README.md").write_text(text_of("README.md"), encoding="utf-8")
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 7\n")
    python.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, f"+ {marked('test command')}\n")


def test_the_marked_commands_install_with_the_constraints() -> None:
    for name, last in (
        ("main command", ".venv/bin/simtrain reproduce table5"),
        ("test command", ".venv/bin/python -m pytest"),
    ):
        create, install, work = marked(name).split(" && ")
        assert create == "python3 -m venv .venv"
        assert install.startswith(".venv/bin/pip install --quiet -c constraints.txt ")
        assert work == last


def test_the_wheel_carries_scenarios_and_profiles() -> None:
    build = tomllib.loads(text_of("pyproject.toml"))["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["force-include"] == {
        "scenarios": "simtrain/_data/scenarios",
        "hw_profiles": "simtrain/_data/hw_profiles",
        "software_stacks": "simtrain/_data/software_stacks",
        "sweeps": "simtrain/_data/sweeps",
    }
    for folder, names in (
        ("scenarios", list_scenarios()),
        ("hw_profiles", list_profiles()),
        ("software_stacks", list_stacks()),
        ("sweeps", list_sweeps()),
    ):
        assert names == sorted(path.stem for path in (ROOT / folder).iterdir())


def test_the_license_and_the_marks_of_typed_packages_are_there() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert "Apache License\n                           Version 2.0" in text_of("LICENSE")
    for package in ("simtrain", "calibrate"):
        assert (ROOT / package / "py.typed").read_bytes() == b""


def test_the_changelog_knows_the_version() -> None:
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    assert f"\n## {version}\n" in text_of("CHANGELOG.md")
    assert __import__("simtrain").__version__ == version
