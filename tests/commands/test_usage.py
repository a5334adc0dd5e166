"""Wrong command lines: each gives an error of simtrain that says what to write."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.commands.usage import moved
from simtrain.errors import InputError
from tests.helpers.command_line import call, commands, parsed, refused, spawn

COMMANDS = commands()
WORDS = [
    *("", "x", "foo", "3", "a=b", "--", "-x", "-o", "-oj", "--out=", "--output=", "--set"),
    *("--format=json", "--json=1", "--formt", "--gpus", "--details=1", "--stages"),
]


@pytest.mark.parametrize("word", moved()["commands"])
def test_a_former_command_names_what_replaces_it(word: str) -> None:
    """Each replacement is a line of a command that exists."""
    first, remedy = refused(word, "gpt2_1_5b").splitlines()
    assert f'E901 there is no command "{word}" any more' in first
    assert remedy == f"  fix: {moved()['commands'][word]}" and word not in COMMANDS
    for line in re.findall(r"simtrain (\w+)", moved()["commands"][word]):
        assert line in {name.split()[0] for name in COMMANDS}


@settings(max_examples=60)
@given(st.sampled_from(sorted(COMMANDS)), st.lists(st.sampled_from(WORDS), max_size=5))
def test_any_words_are_accepted_or_refused_with_a_remedy(name: str, words: list[str]) -> None:
    try:
        parsed(name, *words).values()
    except InputError as error:
        first, remedy = str(error).splitlines()
        assert ": E90" in first and len(remedy) > len("  fix: ")


def test_help_takes_precedence_over_other_options() -> None:
    outcome = call("run", "--format=json", "--format=csv", "--show", "foo", "-h")
    assert outcome == call("run", "-h")
    assert (outcome.exit_code, outcome.stderr) == (0, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_unknown_options_and_wrong_numbers_of_arguments(name: str) -> None:
    options = parsed(name).options
    arguments = [each for each in options if each.is_argument]
    lines = [f"{'x ' * len(arguments)} --no-such-option"]
    if any(each.is_required for each in options):
        lines.append("")
    if not any(each.is_list for each in arguments):
        lines.append("x " * (len(arguments) + 1))
    for line in lines:
        with pytest.raises(InputError, match=r"^simtrain .*: E90") as caught:
            parsed(name, *line.split()).values()
        assert len(str(caught.value).splitlines()) == 2


@pytest.mark.slow
def test_python_m_calibrate_is_simtrain_calibrate() -> None:
    alone, command = spawn("-m", "calibrate", "fti"), call("calibrate", "fti")
    assert alone == command and "E901" in alone.stderr


def test_former_words_of_calibrate_name_the_new_form() -> None:
    errors = refused("calibrate", "nccl-tests", "all_reduce.txt")
    assert "fix: simtrain calibrate fit LOGS --base PROFILE" in errors
