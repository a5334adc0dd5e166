"""Completion: what is completed, and that each shell can install it."""

import pathlib

import pytest

from tests.helpers.command_line import call, spawn


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("run gpt2", "gpt2_1_5b"),
        ("run a --set parallelism.ten", "parallelism.tensor"),
        ("show h10", "h100_sxm"),
        ("search a --cluster h10", "h100_sxm"),
        ("sweep interl", "interleave"),
        ("show E90", "E901"),
        ("show gpt2", "gpt2_1_5b"),
        ("show tuto", "tutorial"),
        ("run a --dra", "--draws"),
        ("search --clus", "--cluster"),
        ("run a --format=js", "json"),
        ("run a --format = js", "json"),
        ("gpt2_1_5b --dra", "--draws"),
        ("sear", "search"),
    ],
)
def test_names_fields_and_codes_are_completed(
    line: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_SIMTRAIN_COMPLETE", "bash")
    assert word in call(*line.split()).stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_shown_and_installed(shell: str, tmp_path: pathlib.Path) -> None:
    for option in ("--show-completion", "--install-completion"):
        outcome = spawn("-m", "simtrain", option, shell, HOME=str(tmp_path))
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert "completes simtrain" in outcome.stdout or "Completion of" in outcome.stdout
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any("_COMPLETE=" in file.read_text("utf-8") for file in files)
