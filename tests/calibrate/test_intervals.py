"""The shipped parameters of the model of errors are those that its fit gives."""

import pathlib

import numpy as np
import pytest

from calibrate.intervals import LeftOut, error_model_text, fit_error_model, judged_runs, left_out
from simtrain.hardware.evidence import RESPECTS
from simtrain.hardware.likeness import error_model


def test_the_fit_gives_the_shipped_parameters(tmp_path: pathlib.Path) -> None:
    """If errors changed: python -m calibrate.intervals > FILE."""
    fitted, shipped = fit_error_model(judged_runs()), error_model()
    file = tmp_path / "model.yaml"
    file.write_text(error_model_text(fitted), "utf-8")
    written = error_model(file).model_dump()
    for name, value in shipped.model_dump().items():
        if isinstance(value, float):
            assert written[name] == pytest.approx(value, rel=0.01), name
        else:
            assert written[name] == value, name


def test_intervals_hold_for_publications_that_were_left_out() -> None:
    """Nine in ten, also in each third of the widths, narrow enough to decide by."""
    by_source, *others = left_out(error_model(), judged_runs())
    assert [each.what for each in others] == [name.replace("_", " ") for name in RESPECTS]
    assert all(0.85 <= share <= 0.95 for share in (by_source.held, *by_source.held_by_third))
    assert 0.45 <= by_source.held_in_half <= 0.6
    assert by_source.median_width <= 0.45
    for each in others:
        assert float(each.full_widths.max()) <= 1.5 and each.held >= 0.85


def test_what_was_left_out_by_hand() -> None:
    """Three narrow runs, of which two are inside, and two classes of different widths."""
    errors, widths = np.array([0.1, 0.2, 0.4, 0.5, 0.9]), np.array([0.3, 0.3, 0.3, 1.0, 1.0])
    result = LeftOut("class", errors, widths, widths / 2, np.ones(5))
    assert result.held == pytest.approx(4 / 5)
    assert result.held_in_half == pytest.approx(2 / 5)
    assert result.held_by_third == pytest.approx([1, 1 / 2, 1])
    assert result.median_width == pytest.approx(2 * np.sinh(0.3))
