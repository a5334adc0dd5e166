"""Commands whose options are those of a function, a dataclass or a request."""

from __future__ import annotations

import random
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from simtrain.commands.app import run_app
from simtrain.commands.declare import Argument, CliOptions, Fields, Option, Written, options_first
from simtrain.commands.group import CliGroup
from simtrain.commands.typed import declared
from simtrain.errors import InputError, Location
from tests.helpers.command_line import Outcome, call, commands

if TYPE_CHECKING:
    from nowhere import Oven  # type: ignore[import-not-found]


@dataclass(frozen=True)
class CakeRequest:
    """A cake.

    Args:
        oven: where it is baked.
        flour: flour: 200g or
            0.2kg.
        layers: sizes of the layers.
        style: how it looks.
    """

    oven: Oven
    flour: float | str
    _: KW_ONLY
    layers: tuple[int, ...] = (1,)
    style: Literal["plain", "iced"] | None = None


@dataclass(frozen=True)
class Format:
    """How it is printed.

    Args:
        as_json: as JSON.
        wide: on long lines.
    """

    as_json: bool = False
    wide: bool = True


def sizes(text: str, option: str) -> tuple[int, ...]:
    """Parse the sizes of layers."""
    if text == "x":
        raise InputError.of("E118", "is not a size", Location(f"{option} {text}"), "write 1,2")
    return tuple(map(int, text.split(",")))


LAYERS = Annotated[tuple[int, ...], Written(sizes), Option("--layer-sizes", metavar="N,N")]


@options_first("style json_file")
def bake(
    cake: Annotated[dict[str, Any], Fields(CakeRequest, "flour layers style", {"layers": LAYERS})],
    format: Format,
    *,
    json_file: Path | None = None,
    tins: Annotated[list[str], Argument()],
) -> None:
    """Bake a cake.

    Args:
        json_file: file to write.
        tins: what it is baked in.

    Example: bake a --flour 200g
    """
    print(cake, format, json_file, tins)


def baked(*words: str) -> Outcome:
    app = CliGroup("Bake.", lambda: {"bake": f"{__name__}:bake"})
    return call("bake", *words, program=partial(run_app, app))


def test_a_command_gets_the_values_that_its_parameters_stand_for() -> None:
    outcome = baked("a", "b", "--flour", "200g", "--layer-sizes", "3,2", "--as-json", "--no-wide")
    cake = {"flour": "200g", "layers": (3, 2), "style": None}
    form = Format(as_json=True, wide=False)
    assert outcome == Outcome(0, f"{cake} {form} None ['a', 'b']\n", "")


def test_what_is_not_written_has_the_default_of_the_request() -> None:
    assert "'layers': (1,), 'style': None" in baked("a", "--flour", "1").stdout


def test_help_says_what_docstrings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = baked("--help", "--all").stdout
    options = [line.split()[1:] for line in text.splitlines() if " --" in line and "│" in line]
    lines = [" ".join(words).rstrip(" │") for words in options]
    assert lines == [
        "--style <plain|iced> How it looks.",
        "--json-file <path> File to write.",
        "* --flour <str> Flour: 200g or 0.2kg. [required]",
        "--layer-sizes N,N Sizes of the layers.",
        "--as-json <bool> As JSON.",
        "--wide --no-wide <bool> On long lines. [default: wide]",
        "--help -h <bool> Show this message and exit.",
    ]
    assert "Bake a cake." in text and "What it is baked in." in text
    assert "Args:" not in text and "Example: bake a --flour 200g" in text


def test_errors_name_the_option_that_is_parsed() -> None:
    outcome = baked("a", "--flour", "1", "--layer-sizes", "x")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("--layer-sizes x: E118 is not a size")


def test_a_function_stays_callable_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    bake({"flour": 1}, Format(), tins=["a"])
    assert capsys.readouterr().out.startswith("{'flour': 1}")


def test_two_parameters_of_a_name_are_our_mistake() -> None:
    def twice(format: Format, *, other: Format) -> None:
        """Print."""

    with pytest.raises(ValueError, match="duplicate"):
        declared(twice)


WORDS = ("1", "0", "07", "x", "4.5", "1e3", "-1", "", "a=b", "json", "memory", "llama3_70b", "cpu")


def drawn_words(options: list[Any], rng: random.Random) -> list[str]:
    """Return words in which options may have values that they do not take."""
    words = rng.choices(WORDS[:2] + WORDS[3:], k=rng.randrange(3))
    for option in rng.choices(options, k=rng.randrange(4)):
        name, value = rng.choice([*option.names, *option.constants]), rng.choice(WORDS)
        forms = [name, value], [f"{name}={value}"], [name]
        words += rng.choice(forms if option.constants else forms[:2])
    return words


def test_plain_words_have_the_values_that_typer_reads() -> None:
    rng, num_plain = random.Random(0), 0
    for name, command in commands().items():
        parameters = CliOptions.of(command.function)  # type: ignore[attr-defined]
        for _ in range(60):
            words = drawn_words(parameters.in_order, rng)
            if (values := parameters.read(words)) is not None:
                num_plain += 1
                read = command.make_context(name, [*words]).params
                listed = {
                    key: [*each] or None for key, each in read.items() if isinstance(each, tuple)
                }
                assert {key: (read | listed)[key] for key in values} == values, (name, words)
    assert num_plain > 100
