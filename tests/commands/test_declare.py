"""Commands whose options are those of a function, a dataclass or a request."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.commands.cli import main
from simtrain.commands.declare import Argument, Fields, Option, options_first
from simtrain.commands.group import CliGroup
from simtrain.commands.parser import Parser
from simtrain.errors import InputError, Location
from tests.helpers.command_line import Outcome, call, commands, parsed

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


LAYERS = Annotated[tuple[int, ...], Option("--layer-sizes", metavar="N,N", parse=sizes)]


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
    return call("bake", *words, program=partial(main, app))


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
    lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith("  ")]
    assert lines == [
        "TINS What it is baked in. (required)",
        "--style WORD How it looks. (one of plain, iced)",
        "--json-file PATH File to write.",
        "--flour TEXT Flour: 200g or 0.2kg. (required)",
        "--layer-sizes N,N Sizes of the layers.",
        "--as-json As JSON.",
        "--wide, --no-wide On long lines.",
    ]
    assert "Usage: simtrain bake TINS... [OPTIONS]\n\nBake a cake.\n\nExample: bake a" in text


def test_errors_name_the_option_that_is_parsed() -> None:
    outcome = baked("a", "--flour", "1", "--layer-sizes", "x")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("--layer-sizes x: E118 is not a size")


def test_a_function_stays_callable_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    bake({"flour": 1}, Format(), tins=["a"])
    assert capsys.readouterr().out.startswith("{'flour': 1}")


@pytest.mark.parametrize("name", commands())
def test_no_two_options_of_a_command_share_a_name(name: str) -> None:
    options = parsed(name).options
    for names in (
        [each.key for each in options],
        [word for each in options for word in each.names],
    ):
        assert len({*names}) == len(names)


WRITTEN = {"flour": "200g", "layer-sizes": "3,2", "style": "iced", "json-file": "-a=b"}
VALUES = {"flour": "200g", "layers": (3, 2), "style": "iced", "json_file": Path("-a=b")}


@given(
    st.permutations([*WRITTEN, "tin", "no-wide"]), st.lists(st.booleans(), min_size=6, max_size=6)
)
def test_words_have_the_same_values_in_every_order_and_form(
    names: list[str], are_joined: list[bool]
) -> None:
    words: list[str] = []
    for name, is_joined in zip(names, are_joined, strict=True):
        if name in WRITTEN:
            joined = f"--{name}={WRITTEN[name]}"
            words += [joined] if is_joined else joined.split("=", 1)
        else:
            words.append("tin" if name == "tin" else f"--{name}")
    parser = Parser("simtrain bake", bake, [*words, "--", "--wide"])
    others = {"tins": ["tin", "--wide"], "as_json": False, "wide": False}
    assert parser.values() == VALUES | others
    assert parsed("run", "x", "-oa.png").values()["out"] == Path("a.png")
