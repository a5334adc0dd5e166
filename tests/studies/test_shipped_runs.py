"""The errors that profiles state of runs in docs/measured_runs are those of today's predictions."""

import statistics

import pytest

from simtrain.guests.importing.runs import read_runs
from simtrain.hardware.evidence import validated_on
from simtrain.studies.validation import RunSettings, error_classes, validate_runs
from tests.helpers.command_line import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def test_the_stated_errors_are_those_of_the_shipped_runs() -> None:
    """If a prediction moves, copy what `simtrain validate ... -o FILE.yaml` writes."""
    file = ROOT / "docs/measured_runs/h100_dgxc.csv"
    runs = read_runs([file], RunSettings("h100_sxm", "nemo", ()))
    validation = validate_runs(runs, "h100_sxm")
    assert validation.num_rows == validation.num_simulated == 98
    computed = {one.data_types[0]: one for one in error_classes(validation, "x").measured_runs}
    stated = validated_on("h100_sxm")
    assert stated
    shipped = [runs for runs in stated.measured_runs if runs.source.endswith(file.name)]
    assert len(shipped) == len(computed)
    for runs_of_type in shipped:
        expected = computed[runs_of_type.data_types[0]]
        names = ("errors", "extrapolated", "pairs")
        for name in names:
            assert getattr(runs_of_type, name) == getattr(expected, name), name


def test_intervals_hold_90_percent_of_the_shipped_runs_and_are_narrow() -> None:
    runs = read_runs(
        [ROOT / "docs/measured_runs/h100_dgxc.csv"], RunSettings("h100_sxm", "nemo", ())
    )
    validation = validate_runs(runs, "h100_sxm")
    assert (validation.interval_coverage or 0.0) >= 0.9
    assert 0.4 <= (validation.half_interval_coverage or 0.0) <= 0.65
    widths = [row.interval.within for row in validation.rows if row.interval]
    assert statistics.median(widths) < 0.2
