"""Long tables: every scenario is simulated once, and what is cached does not grow with them."""

import pathlib
import sys

import pytest

from simtrain.importing.runs import RunSettings, read_runs
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.validation import MOST_MEAN_ERROR, Validation, run, validate_runs
from simtrain.studies.validation.wrong_units import MeasuredFigure, wrong_units
from simtrain.views.validation import validation_view
from simtrain.views.view import Verdict

HEAD = "name,layers,hidden,heads,seq,tp,pp,dp,micro_batch,global_batch,iteration_s,peak_mem_gb"


@pytest.fixture(autouse=True)
def _no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their times are made up: a guess would simulate them with other settings."""
    monkeypatch.setattr(run, "guess_setting", lambda runs, evaluator: None)


SETTINGS = RunSettings("h100_sxm", None, (), "megatron_core")


def validation_of(folder: pathlib.Path, rows: list[str], head: str = HEAD) -> Validation:
    file = folder / "runs.csv"
    file.write_text("\n".join([head, *rows]) + "\n", "utf-8")
    return validate_runs(read_runs([file], SETTINGS), "h100_sxm")


def row(number: int, time: object = 0.3, peak: object = 20) -> str:
    width = 64 * (8 + number)
    return f"r{number},4,{width},8,512,1,2,2,1,{8 + 2 * (number % 3)},{time},{peak}"


def test_runs_of_one_scenario_are_simulated_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = []

    def evaluate(self: Evaluator, scenario: object) -> Evaluation:
        evaluated.append(scenario)
        return original(self, scenario)

    original = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    rows = [row(number % 3, 0.3 + number / 1000) for number in range(12)]
    validation = validation_of(tmp_path, rows)
    assert validation.num_simulated == 12 and len(evaluated) == 3


def test_what_is_forgotten_changes_no_figure_and_bounds_what_is_cached(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(number) for number in range(10)]
    whole = validation_of(tmp_path, rows)
    monkeypatch.setattr(run, "_MOST_ALIVE", 2)
    assert validation_of(tmp_path, rows) == whole
    functions = [
        function
        for name, module in sys.modules.items()
        if name.startswith("simtrain.workload.")
        for function in vars(module).values()
        if hasattr(function, "cache_info") and function.cache_parameters()["maxsize"]
    ]
    sizes = [function.cache_info().currsize for function in functions]
    assert sizes and max(sizes) < 40  # two scenarios, with 16 parts at most


@pytest.mark.parametrize(
    ("time_factor", "head", "words"),
    [
        (1e3, HEAD, "iteration_s of 3 of 3 runs is about 1,000 times the prediction"),
        (1e3, HEAD, "name the column iteration_time_ms"),
        (1.0, HEAD.replace("iteration_s", "iteration_ms"), "name the column iteration_time_s"),
    ],
)
def test_a_column_in_another_unit_is_named(
    time_factor: float, head: str, words: str, tmp_path: pathlib.Path
) -> None:
    times = [each.simulated_s for each in validation_of(tmp_path, [*map(row, range(3))]).rows]
    rows = [row(number, time_factor * (time or 0)) for number, time in enumerate(times)]
    (warning,) = (
        text for text in validation_of(tmp_path, rows, head).wrong_units if "prediction" in text
    )
    assert words in warning


@pytest.mark.parametrize("power", [-9, -6, -3, 3, 6, 9])
@pytest.mark.parametrize("unit", ["s", "bytes"])
@pytest.mark.parametrize("off", [0.3, 1.0, 3.0])
def test_only_powers_of_a_thousand_are_wrong_units(power: int, unit: str, off: float) -> None:
    assert not [*wrong_units([MeasuredFigure("x", unit, off * 5.0, 5.0)])]
    assert not [*wrong_units([MeasuredFigure("x", unit, off * 5.0 * 31, 5.0)])]
    (text,) = wrong_units([MeasuredFigure("x", unit, off * 5.0 * 10.0**power, 5.0)])
    assert text.startswith("x of 1 of 1 run is about 1") and "probably" in text


def test_ok_has_a_limit(tmp_path: pathlib.Path) -> None:
    near = validation_of(tmp_path, [*map(row, range(3))])
    times = [each.simulated_s or 0.0 for each in near.rows]
    for factor, is_ok in ((1.0, True), (1 / (1 + MOST_MEAN_ERROR) + 0.01, True), (0.7, False)):
        rows = [row(number, factor * time, "") for number, time in enumerate(times)]
        (*_, verdict) = validation_view(validation_of(tmp_path, rows)).parts
        assert isinstance(verdict, Verdict) and verdict.is_ok is is_ok
