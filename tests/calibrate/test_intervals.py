"""The shipped parameters of the model of errors are those that its fit gives."""

import pathlib

import numpy as np
import pytest

from calibrate.intervals import LeftOut, error_model_text, fit_error_model, left_out
from simtrain.hardware.interval import RESPECTS, error_model, judged_runs, read_error_model

NUMBERS = ("typical_error", "extrapolated", "machine", "software", "data_type", "model", "runs")


def test_the_fit_gives_the_shipped_parameters(tmp_path: pathlib.Path) -> None:
    """If errors changed: python -m calibrate.intervals > FILE."""
    fitted, shipped = fit_error_model(judged_runs()), error_model()
    for name in NUMBERS:
        assert getattr(fitted, name) == pytest.approx(getattr(shipped, name), rel=0.01), name
    assert (fitted.independent_runs, fitted.fitted_on) == (
        shipped.independent_runs,
        shipped.fitted_on,
    )
    file = tmp_path / "model.yaml"
    file.write_text(error_model_text(fitted), "utf-8")
    assert read_error_model(file).typical_error == pytest.approx(fitted.typical_error, rel=0.01)


def test_intervals_hold_for_classes_that_were_left_out() -> None:
    """Nine in ten, eight in ten in each third of the widths, narrow enough to decide by."""
    by_class, *others = left_out(error_model(), judged_runs())
    assert [each.what for each in (by_class, *others)] == ["class", *RESPECTS]
    assert 0.85 <= by_class.held <= 0.95
    # InternEvo's runs, all 20 % off, are in the middle third, and nothing known tells them apart.
    assert all(0.8 <= share <= 0.99 for share in by_class.held_by_third)
    assert by_class.median_width <= 0.45
    for each in (by_class, *others):
        assert float(each.full_widths.max()) <= 1.5 and each.held >= 0.85


def test_what_was_left_out_by_hand() -> None:
    """Three narrow runs, of which two are inside, and two classes of different widths."""
    errors, widths = np.array([0.1, 0.2, 0.4, 0.5, 0.9]), np.array([0.3, 0.3, 0.3, 1.0, 1.0])
    result = LeftOut("class", errors, widths, np.ones(5))
    assert result.held == pytest.approx(4 / 5)
    assert result.median_width == pytest.approx(2 * np.sinh(0.3))
