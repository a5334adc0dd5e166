"""Wrong command lines: each gives an error of simtrain that says what to write."""

import shlex
from functools import partial

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.app import app as calibrate_app
from simtrain.commands.app import run_app
from simtrain.commands.cli import app
from simtrain.errors import InputError
from tests.helpers.command_line import call, commands, refused

SIMTRAIN = typer.main.get_command(app)
COMMANDS = commands()
WORDS = [
    *("", "x", "foo", "3", "a=b", "--", "-x", "-o", "-oj", "--out", "--out=", "--set", "--engine"),
    *("--json", "--json=1", "--jsn", "--gpus", "--no-sensitivity=1", "--only", "--stage"),
]


def refused_words(*words: str) -> str:
    """Return the error of these words after "simtrain"."""
    with pytest.raises(InputError) as caught:
        parse([*words])
    return str(caught.value)


def parse(words: list[str]) -> None:
    """Parse words after "simtrain"; raise an error for a wrong option, argument or type."""
    command = SIMTRAIN
    context = command.make_context("simtrain", [*words])
    while hasattr(command, "commands"):
        if command.default and words[0] not in command.commands:
            words = [command.default, *words]
        name, *words = words
        command = command.commands[name]
        context = command.make_context(name, [*words], parent=context)


@pytest.mark.parametrize(
    ("line", "error", "fix"),
    [
        # Unknown commands.
        (
            "rum dp530b",
            "rum: E901 there is no such command",
            "did you mean run? simtrain run dp530b",
        ),
        ("rum --jsn", "rum: E901 ", "did you mean run? simtrain run --jsn"),
        ("profile sho", "profile sho: E901 ", "did you mean show? simtrain profile show"),
        ("dp530b", "dp530b: E901 ", "did you mean to run dp530b? simtrain run dp530b"),
        ("mine.yaml --json", "mine.yaml: E901 ", "run mine.yaml? simtrain run mine.yaml --json"),
        (
            "xyz",
            "xyz: E901 there is no such command; the commands are run, memory,",
            "simtrain --help",
        ),
        # Unknown options.
        ("run a --jsn", "run --jsn: E902 there is no such option", "--json? simtrain run a --json"),
        ("run a -json", "run -json: E902 ", "did you mean --json? simtrain run a --json"),
        (
            "run a --foo",
            "run --foo: E902 there is no such option; the options are --set,",
            "run --help",
        ),
        (
            "schema --foo",
            "schema --foo: E902 there is no such option; the options are -h, --help",
            "schema --help",
        ),
        ("run a --engin=simpy --stag 1", "run --engin: E902 ", "run a --engine=simpy --stag 1"),
        (
            "--json",
            "simtrain --json: E902 there is no such option; the options are --ver",
            "remove it, or see simtrain --help",
        ),
        ("import --json", "import --json: E902 ", "see simtrain import --help"),
        ("calibrate --foo 3", "calibrate --foo: E902 ", "see simtrain calibrate --help"),
        ("search a --gpu 8", "search --gpu: E902 ", "search a --gpus 8"),
        ("run a --foo 3", "run --foo: E902 ", "see simtrain run --help"),
        ("run --foo a", "run --foo: E902 ", "see simtrain run --help"),
        # Options of other commands, and fields of a scenario.
        (
            "cost a --tokens 1B --days 30",
            "cost --days: E902 ",
            "goodput has --days: simtrain goodput --help",
        ),
        ("run a --tp 4", "run --tp: E902 ", "a field of the scenario: --set parallelism.tensor=4"),
        ("run a --tp=4 --json", "run --tp: E902 ", "--set parallelism.tensor=4"),
        ("run --seq-length 64 a", "--seq-length: E902 ", "--set model.seq_length=64"),
        ("run a --recompute", "--recompute: E902 ", "--set recompute=selective"),
        ("run a --fsdp", "--fsdp: E902 ", "--set memory.zero_stage=3"),
        ("run a --nodes 4", "--nodes: E902 ", "--set hardware.cluster.num_nodes=4"),
        ("calibrate fit m --gpus 8", "calibrate fit --gpus: E902 ", "calibrate fit --help"),
        ("memory a --gpu 16", "memory --gpu: E902 ", "memory a --gpus 16"),
        ("run a --gpu=16", "run --gpu: E902 ", "run a --gpus=16"),
        ("run a --gpu h100_sxm", "run --gpu: E902 ", "--set cluster=h100_sxm"),
        ("run a --batch-size 8", "run --batch-size: E902 ", "--set batch.global=8"),
        # Missing arguments.
        ("run", "run: E903 SCENARIO is missing", "for example: simtrain run table5_175b_present"),
        ("query results", "query: E903 SQL is missing", 'simtrain query results "select * from'),
        ("plan a --tokens 1B", "plan: E903 --gpus is missing", "simtrain plan gpt3_175b --tokens"),
        ("plan", "plan: E903 SCENARIO, --tokens and --gpus are missing", "plan gpt3_175b --tok"),
        ("calibrate fit -o x", "calibrate fit: E903 SOURCE is", "simtrain calibrate fit measured"),
        # Wrong values.
        (
            "run a --engine foo",
            'run --engine: E904 "foo" is not one of auto, simpy,',
            "--engine auto",
        ),
        (
            "reproduce table6",
            'reproduce TARGET: E904 "table6" is not one of table2, table4',
            "did you mean table",
        ),
        ("search a --gpus 8 --top 0", 'E904 "0" is not an integer of at least 1', "--top 5"),
        ("plan a --tokens 1B --gpus 8 --days x", '--days: E904 "x" is not a number', "--days 60"),
        ("calibrate measure --out x --only foo", '--only: E904 "foo" is', "--only products"),
        ('run a --engine ""', "run --engine: E904 ", "for example: --engine auto"),
        ("report a b --out=", "report --out: E904 is empty", "--out report.html"),
        # Options given twice.
        ("run a --stage 1 --stage 2", "run --stage: E905 is given twice", "keep one"),
        ("run a --json --json", "run --json: E905 ", "keep one"),
        # Too many arguments.
        (
            "run a --set parallelism.tensor 4 --json",
            "run --set: E906 a field and its value are one word",
            "--set parallelism.tensor=4",
        ),
        ("run a --set batch.micro=2 4", 'run: E906 unexpected argument "4"', "remove it"),
        ("run a b", 'run: E906 unexpected argument "b"; the arguments are: SCENARIO', "remove it"),
        ("schema x", 'schema: E906 unexpected argument "x"; the arguments are: none', "remove it"),
        # Too many and too few values.
        (
            "run a --json=1",
            'run --json: E907 is given the value "1", but takes none',
            "--json alone",
        ),
        ("run a --json --json=1", 'run --json: E907 is given the value "1"', "--json alone"),
        (
            "run a --set",
            "run --set: E907 has no value: write text, or leave it out",
            "simtrain run",
        ),
        ("explore --out", "explore --out: E907 has no value: write a path", "explore --out ex"),
        (
            "run a --engine",
            "run --engine: E907 has no value: write one of auto, simpy",
            "--engine auto",
        ),
        ("run a --trace", "run --trace: E907 has no value: write a path, or leave", "simtrain run"),
        ("report a -o", "report -o: E907 has no value: write a path", "simtrain report"),
    ],
)
def test_a_wrong_command_line_is_an_error_that_says_what_to_write(
    line: str, error: str, fix: str
) -> None:
    first, remedy = refused_words(*shlex.split(line)).splitlines()
    assert first.startswith("simtrain ") and error in first
    assert remedy.startswith("  fix: ") and fix in remedy


@settings(max_examples=60)
@given(st.sampled_from(sorted(COMMANDS)), st.lists(st.sampled_from(WORDS), max_size=5))
def test_any_words_are_accepted_or_refused_with_a_remedy(name: str, words: list[str]) -> None:
    try:
        parse([*name.split(), *words])
    except InputError as error:
        first, remedy = str(error).splitlines()
        assert ": E90" in first and len(remedy) > len("  fix: ")


def test_help_takes_precedence_over_other_options() -> None:
    outcome = call("run", "--json", "--json", "--engine", "foo", "-h")
    assert outcome == call("run", "-h")
    assert (outcome.exit_code, outcome.stderr) == (0, "")


@pytest.mark.parametrize("line", ["rum a", "run a --jsn", "run", "run a b", "calibrate fit"])
def test_errors_are_printed_without_boxes(line: str) -> None:
    assert refused(*line.split()).rstrip() == refused_words(*line.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_unknown_options_and_wrong_numbers_of_arguments(name: str) -> None:
    command = COMMANDS[name]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    lines = [f"{name} {'x ' * len(arguments)} --no-such-option"]
    if command.context_settings.get("ignore_unknown_options"):
        lines = []  # words of a script, such as "--num-layers"; tests/importing/test_capture.py
    if any(one.required for one in command.params):
        lines.append(name)
    if all(one.nargs == 1 for one in arguments):
        lines.append(f"{name} {'x ' * (len(arguments) + 1)}")
    for line in lines:
        errors = refused_words(*line.split())
        assert errors.startswith("simtrain ") and ": E90" in errors
        assert len(errors.splitlines()) == 2


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("fti x", "simtrain fti: E901 there is no such command"),
        ("fit x --nam mine", "simtrain fit --nam: E902 "),
        ("fit", "simtrain fit: E903 SOURCE is missing"),
        ("measure --out x --device tpu", 'E904 "tpu" is not one of cuda, cpu'),
    ],
)
def test_calibrate_alone_reports_the_same_errors(line: str, error: str) -> None:
    outcome = call(*line.split(), program=partial(run_app, calibrate_app))
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert error in outcome.stderr and len(outcome.stderr.splitlines()) == 2


def test_completion_does_not_check_unfinished_command_lines() -> None:
    context = COMMANDS["plan"].make_context("plan", [], resilient_parsing=True)
    assert context.params["scenario"] is None
    with pytest.raises(InputError):
        COMMANDS["plan"].make_context("plan", [])
