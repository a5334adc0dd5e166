"""The fit of published figures gives the shipped profile, and bad figures are refused."""

import math
import pathlib
import re
from functools import partial

import pytest

from calibrate.app import app
from calibrate.fit.entry import round_significant
from calibrate.fit.figures import WeightGradients
from calibrate.fit.published import fit_figures, fit_weight_gradients
from calibrate.fit.result import Fit, profile_text
from simtrain.base.accuracy import Comparison
from simtrain.base.resources import find_profile
from simtrain.base.strict_yaml import load_document
from simtrain.commands.app import run_app
from simtrain.durations.gemm import GemmMachine
from simtrain.errors import InputError
from simtrain.hardware.profile import Tile
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate_layer
from tests.helpers.command_line import call, spawn
from tests.helpers.toys import a100

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[3]
FIGURES = pathlib.Path("calibrate/published/a100_sxm4_80gb.yaml")
TEXT = (ROOT / FIGURES).read_text(encoding="utf-8")
SHIPPED = find_profile("a100_sxm4_80gb").read_text(encoding="utf-8")

TABLE_4_MS = {
    "baseline": (7.7, 11.9),
    "sequence": (7.2, 11.8),
    "full": (7.7, 19.5),
    "selective": (7.7, 13.2),
    "selective_sequence": (7.2, 13.1),
}
TABLE_5_S = (1.42, 1.10, 18.13, 13.75, 49.05, 37.83, 94.42, 71.49, 39.15)


@pytest.fixture(scope="module")
def fitted() -> Fit:
    return fit_figures(ROOT / FIGURES)


def test_the_fit_gives_the_shipped_profile(fitted: Fit) -> None:
    assert profile_text(fitted.data, FIGURES.as_posix()) == SHIPPED
    assert fitted.profile == a100()


def test_residuals_of_the_fit(fitted: Fit) -> None:
    """Fitted values are close; values that are only compared are listed as not fitted."""
    found = {residuals.title: residuals for residuals in fitted.residuals}
    assert found["layers"].max_abs_error <= 0.04
    assert found["matrix products by shape"].mean_abs_error <= 0.05
    assert found["memory-bound kernels"].mean_abs_error <= 0.08
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        assert found[f"{kind} inside a node"].max_abs_error <= 0.05
    assert len(found["all-reduce measured elsewhere (not fitted)"].rows) == 7


def test_the_command_prints_residuals_and_the_profile(
    fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/docs/test_docs.py runs the fit in a separate process, with the same result."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("calibrate.app._fitted", lambda *options: fitted)
    done = call("calibrate", "fit", FIGURES.as_posix(), "--details")
    assert (done.exit_code, done.stdout) == (0, SHIPPED)
    assert re.search(r"layers: 10 points, mean \|error\| 0\.\d%, worst 0\.\d%", done.stderr)
    assert "baseline forward" in done.stderr


def table_4_errors(strategy: str) -> list[float]:
    """Return the relative errors of a layer's forward and backward time."""
    passes = simulate_layer(load_scenario(f"table4_{strategy}"), a100())
    return [
        time.duration_s * 1e3 / measured_ms - 1
        for time, measured_ms in zip(passes, TABLE_4_MS[strategy], strict=True)
    ]


def test_errors_of_table_4() -> None:
    errors = [abs(error) for strategy in TABLE_4_MS for error in table_4_errors(strategy)]
    assert len(errors) == 10
    assert max(errors) <= 0.04
    assert sum(errors) / 10 <= 0.02


def numbers(data: object) -> list[float]:
    """Return all numbers of the figures, also those with a unit."""
    if isinstance(data, dict):
        return [number for value in data.values() for number in numbers(value)]
    if isinstance(data, list):
        return [number for value in data for number in numbers(value)]
    if isinstance(data, str):
        return [float(text) for text in re.findall(r"\d+\.\d+", data)]
    return [float(data)] if isinstance(data, int | float) else []


def test_the_fitted_figures_contain_nothing_of_table_5() -> None:
    """Predictions are judged on Table 5, so only a comment of the figures names it."""
    found = numbers(load_document(ROOT / FIGURES).data)
    assert len(found) > 500
    assert not set(TABLE_5_S) & set(found)
    lines = [line for line in TEXT.splitlines() if "Table 5" in line]
    assert lines == [line for line in lines if line.startswith("# Nothing here comes from")]
    assert "Table 5" not in SHIPPED


FIRST_PRODUCT = "    - [2048, 1024, 4096, 185.4]\n"
PRODUCTS = re.compile(r"(?<=\ngemm:\n)(  source: .*\n  points: .*\n)(?:    - .*\n)+")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (FIRST_PRODUCT, FIRST_PRODUCT.replace("185.4", "-1"), "gemm.points.0.3 is -1, but must be"),
        (FIRST_PRODUCT, FIRST_PRODUCT.replace("185.4", ".nan"), "gemm.points.0.3 is .nan"),
        (FIRST_PRODUCT, FIRST_PRODUCT.replace("2048", "0"), "gemm.points.0.0 is 0, but must be"),
        (FIRST_PRODUCT, FIRST_PRODUCT.replace(", 185.4", ""), "E202 gemm.points.0.3 is missing"),
        (", 11]\n", ", 0]\n", "small_kernels.points.0.1 is 0, but must be greater than 0"),
        ("[4096, 1536, 5120, TN,", "[4096, 1536, 5120, TT,", "must be one of TN, NN, NT"),
        ("small_kernels:", "tiny_kernels:", 'E201 unknown key "tiny_kernels"'),
        ("    - [baseline, 7.7, 11.9]", "    - [baseline, 7.7, 0]", "layer.times.0.2 is 0, but"),
        ("value: 2.039 TB/s", "value: 2.039", "datasheet.gpu.memory_bandwidth.value: 2.039 has no"),
        ('source: "Korthikanti et al. 2022, Table 4"', 'source: ""', "layer.source"),
        ("version: 1", "version: 3", "version is 3, but must be one of 1"),
    ],
)
def test_bad_figures_are_refused(old: str, new: str, says: str, tmp_path: pathlib.Path) -> None:
    assert old in TEXT
    path = tmp_path / "figures.yaml"
    path.write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    line = TEXT[: TEXT.index(old)].count("\n") + 1
    with pytest.raises(InputError) as caught:
        fit_figures(path)
    assert f"{path}:{line}:" in str(caught.value)
    assert says in str(caught.value)


def test_too_few_figures_are_refused(tmp_path: pathlib.Path) -> None:
    text, count = PRODUCTS.subn(rf"\1{FIRST_PRODUCT}", TEXT)
    assert count == 1
    path = tmp_path / "figures.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"gemm.points is a list: List should have at least 20"):
        fit_figures(path)


@pytest.mark.parametrize("name", ["missing.yaml", "empty.yaml"])
def test_the_command_refuses_bad_input_with_exit_code_2(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty.yaml").write_text("", encoding="utf-8")
    done = call("calibrate", "fit", str(tmp_path / name))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert f"{tmp_path / name}: E10" in done.stderr


def test_the_speed_of_weight_gradients_is_relative_to_forward_products_by_hand() -> None:
    """A library runs forward products at 0.5 and weight gradients at 0.4 of the machine's rate.

    128 × 128 tiles fill the 4 multiprocessors exactly. So each product of n tiles in each of m rows
    takes m · n / 4 waves, and weight gradients have 0.4 / 0.5 of the speed of forward products.
    """
    tiles = (Tile(m=128, n=128, relative_speed=1.0),)
    machine = GemmMachine(4, math.inf, 400e12, 1.0, 0.0, 0.0, 1.0, math.inf, tiles)
    shapes = (256, 256, 512), (512, 256, 1024), (512, 512, 256), (1024, 512, 128)
    figures = WeightGradients(
        source="a table",
        forward=[(*shape, 0.5 * 400) for shape in shapes],
        points=[(*shape, 0.4 * 400) for shape in shapes],
    )
    section, comparison = fit_weight_gradients("fp8_block", figures, machine)
    assert section["value"] == {"TN": 1.0, "NN": 1.0, "NT": 0.8}
    assert comparison.max_abs_error == pytest.approx(0, abs=1e-9)
    assert [row.measured for row in comparison.rows] == pytest.approx([0.8 * 400] * 4)


def test_residuals_by_hand() -> None:
    residuals = Comparison.of("two", "us", [("slow", 10.0, 11.0), ("fast", 10.0, 9.8)])
    assert residuals.errors == pytest.approx([0.1, -0.02])
    assert residuals.mean_abs_error == pytest.approx(0.06)
    assert residuals.max_abs_error == pytest.approx(0.1)
    assert residuals.summary() == "2 points, mean |error| 6.0%, worst 10.0%"


@pytest.mark.parametrize(
    ("value", "digits", "rounded"), [(0.123456, 4, 0.1235), (266543.0, 3, 267000.0), (2.0, 4, 2.0)]
)
def test_rounding_to_significant_digits(value: float, digits: int, rounded: float) -> None:
    assert round_significant(value, digits) == rounded


WITHOUT = """
import sys
sys.modules |= {"scipy": None, "torch": None}
from simtrain.commands.cli import main
HELP = ["--help"], ["fit", "--help"], ["measure", "--help"], ["memory", "-h"], ["validate", "-h"]
for arguments in (*HELP, ["nccl-tests", "-h"], ["memory"], ["fit", "figures.yaml"]):
    sys.argv[1:] = ["calibrate", *arguments]
    try:
        main()
    except SystemExit as end:
        print("exit code", end.code)
"""


def test_help_works_without_scipy_and_torch_and_commands_say_what_to_install() -> None:
    without = spawn("-c", WITHOUT)
    ends = [line for line in without.stdout.splitlines() if line.startswith("exit")]
    assert ends == ["exit code 0"] * 6 + ["exit code 2"] * 2
    assert without.stderr == (
        "E701 measuring memory needs torch\n  fix: pip install 'simtrain[measure]'\n"
        "E701 fitting a profile needs scipy\n  fix: pip install 'simtrain[calibrate]'\n"
    )


def test_simtrain_calibrate_is_python_m_calibrate() -> None:
    by_module = call("fit", "nowhere.yaml", program=partial(run_app, app))
    by_simtrain = call("calibrate", "fit", "nowhere.yaml")
    assert (by_simtrain.exit_code, by_simtrain.stderr) == (2, by_module.stderr)
