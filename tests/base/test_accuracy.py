"""Statistics of predicted beside measured numbers, counted by hand."""

import math

import pytest

from simtrain.base.accuracy import ErrorTable
from simtrain.base.spread import Spread

ROWS = [("a", 2.0, 2.2), ("b", 4.0, 2.0), ("c", 1.0, 1.0)]


def test_errors_of_three_pairs() -> None:
    """They are 10 %, -50 % and 0 %: factors of 1.1, 2 and 1."""
    found = ErrorTable.of("times", "s", ROWS)
    assert found.errors == pytest.approx([0.1, -0.5, 0.0])
    assert (found.mean_abs_error, found.max_abs_error) == pytest.approx((0.2, 0.5))
    assert found.bias == pytest.approx(-0.4 / 3)
    assert found.mean_factor == pytest.approx(2.2 ** (1 / 3))
    assert found.worst.name == "b"
    assert found.summary() == "3 points, mean |error| 20.0%, worst 50.0%"
    assert ErrorTable.of("times", "s", []).summary() == "nothing yet"


@pytest.mark.parametrize(
    ("mean", "largest"), [(0.19, 0.49), (0.21, 0.51), (None, 0.4), (0.1, None)]
)
def test_errors_above_a_threshold_are_missed(mean: float | None, largest: float | None) -> None:
    found = ErrorTable("times", "s", ErrorTable.of("", "", ROWS).rows, mean, largest)
    limits = ("mean", 0.2, mean), ("largest", 0.5, largest)
    expected = [name for name, error, most in limits if most is not None and error > most]
    assert [miss.split()[0] for miss in found.misses] == expected
    assert found.ok == (not expected)


def test_a_spread_whose_mean_is_known() -> None:
    """Of Laplace's form: beyond k times the mean are exp(-k) of the log ratios, half on a side."""
    spread = Spread(0.1 * math.log(10))
    assert math.log(spread.factor(0.95)) == pytest.approx(0.1 * math.log(10))
    assert math.log(spread.factor(0.25)) == pytest.approx(-0.1 * math.log(2))
    assert spread.share_below(math.exp(0.2)) == pytest.approx(1 - math.exp(-2) / 2)
    assert spread.share_below(math.exp(-0.2)) == pytest.approx(math.exp(-2) / 2)
