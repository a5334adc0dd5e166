import re

import pytest

from simtrain.errors import InputError, Location, Problem, SimtrainError
from simtrain.render.explanations import errors_document, explanations
from tests.helpers.command_line import ROOT, call


def test_a_problem_reads_like_a_compiler_error() -> None:
    problem = Problem(
        "E301",
        "parallelism.tensor is 7, which does not divide model.num_attention_heads (64)",
        Location("scenarios/x.yaml", 7, 11, "  tensor: 7"),
        reason="tensor parallelism gives each rank whole attention heads",
        fix="write parallelism.tensor: 8",
    )
    assert str(problem) == (
        "scenarios/x.yaml:7:11: E301 parallelism.tensor is 7, which does not divide "
        "model.num_attention_heads (64)\n"
        " 7 |   tensor: 7\n"
        "   |           ^\n"
        "  reason: tensor parallelism gives each rank whole attention heads\n"
        "  fix: write parallelism.tensor: 8"
    )


def test_a_problem_may_have_no_place_no_reason_and_no_fix() -> None:
    assert str(Problem("E999", "it is wrong")) == "E999 it is wrong"


def test_an_override_is_a_place_without_a_line() -> None:
    place = Location("--set parallelism.tensor=7")
    problem = Problem("E301", "wrong", place)
    assert str(problem) == "--set parallelism.tensor=7: E301 wrong"


def test_an_input_error_lists_every_problem_and_exits_with_2() -> None:
    error = InputError([Problem("E1", "one"), Problem("E2", "two", fix="three")])
    assert str(error) == "E1 one\n\nE2 two\n  fix: three"
    assert [problem.code for problem in error.problems] == ["E1", "E2"]
    assert error.exit_code == 2
    assert isinstance(error, SimtrainError)


def test_an_input_error_without_a_problem_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        InputError([])


def test_the_caret_stays_under_its_character_behind_tabs_and_control_characters() -> None:
    excerpt = Location("x", 3, 4, "\t\x1b[x").excerpt()
    source, caret = excerpt.splitlines()
    assert source == " 3 |  \N{REPLACEMENT CHARACTER}[x"
    assert source[caret.index("^")] == "x"


@pytest.mark.parametrize("part", ["message", "place", "reason", "fix"])
def test_no_part_of_a_problem_controls_the_terminal(part: str) -> None:
    parts = dict.fromkeys(("message", "place", "reason", "fix"), "it") | {
        part: "a\x1b[31mb\x9bc\u202ed\r"
    }
    problem = Problem(
        "E1", parts["message"], Location(parts["place"]), parts["reason"], parts["fix"]
    )
    clean = "a\N{REPLACEMENT CHARACTER}[31mb\N{REPLACEMENT CHARACTER}c"
    assert clean in str(problem)
    assert not {"\x1b", "\x9b", "\u202e", "\r"} & {*str(problem)}


def test_long_words_and_long_parts_are_shortened_in_the_middle() -> None:
    name = "a" * 120_000
    fix = f"write {'b ' * 9999}c"
    problem = Problem("E1", f"{name} is not x", Location(f"--set {name}=1"), fix=fix)
    place, _, fix = str(problem).partition("\n")
    assert place.startswith("--set aaa") and "...a" in place and place.endswith("a is not x")
    assert fix.startswith("  fix: write b b ") and fix.endswith(" b c")
    assert len(str(problem)) < 3000


@pytest.mark.parametrize("column", [1, 40, 150, 400])
def test_a_long_line_is_cut_around_the_caret(column: int) -> None:
    line = "".join(chr(ord("a") + index % 26) for index in range(400))
    source, caret = Location("x", 1, column, line).excerpt().splitlines()
    assert source[caret.index("^")] == line[column - 1]
    assert len(source) < 120


# --------------------------------------------------------------------------- codes


def raised_codes() -> set[str]:
    files = [path for room in ("simtrain", "calibrate") for path in (ROOT / room).rglob("*.py")]
    return {code for path in files for code in re.findall(r'"(E\d{3})"', path.read_text("utf-8"))}


def test_every_code_that_is_raised_is_explained_and_no_other() -> None:
    """They are in render/explanations/*.toml; `python -m docs.update` writes the page."""
    assert raised_codes() == explanations().keys()


def test_the_page_of_all_errors_is_printed() -> None:
    assert call("show", "reference/errors").stdout == errors_document(explanations().values())
