"""Version and help of the command line."""

import itertools
import re

import pytest

from simtrain import __version__
from simtrain.commands.help import coloured
from tests.helpers.command_line import call, commands, option_names


def test_version_prints_the_version_of_the_package() -> None:
    outcome = call("--version")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (
        0,
        f"simtrain {__version__}\n",
        "",
    )


@pytest.mark.parametrize("command", ["", "run", "show", "import", "calibrate", "calibrate fit"])
def test_h_prints_the_same_as_help(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    help = call(*command.split(), "--help")
    assert (help.exit_code, help.stderr) == (0, "")
    assert call(*command.split(), "-h") == help


@pytest.mark.parametrize("width", [80, 120])
def test_help_is_wrapped_to_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line ends early: the first word of the next line would not fit."""
    monkeypatch.setenv("COLUMNS", str(width))
    text = call("search", "-h", "--all").stdout.partition("\n\n  ")[0]
    paragraphs = [one.split("\n") for one in re.split(r"\n\s*\n", text.strip()) if "\n" in one]
    assert paragraphs
    for lines in paragraphs:
        for line, following in itertools.pairwise(lines):
            assert len(f"{line} {following.split()[0]}") > width


@pytest.mark.parametrize("name", commands())
def test_help_fits_a_screen_and_says_where_the_rest_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call(*name.split(), "--help").stdout.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert lines[-1] == f"All options and details: simtrain {name} --help --all"
    everything = call(*name.split(), "--help", "--all").stdout
    assert all(option in everything for option in option_names(name))


def test_the_words_are_eleven() -> None:
    words = "run compare search cost sweep import export validate calibrate reproduce show"
    assert {name.split()[0] for name in commands()} == {*words.split()}
    assert len(call().stdout.splitlines()) <= 60


def test_names_are_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured("Usage: x\n  -o, --out  y") == (
        "\x1b[36mUsage:\x1b[0m x\n\x1b[36m  -o, --out\x1b[0m  y"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured("Usage: x") == "Usage: x"
