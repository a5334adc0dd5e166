"""The fit of published figures gives the shipped profile, and bad figures are refused."""

import math
import pathlib
import re

import pytest

from calibrate.fit.figures import WeightGradients
from calibrate.fit.published import fit_figures, fit_weight_gradients
from calibrate.fit.result import Fit, profile_text
from simtrain.base.resources import find_profile
from simtrain.base.strict_yaml import load_document
from simtrain.durations.model import GemmMachine
from simtrain.errors import InputError
from simtrain.hardware.profile import Tile
from tests.helpers.toys import a100

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[3]
FIGURES = pathlib.Path("calibrate/published/a100_sxm4_80gb.yaml")
TEXT = (ROOT / FIGURES).read_text(encoding="utf-8")
SHIPPED = find_profile("a100_sxm4_80gb").read_text(encoding="utf-8")

TABLE_5_S = (1.42, 1.10, 18.13, 13.75, 49.05, 37.83, 94.42, 71.49, 39.15)


@pytest.fixture(scope="module")
def fitted() -> Fit:
    return fit_figures(ROOT / FIGURES)


def test_the_fit_gives_the_shipped_profile(fitted: Fit) -> None:
    assert profile_text(fitted.data, FIGURES.as_posix()) == SHIPPED
    assert fitted.profile == a100()


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
