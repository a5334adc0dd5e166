"""Every number that a report shows or reads aloud has its exact value and its source."""

import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import simtrain.studies.evaluation  # binds the function that the fixture replaces
import simtrain.studies.sensitivity
import simtrain.studies.simulation
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from tests.helpers.command_line import call
from tests.render.html.numbers import data_of, is_rounded, read, source_of, value_at, wrong_numbers

pytestmark = pytest.mark.slow

Page = tuple[tuple[str, ...], tuple[str, ...]]
PAGES: dict[str, Page] = {
    "two scenarios": (
        ("table4_full", "table4_selective_sequence"),
        ("cluster=h100_sxm", "batch.global=16"),
    ),
    "experts": (("qwen3_30b_a3b",), ("batch.global=64",)),
    "fp8": (("llama3_8b",), ("precision.compute=fp8", "batch.global=32")),
    "chosen recompute": (("gpt2_1_5b",), ("recompute=auto", "hardware.gpu.memory_capacity=30 GiB")),
}
"""Scenarios and settings of each page. One page says what to buy first."""
WITH_SENSITIVITY = "two scenarios"


@pytest.fixture(scope="module", autouse=True)
def _simulated_once() -> Iterator[None]:
    """Simulate each scenario once for all commands that this module runs."""
    simulate, found = simtrain.studies.simulation.simulate, dict[str, Result]()

    @functools.wraps(simulate)
    def once(scenario: Scenario, *arguments: Any, **named: Any) -> Result:
        if arguments or "profile" in named:  # the key does not contain all entries of a profile
            return simulate(scenario, *arguments, **named)
        key = repr((scenario, named))
        if key not in found:
            found[key] = simulate(scenario, *arguments, **named)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simtrain.studies.simulation, "simulate", once)
        yield


@functools.cache
def page(name: str, folder: pathlib.Path) -> str:
    """Write a report, and return its HTML."""
    scenarios, settings = PAGES[name]
    file = folder / f"{name.replace(' ', '_')}.html"
    without = [] if name == WITH_SENSITIVITY else ["--no-sensitivity"]
    outcome = call("report", *scenarios, *options(settings), *without, "-o", str(file))
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    return file.read_text("utf-8")


def options(settings: tuple[str, ...]) -> list[str]:
    """Return settings as options of a command."""
    return [word for setting in settings for word in ("--set", setting)]


@functools.cache
def printed(command: str, settings: tuple[str, ...]) -> Any:
    """Return the JSON that a command prints."""
    words = command.split()
    may_not_fit = ["--allow-oom"] if words[0] in ("run", "compare") else []
    given = [] if words[0] == "profile" else [*options(settings), *may_not_fit]
    outcome = call(*words, *given, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("reports")


@pytest.mark.parametrize("name", PAGES)
def test_every_number_on_a_page_equals_its_data_exactly(name: str, folder: pathlib.Path) -> None:
    text = page(name, folder)
    reader, data = read(text), data_of(text)
    assert len(reader.shown) > 300
    assert wrong_numbers(reader, data) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_number_equals_that_of_the_command_that_its_source_names(
    name: str, folder: pathlib.Path
) -> None:
    text = page(name, folder)
    data, (scenarios, settings) = data_of(text), PAGES[name]
    for pointer in {place for one in read(text).shown for place in one.pointers}:
        source, place = source_of(pointer, data)
        if not source["command"]:
            continue
        run = data["runs"][int(pointer.split("/")[2])] if pointer.startswith("/runs/") else None
        command = source["command"].replace("FIGURE", pointer.split("/")[4] if run else "")
        command = command.replace("CLUSTER", run["profile"]["name"] if run else "")
        names = run["name"] if run else " ".join(scenarios)
        expected = value_at(printed(command.replace("X", names), settings), place)
        assert value_at(data, pointer) == expected, pointer


def test_a_number_without_source_is_found() -> None:
    text = '<p>7 <data value="0.5" data-at="/a">0.5</data></p><i title="8 s"></i><p>bf16</p>'
    assert read(text).unmarked == ["p: 7 ", "i title: 8 s"]
    assert wrong_numbers(read('<data value="0.5" data-at="/a">0.5</data>'), {"a": 0.5}) == []
    for wrong in (
        '<data value="0.5" data-at="/a">0.6</data>',
        '<data value="0.5" data-at="/b">0.5</data>',
        '<data value="0.50000000001" data-at="/a">0.5</data>',
        '<span data-text="/a">0.50</span>',
        '<i title="5" data-title="<data value=1 data-at=/a>6</data>"></i>',
    ):
        assert len(wrong_numbers(read(wrong), {"a": 0.5})) == 1, wrong


@pytest.mark.parametrize(
    ("text", "value"),
    [("37.84 s", 37.844), ("12%", 0.1249), ("1,234", 1234.4), ("2 µs", 2e-6), ("4 GiB", 2**32)],
)
def test_a_rounded_text_is_within_half_of_its_last_digit(text: str, value: float) -> None:
    assert is_rounded(text, value)
    assert not is_rounded(text, 1.05 * value)
