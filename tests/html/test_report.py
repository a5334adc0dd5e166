"""The report on iterations: every number on it is one of `--json`, to the last bit."""

import json
import pathlib

import pytest

from tests.helpers.command_line import call
from tests.html.pages import Parsed, parsed, value_at

pytestmark = pytest.mark.slow

FULL, PRESENT = "table4_full", "table4_selective_sequence"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    """The report on two iterations."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    outcome = call("report", FULL, PRESENT, "-o", str(file))
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, f"{file}\n", "")
    return parsed(file.read_text("utf-8"))


def printed(*arguments: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(call(*arguments, "--json").stdout)
    return found


def test_the_data_are_those_that_run_prints(page: Parsed) -> None:
    for number, name in enumerate((FULL, PRESENT)):
        expected = printed("run", name)
        assert page.data["made_with"] == [expected.pop("made_with")]
        assert page.data["runs"][number]["result"] == expected


def test_every_number_is_in_the_data_to_the_last_bit(page: Parsed) -> None:
    numbers = page.of("data")
    assert len(numbers) > 30
    for about, text in numbers:
        value = value_at(page.data, about["data-at"] or "")
        if whole := about.get("data-of"):
            value /= value_at(page.data, whole)
        assert float(about["value"] or "") == value and text


def test_mistakes_are_refused(tmp_path: pathlib.Path) -> None:
    for arguments, code in (
        (f"{FULL} -o {tmp_path / 'report.txt'}", "E117"),
        (f"{FULL} -o {tmp_path / 'nowhere' / 'report.html'}", "E113"),
        (f"nowhere -o {tmp_path / 'report.html'}", "E101"),
    ):
        outcome = call("report", *arguments.split())
        assert (outcome.exit_code, outcome.stdout) == (2, "")
        assert f"{code} " in outcome.stderr
    assert [*tmp_path.iterdir()] == []
