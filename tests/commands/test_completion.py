"""Completion: what is completed, and that bash, zsh and fish complete it on a terminal."""

import os
import pathlib
import select
import shutil
import signal
import sys
import time

import pytest

from simtrain.commands.completion import joined_words
from tests.helpers.command_line import ROOT, call, spawn

pty = pytest.importorskip("pty")
SHELLS = ["bash", "zsh", "fish"]
COMPLETED = [
    ("run gpt2", "gpt2_1_5b"),
    ("run a --set parallelism.ten", "parallelism.tensor="),
    ("profile show h10", "h100_sxm"),
    ("plan a --cluster h10", "h100_sxm"),
    ("sweep interl", "interleave"),
    ("explain E90", "E901"),
    ("explain gpt2", "gpt2_1_5b"),
    ("run a --eng", "--engine"),
    ("sear", "search"),
]


@pytest.mark.parametrize(("line", "word"), [*COMPLETED, ("run a --set cluster=h10", "h100_sxm")])
def test_names_fields_and_codes_are_completed(
    line: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["simtrain", *line.replace("=", "\n=\n").replace(" ", "\n").split("\n")]
    monkeypatch.setenv("_SIMTRAIN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert word in call().stdout.split()


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (["run", "--set", "cluster", "=", "h10"], ["run", "--set", "cluster=h10"]),
        (["run", "--set", "cluster", "="], ["run", "--set", "cluster="]),
        (["run", "--set", "x", "=", "--json"], ["run", "--set", "x=", "--json"]),
        (["run", "a", "b"], ["run", "a", "b"]),
        ([], []),
    ],
)
def test_words_that_bash_splits_are_joined(words: list[str], whole: list[str]) -> None:
    assert joined_words(words) == whole


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_shown_and_installed(shell: str, tmp_path: pathlib.Path) -> None:
    environment = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    for option in ("--show-completion", "--install-completion"):
        outcome = spawn("-m", "simtrain", option, shell, **environment)
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert "complet" in outcome.stdout
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any("_COMPLETE=" in file.read_text("utf-8") for file in files)


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "line", "added"),
    [
        *((shell, "run gpt2", "_1_5b") for shell in SHELLS),
        pytest.param("bash", "run a --set cluster=h2", "00_", marks=pytest.mark.ci),
    ],
)
def test_a_shell_completes_what_is_typed(
    shell: str, line: str, added: str, tmp_path: pathlib.Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = home_with_simtrain(tmp_path)
    outcome = spawn("-m", "simtrain", "--install-completion", shell, **environment)
    assert outcome.exit_code == 0
    # The first tab of a session only loads the completion of zsh.
    assert added in typed(shell, f"simtrain {line}\t\t", added, environment)


def home_with_simtrain(folder: pathlib.Path) -> dict[str, str]:
    """Write the program `simtrain` to a home folder; return the environment that finds it."""
    program = folder / "bin" / "simtrain"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nfrom simtrain.__main__ import main\nmain()\n", encoding="utf-8"
    )
    program.chmod(0o755)
    return {
        "HOME": str(folder),
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TERM": "dumb",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }


def typed(shell: str, keys: str, expected: str, environment: dict[str, str]) -> str:
    """Type keys into an interactive shell, and return what it shows until the expected text."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(shell, [shell, "-i"], os.environ | environment)
    try:
        shown_until(terminal, "simtrain", seconds=2)
        os.write(terminal, keys.encode())
        shown = shown_until(terminal, expected, seconds=2)
        # On a busy machine the shell may not have read the first tabs.
        for _ in range(50):
            if expected not in shown:
                os.write(terminal, b"\t")
                shown += shown_until(terminal, expected, seconds=2)
        return shown
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


def shown_until(terminal: int, expected: str, seconds: float) -> str:
    """Return what a terminal shows until the expected text, or until the time is over."""
    shown, end_s = "", time.monotonic() + seconds
    while expected not in shown and time.monotonic() < end_s:
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    return shown
