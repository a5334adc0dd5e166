"""One Chromium and one report, shared by all tests of pages in a browser."""

import pathlib
from collections.abc import Iterator

import pytest

from simtrain.iteration.report.result import Result
from simtrain.render.html.document import write_document
from simtrain.render.html.report import ReportedRun, report_document
from simtrain.studies.simulation import simulate
from tests.helpers.browser import Browser, chromium
from tests.helpers.report_cases import CASES


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="session")
def results() -> dict[str, Result]:
    return {name: simulate(scenario) for name, scenario in CASES.items()}


@pytest.fixture(scope="session")
def page(
    results: dict[str, Result],
    tmp_path_factory: pytest.TempPathFactory,
) -> pathlib.Path:
    """Write one report on all cases."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    runs = [ReportedRun(name, result) for name, result in results.items()]
    write_document(report_document(runs), file)
    return file
