"""Wrong command lines: each gives an error of simtrain that says what to write."""

import re
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.commands.usage import moved
from simtrain.errors import InputError
from tests.helpers.command_line import call, commands, refused, spawn

COMMANDS = commands()
WORDS = [
    *("", "x", "foo", "3", "a=b", "--", "-x", "-o", "-oj", "--out=", "--output=", "--set"),
    *("--format=json", "--json=1", "--formt", "--gpus", "--details=1", "--stages"),
]


@pytest.mark.parametrize(
    ("line", "error", "fix"),
    [
        # Unknown commands.
        ("rum dp530b", 'simtrain: E901 there is no command "rum"; the co', "simtrain run dp530b?"),
        ("help run", "simtrain: E901 ", "simtrain run --help?"),
        ("version", "simtrain: E901 ", "simtrain --version?"),
        ("xyz", 'E901 there is no command "xyz"; the commands are run,', "simtrain --help"),
        ("llama3_70", "E901 there is no command", "did you mean simtrain llama3_70b?"),
        ("h100_sx", "E901 there is no command", "did you mean simtrain show h100_sxm?"),
        # Unknown options, of which some are fields of a scenario.
        ("run a --formt csv", "run --formt: E902 No such option", "did you mean --format?"),
        ("run a --show memory --gpu 16", "run --gpu: E902 ", "did you mean --gpus?"),
        ("run a --tp 4", "run --tp: E902 ", "a field of the scenario: --set parallelism.tensor=8"),
        ("run --seq-length 64 a", "--seq-length: E902 ", "--set model.seq_length=2048"),
        ("run a --fsdp", "run --fsdp: E902 ", "--set memory.zero_stage=3"),
        ("run a --batch-size 8", "run --batch-size: E902 ", "--set batch.global=64"),
        ("show --tp 4", "show --tp: E902 ", "for example: simtrain show scenarios"),
        # Former options, which commands that read the words of a script refuse too.
        ("run a --json", "run --json: E902 there is no option --json", "write --format json"),
        ("cost --csv", "cost --csv: E902 there is no option --csv", "write --format csv"),
        ("import a.sh --out=b.yaml", "import --out: E902 ", "write -o FILE"),
        ("import hf config.json", 'import: E901 there is no command "hf"', "simtrain import FILE"),
        ("import torch a.py:f", 'import: E901 there is no command "torch"', "import --record FILE"),
        # Missing arguments.
        ("run", "simtrain run: E903 Missing argument 'scenario'", "for example: simtrain run "),
        ("search a --tokens 1B", "search --gpus: E903 Missing option '--gpus'", "simtrain search "),
        ("run a --show memry", "run --show: E904 ", "did you mean memory?"),
        # Wrong values.
        ("run a --format foo", "run --format: E904 ", "for example: simtrain run "),
        ("reproduce table6", "'table6' is not one of 'table2', 'table4'", "did you mean table"),
        ("search a --gpus 8 --top 0", "search --top: E904 ", "simtrain search "),
        ("compare a b --output=", "compare --output: E904 is empty", "simtrain compare "),
        # Options given twice, arguments too many, values too many and too few.
        ("run a --stages 1 --stages 2", "run --stages: E905 is given twice", "keep one"),
        ("run a b", "simtrain run: E906 Got unexpected extra argument(s) (b)", "for example: "),
        ("run a --set batch.micro 2", "run: E906 ", "one word: --set FIELD=2"),
        ("run a --set", "run --set: E907 Option '--set' requires an argument", "simtrain run "),
    ],
)
def test_a_wrong_command_line_is_an_error_that_says_what_to_write(
    line: str, error: str, fix: str
) -> None:
    first, remedy = refused(*shlex.split(line)).splitlines()
    assert first.startswith("simtrain") and error in first
    assert remedy.startswith("  fix: ") and fix in remedy


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
        COMMANDS[name].make_context(f"simtrain {name}", [*words])
    except InputError as error:
        first, remedy = str(error).splitlines()
        assert ": E90" in first and len(remedy) > len("  fix: ")


def test_help_takes_precedence_over_other_options() -> None:
    outcome = call("run", "--format=json", "--format=csv", "--show", "foo", "-h")
    assert outcome == call("run", "-h")
    assert (outcome.exit_code, outcome.stderr) == (0, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_unknown_options_and_wrong_numbers_of_arguments(name: str) -> None:
    command = COMMANDS[name]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    lines = [f"{'x ' * len(arguments)} --no-such-option"]
    if any(one.required for one in command.params):
        lines.append("")
    if all(one.nargs == 1 for one in arguments):
        lines.append("x " * (len(arguments) + 1))
    for line in lines:
        with pytest.raises(InputError, match=r"^simtrain .*: E90") as caught:
            command.make_context(f"simtrain {name}", line.split())
        assert len(str(caught.value).splitlines()) == 2


@pytest.mark.slow
def test_python_m_calibrate_is_simtrain_calibrate() -> None:
    alone, command = spawn("-m", "calibrate", "fti"), call("calibrate", "fti")
    assert alone == command and "E901" in alone.stderr


def test_former_words_of_calibrate_name_the_new_form() -> None:
    errors = refused("calibrate", "nccl-tests", "all_reduce.txt")
    assert "fix: simtrain calibrate fit LOGS --base PROFILE" in errors


def test_completion_does_not_check_unfinished_command_lines() -> None:
    context = COMMANDS["search"].make_context("search", [], resilient_parsing=True)
    assert context.params["scenario"] is None
    with pytest.raises(InputError):
        COMMANDS["search"].make_context("search", [])
