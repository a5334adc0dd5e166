"""Every number of a page has its exact value, and is printed by the command that the page names."""

import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import simtrain.studies.evaluation  # binds the function that the fixture replaces
import simtrain.studies.sensitivity
import simtrain.studies.simulation
from simtrain.base.strict_yaml.validation import data_of
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from tests.helpers.command_line import call
from tests.render.html.printed_tables import (
    TableReader,
    is_rounded,
    printed_csv,
    read_tables,
    wrong_numbers,
)

pytestmark = pytest.mark.slow

PAGES: dict[str, tuple[str, ...]] = {
    "two scenarios": (
        *("compare", "table4_full", "table4_selective_sequence"),
        *("--set", "cluster=h100_sxm", "--set", "batch.global=16"),
    ),
    "experts": ("run", "qwen3_30b_a3b", "--set", "batch.global=64"),
    "fp8": (
        *("compare", "llama3_8b", "--set", "precision.compute=fp8", "--set", "batch.global=32"),
        *("--change", "batch.micro=2"),
    ),
    "does not fit": (
        *("run", "gpt2_1_5b", "--allow-oom", "--set", "hardware.gpu.memory_capacity=4 GiB"),
    ),
    "chosen recompute": (
        *("run", "gpt2_1_5b", "--set", "recompute=auto", "--allow-oom"),
        *("--set", "hardware.gpu.memory_capacity=30 GiB"),
    ),
}
"""Commands that write a page."""


@pytest.fixture(scope="module", autouse=True)
def _simulated_once() -> Iterator[None]:
    """Simulate each scenario once for all commands that this module runs."""
    simulate, results = simtrain.studies.simulation.simulate, dict[str, Result]()

    @functools.wraps(simulate)
    def once(scenario: Scenario, *arguments: Any, **named: Any) -> Result:
        if arguments or "profile" in named:  # the key does not contain all entries of a profile
            return simulate(scenario, *arguments, **named)
        key = repr((data_of(scenario), named))
        if key not in results:
            results[key] = simulate(scenario, *arguments, **named)
        return results[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simtrain.studies.simulation, "simulate", once)
        yield


def page(arguments: tuple[str, ...], folder: pathlib.Path) -> TableReader:
    """Write a report, and read its numbers."""
    file = folder / "report.html"
    outcome = call(*arguments, "-o", str(file))
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    return read_tables(file.read_text("utf-8"))


@pytest.mark.ci
@pytest.mark.parametrize("name", PAGES)
def test_every_number_of_a_table_is_printed_by_its_command(
    name: str, tmp_path: pathlib.Path
) -> None:
    reader = page(PAGES[name], tmp_path)
    commands = {table.command for table in reader.tables if table.command}
    assert any("--show memory" in command for command in commands)
    assert len(reader.numbers) > 250
    assert wrong_numbers(reader, printed_csv) == []


def test_a_wrong_number_is_noticed() -> None:
    html = (
        '<div data-command="simtrain x"><table data-table="t"><thead><tr>'
        '<th data-name="time_s">time</th></tr></thead><tbody><tr><td>'
        '<data value="0.5">{}</data></td></tr></tbody></table></div>'
    )
    right = read_tables(html.format("500.0 ms"))
    assert wrong_numbers(right, lambda command, name: "time_s\n0.5\n") == []
    (wrong,) = wrong_numbers(right, lambda command, name: "time_s\n0.50001\n")
    assert "simtrain x t time_s" in wrong
    (wrong,) = wrong_numbers(read_tables(html.format("0.6 s")), lambda *_: "time_s\n0.5\n")
    assert "not rounded" in wrong


@pytest.mark.parametrize(
    ("text", "value"),
    [("37.84 s", 37.844), ("12%", 0.1249), ("1,234", 1234.4), ("2 µs", 2e-6), ("4 GiB", 2**32)],
)
def test_a_rounded_text_is_within_half_of_its_last_digit(text: str, value: float) -> None:
    assert is_rounded(value, text)
    assert not is_rounded(1.05 * value, text)
