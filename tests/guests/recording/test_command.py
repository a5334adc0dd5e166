"""`simtrain import --record`: files, errors that name the program's line, and the page about it."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from docs.update.documents import blocks, write_files
from simtrain.base.input_file import FileVersion
from simtrain.guests.recording.command import _parse_arguments
from simtrain.guests.recording.program import read_program
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.work import FusedAttention, Gemm
from tests.helpers.command_line import ROOT, call, refused
from tests.helpers.recorded_programs import works

pytestmark = pytest.mark.slow
PAGE = "docs/how_to/record_a_program.md"
PROGRAMS = str(ROOT / "tests" / "helpers" / "torch_programs.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_program_becomes_a_scenario_and_its_recording(folder: Path) -> None:
    words = "--gpus", "8", "--arg", "layers=4", "--arg", "compiles=True", "-o", "my.yaml"
    outcome = call("import", "--record", f"{PROGRAMS}:sharded", *words)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.startswith("my.yaml runs my.program.json.gz: ")
    scenario = load_scenario("my.yaml")
    assert (scenario.num_gpus, scenario.cluster) == (8, "h100_sxm")
    assert scenario.software.stack == "torchtitan_compiled"
    program = read_program(FileVersion.of("my.program.json.gz"))
    assert program.command.endswith(" ".join(words))
    assert max(run.count for run in program.forward) == 2  # the first and the last layer differ
    assert "E113" in refused("import", "--record", f"{PROGRAMS}:sharded", *words)
    assert call("run", "my.yaml").exit_code == 0


PROBLEMS = {
    "reads_value": ("E943", ".item() needs a value", "if total.item() > 0"),
    "calls_cuda": ("E944", "calls CUDA", "torch.cuda.get_rng_state()"),
    "ends_itself": ("E946", "ends the program (exit code 3)", "sys.exit(3)"),
    "lacks_package": ("E945", "a_package_that_does_not_exist", "import a_package"),
    "raises_error": ("E942", "raises KeyError", 'raise KeyError("no such key")'),
    "returns_model": ("E949", "the function returns a Linear", ""),
    "crashes": ("E948", "ended with signal", ""),
    "leaves_at_once": ("E948", "ended with exit code 3", ""),
    "never_ends": ("E947", "is not recorded after", ""),
    "no_such_function": ("E949", "it has no function no_such_function", ""),
}


@pytest.mark.ci
@pytest.mark.parametrize("function", PROBLEMS)
def test_errors_name_the_line_of_the_program(
    function: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, message, line = PROBLEMS[function]
    seconds = ("--seconds", "20") if function == "never_ends" else ()
    error = refused("import", "--record", f"{PROGRAMS}:{function}", *seconds)
    assert f"{code} {message}" in error or (code in error and message in error)
    assert line in error
    if line:
        assert f"{PROGRAMS}:" in error
    assert "triton" not in capfd.readouterr().err
    assert not [*folder.iterdir()], "nothing is recorded by halves"
    capfd.readouterr()


LITERALS = {"False": False, "true": True, "None": None, "1e-3": 1e-3, "[1, 2]": [1, 2], "a": "a"}
LITERALS |= {text: text for text in ("{1}", "b'x'", "[" * 10**4)}


@pytest.mark.parametrize(("text", "value"), LITERALS.items())
def test_arguments_are_literals_of_python_or_json(text: str, value: Any) -> None:
    assert _parse_arguments([f"x={text}"], "--arg") == {"x": value}


@pytest.mark.ci
@pytest.mark.parametrize("function", ["leaves_a_thread", "leaves_a_handler"])
def test_a_program_ends_when_its_step_is_recorded(function: str, folder: Path) -> None:
    words = "import", "--record", f"{PROGRAMS}:{function}", "--seconds", "60", "-o", "x.yaml"
    assert call(*words).exit_code == 0


def runs(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ends(process: int) -> bool:
    """Whether a process that was killed is gone within seconds."""
    end_s = time.monotonic() + 10
    while runs(process) and time.monotonic() < end_s:
        time.sleep(0.05)
    return not runs(process)


@pytest.mark.ci
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the states of processes")
def test_no_process_of_the_program_is_left(folder: Path) -> None:
    """One ignores SIGTERM; another one returns from the function, as the program itself does."""
    words = "--arg", f"marker={folder / 'number'}", "-o", "x.yaml"
    outcome = call("import", "--record", f"{PROGRAMS}:forks", *words)
    assert outcome.exit_code == 0, outcome.stderr
    assert ends(int((folder / "number").read_text()))
    assert call("run", "x.yaml").exit_code == 0


@pytest.mark.ci
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the states of processes")
def test_ctrl_c_leaves_no_process_and_no_file(folder: Path) -> None:
    command = [sys.executable, "-m", "simtrain", "import", "--record", f"{PROGRAMS}:waits"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*command, "--arg", f"marker={folder / 'number'}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while not (folder / "number").is_file():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert ends(int((folder / "number").read_text()))
    assert [each.name for each in folder.iterdir()] == ["number"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["train.py"], "E950"),
        (["train.py:1x"], "E950"),
        (["missing.py:main"], "E101"),
        (["missing.py:main", "--arg", "32"], "E951"),
        (["missing.py:main", "--gpus", "0"], "E904"),
    ],
)
def test_command_lines_are_checked_before_anything_runs(
    words: list[str], code: str, folder: Path
) -> None:
    assert code in refused("import", "--record", *words)


FRAMEWORKS = {"accelerate": "", "lightning": "", "torchtitan": "triton", "transformers": ""}
"""Frameworks that the page shows, and what else they need. They are installed only where they are
tried.
"""
SCRIPTS = {"accelerate": "with_accelerate", "lightning": "with_fabric"}


def commands_of_page() -> list[str]:
    lines = [line for block in blocks(PAGE) for line in block.text.splitlines()]
    return [line for line in lines if line.startswith("simtrain ")]


@pytest.mark.ci
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_work_as_written(framework: str, folder: Path) -> None:
    """Every rank has an eighth of the parameters in fp32 or, of Fabric's example, in bf16."""
    for package in filter(None, (framework, FRAMEWORKS[framework])):
        pytest.importorskip(package, exc_type=ImportError)
    write_files(folder)
    script = SCRIPTS.get(framework, f"with_{framework}")
    (command,) = (each for each in commands_of_page() if f"{script}.py" in each)
    words = shlex.split(command.partition(" -o")[0])[1:]
    outcome = call(*words, "-o", "framework.yaml")
    assert outcome.exit_code == 0, outcome.stderr
    program = read_program(FileVersion.of("framework.program.json.gz"))
    width = 2 if framework == "lightning" else 4
    share = width * program.num_parameters / 8
    assert program.states.parameters_bytes == pytest.approx(share, rel=1e-3)
    assert program.states.optimizer_bytes == pytest.approx(2 * share, rel=1e-3)
    assert program.groups == [[*range(8)]]


@pytest.mark.ci
def test_torchtitan_runs_the_products_that_its_importer_expects(folder: Path) -> None:
    for package in ("torchtitan", "triton"):
        pytest.importorskip(package, exc_type=ImportError)
    write_files(folder)
    for command in commands_of_page():
        if "torchtitan" in command:
            assert call(*shlex.split(command)[1:]).exit_code == 0
    recorded, imported = (
        works(simulate(load_scenario(name)), Gemm, FusedAttention)
        for name in ("recorded.yaml", "imported.yaml")
    )
    assert recorded == imported


@pytest.mark.ci
def test_the_page_works_as_written(folder: Path) -> None:
    write_files(folder)
    commands = [each for each in commands_of_page() if "with_" not in each]
    assert len(commands) > 5
    for command in commands:
        outcome = call(*shlex.split(command)[1:])
        assert outcome.exit_code == 0, (command, outcome.stderr)
