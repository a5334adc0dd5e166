"""What README and docs say is what the program does."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simtrain import cli, load_scenario, simulate

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ["README.md", "CHANGELOG.md", "docs/design.md", "docs/validation.md"]
# Simulated once, in test_paper.py and below; here it is enough that they are commands.
SLOW = {"simtrain reproduce table5 --json", "simtrain reproduce dp530b"}


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language; every other fence closes one."""
    parts = re.split(r"^```(.*)\n", README, flags=re.MULTILINE)
    openings, contents = parts[1::4], parts[2::4]
    return [text for name, text in zip(openings, contents, strict=True) if name == language]


def commands() -> list[str]:
    lines = [line for block in blocks("") for line in block.splitlines()]
    return [line for line in lines if re.match(r"simtrain |python -m ", line)]


@pytest.fixture
def my_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the README's own scenario, and the figures that it fits from."""
    (tmp_path / "my_model.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
    published = tmp_path / "calibrate" / "published"
    shutil.copytree(ROOT / "calibrate" / "published", published)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_exists(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("line", [c for c in commands() if c not in SLOW])
def test_command_runs_as_written(line: str, my_model: Path) -> None:
    program, *rest = shlex.split(line)
    arguments = rest if program == "python" else ["-m", "simtrain", *rest]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=my_model, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_slow_commands_are_in_the_readme() -> None:
    assert set(commands()) >= SLOW


def test_python_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    assert "MFU 42.1%" in capsys.readouterr().out


def test_what_if_quotes_what_the_program_says() -> None:
    for overrides, quoted in (
        ((), r"13.46 s with 5.5 % of it bubble"),
        (("parallelism.interleave=1", "schedule=1f1b"), r"14.21 s with 11.5 %"),
    ):
        result = simulate(load_scenario("table5_175b_present", overrides))
        share = result.breakdown.bubble_s / result.iteration_time_s
        said = f"{result.iteration_time_s:.2f} s with {100 * share:.1f} %"
        assert quoted.startswith(said)
        assert quoted in README.replace("\n", " ")


@pytest.mark.parametrize(
    ("row", "scenario", "paper_s"),
    [
        ("22B | full", "table5_22b_full", 1.42),
        ("22B | selective+sequence", "table5_22b_present", 1.10),
        ("175B | full", "table5_175b_full", 18.13),
        ("175B | selective+sequence", "table5_175b_present", 13.75),
    ],
)
@pytest.mark.parametrize("document", ["README.md", "docs/validation.md"])
def test_accuracy_tables_are_the_programs(
    document: str, row: str, scenario: str, paper_s: float
) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"| {row} |"))
    simulated, error = (cell.strip() for cell in line.strip("|").split("|")[3:])
    seconds = simulate(load_scenario(scenario)).iteration_time_s
    assert simulated == f"{seconds:#.4g} s"
    assert error == f"{100 * (seconds / paper_s - 1):+.2f} %".replace("-", "−")


def test_ci_runs_the_readmes_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    extraction = re.search(r"test_command=\$\((awk .*)\)\n", script)
    assert extraction
    said = subprocess.run(
        ["bash", "-c", extraction[1]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert said == README.split("<!-- test command -->\n```\n")[1].split("\n```")[0]
    assert said.endswith("-m pytest")


def test_every_command_has_an_example_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "reproduce", "schedule", "scenarios"):
        with pytest.raises(SystemExit):
            cli.app([command, "--help"])
        assert f"Example: simtrain {command}" in capsys.readouterr().out
