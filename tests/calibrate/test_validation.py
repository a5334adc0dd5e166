"""Validation of a profile on held-out measurements: errors, limits, picture, command."""

import os
import pathlib
import re
import tempfile
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from calibrate.records.schema import FILE_NAME, GemmRecord, Measurement, Timing
from calibrate.validation import validate_profile
from simtrain.base.accuracy import ErrorTable
from simtrain.base.entry import Entry
from simtrain.base.resources import find_profile
from simtrain.errors import InputError
from simtrain.hardware.evidence import validated_on
from simtrain.hardware.interval import Interval
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import Outcome, call
from tests.helpers.toys import a100
from tests.helpers.validation_records import (
    HEADER,
    iteration,
    iteration_record,
    layer,
    layer_record,
)

PRODUCT = GemmRecord(m=100, n=100, k=100, time=Timing(median_s=1, spread_s=0, num_samples=9))


def simulated_records() -> list[Measurement]:
    return [
        PRODUCT,
        layer_record(layer("none"), slower=1.7, held_out=False),
        layer_record(layer("selective")),
        layer_record(layer("full", tensor=2, sequence_parallel=True)),
        iteration_record(iteration("none")),
        iteration_record(iteration("selective", tensor=2, pipeline=2)),
    ]


def folder_of(folder: pathlib.Path, records: list[Measurement]) -> pathlib.Path:
    lines = [each.model_dump_json() + "\n" for each in (HEADER, *records)]
    (folder / FILE_NAME).write_text("".join(lines), encoding="utf-8")
    return folder


def validate(*arguments: object) -> Outcome:
    with patch.dict(os.environ, COLUMNS="120"):
        return call("validate", *map(str, arguments), "--cluster", "a100_sxm4_80gb")


def parts_of(*records: Measurement) -> dict[str, ErrorTable]:
    found = validate_profile(a100(), HEADER, records)
    return {part.title: part for part in found.parts}


# -------------------------------------------------------------------------------------- the errors


def test_records_equal_to_the_simulation_have_no_error() -> None:
    found = validate_profile(a100(), HEADER, simulated_records())
    assert [(part.title, len(part.rows)) for part in found.parts] == [
        ("layers", 4),
        ("iterations", 2),
        ("memory", 2),
    ]
    assert [part.max_abs_error for part in found.parts] == [0, 0, 0]
    assert found.ok
    assert found.num_fitted == 2


def test_errors_equal_the_known_deviations_of_the_records() -> None:
    """If the measured time is 1.25 times the predicted one, the error is 1/1.25 - 1 = -20 %."""
    parts = parts_of(
        layer_record(layer("none"), slower=1.25),
        iteration_record(iteration("none"), slower=0.8),
        iteration_record(iteration("full"), slower=1.25),
    )
    assert [row.error for row in parts["layers"].rows] == [0, pytest.approx(-0.2)]
    assert parts["layers"].mean_abs_error == pytest.approx(0.1)
    assert parts["layers"].bias == pytest.approx(-0.1)
    assert parts["layers"].max_abs_error == pytest.approx(0.2)
    assert [row.error for row in parts["iterations"].rows] == pytest.approx([0.25, -0.2])
    assert parts["iterations"].mean_abs_error == pytest.approx(0.225)
    assert parts["iterations"].bias == pytest.approx(0.025)
    assert parts["memory"].max_abs_error == 0


# -------------------------------------------------------------------------------------- refused


def test_fitted_records_are_not_used_for_validation() -> None:
    fitted = layer_record(layer("none"), held_out=False)
    with pytest.raises(InputError, match=r"E731 .*\n  reason: 2 records, none of them"):
        validate_profile(a100(), HEADER, [PRODUCT, fitted])


# ---------------------------------------------------------------------------------- the command


def test_the_command_prints_every_part_and_ends_with_ok(
    tmp_path: pathlib.Path, snapshot: SnapshotAssertion
) -> None:
    done = validate(folder_of(tmp_path, simulated_records()))
    assert done.exit_code == 0
    assert re.sub(r" *\d+\.\d+(?!\d*%)", "#", done.stdout) == snapshot


@pytest.mark.parametrize(("slower", "misses"), [(1.25, []), (1.6, ["more than one of ten times"])])
def test_nine_of_ten_times_are_within_the_interval_that_a_profile_states(
    slower: float, misses: list[str]
) -> None:
    stated = Entry(value=0.3, source="made up")
    profile = a100().model_copy(update={"uncertainty": stated})
    records = [layer_record(layer("none"), slower=slower), iteration_record(iteration("none"))]
    found = validate_profile(profile, HEADER, records)
    # Two passes of a layer, of which one is slower, and one iteration.
    assert found.num_within == ((2 if misses else 3), 3)
    assert found.misses == misses


# Means of 3 % over both passes; 8 % of a pass, 5 % of an iteration and 3 % of a peak at worst.
LIMITS: list[tuple[list[float], float, int, list[str]]] = [
    ([1.06, 1.06], 1.05, 29, []),
    ([1.07, 1.07], 1.0, 32, ["layers", "memory"]),
    ([1.09, 1.0, 1.0, 1.0], 1.06, 0, ["layers", "iterations"]),
    ([4.0], 4.0, 0, ["layers", "iterations", "mean of all times"]),
]


@pytest.mark.parametrize(("of_layers", "slower", "more_bytes", "misses"), LIMITS)
def test_the_limits_of_a_profile_that_states_no_uncertainty(
    of_layers: list[float], slower: float, more_bytes: int, misses: list[str]
) -> None:
    exact = iteration_record(iteration("none"), slower=slower)
    assert exact.peak_bytes
    peak = exact.peak_bytes * (1000 + more_bytes) // 1000
    records = [layer_record(layer("none"), slower=each) for each in of_layers]
    records += [exact.model_copy(update={"peak_bytes": peak})]
    found = validate_profile(a100(), HEADER, records)
    assert found.misses == misses and found.num_within_uncertainty is None


# ---------------------------------------------------------------- what later predictions rest on


def own_profile(folder: pathlib.Path, uncertainty: float = 0.0) -> pathlib.Path:
    file = folder / "mine.yaml"
    text = find_profile("a100_sxm4_80gb").read_text("utf-8")
    stated = f"uncertainty: {{value: {uncertainty}, source: made up}}\n"
    file.write_text(text + stated * (uncertainty > 0), "utf-8")
    return file


def interval_on(profile: pathlib.Path) -> Interval:
    small = Scenario.model_validate(iteration("none") | {"cluster": str(profile)})
    return simulate(small).interval


@given(off=st.floats(0.7, 1.5))
@settings(max_examples=6)
def test_a_profile_has_the_interval_of_its_own_validation(off: float) -> None:
    """Its own iterations are inside, whatever runs of other machines and its own fit say."""
    with tempfile.TemporaryDirectory() as name:
        profile = own_profile(pathlib.Path(name), 0.01)
        slow = [iteration_record(iteration(each), slower=off) for each in ("none", "full")]
        folder = folder_of(pathlib.Path(name), slow)
        call("validate", str(folder), "--cluster", str(profile))
        errors = validated_on(str(profile))
        assert errors
        (group,) = errors.measured_runs
        assert (group.num_runs, group.seen) == (2, "blind")
        assert group.mean_error == pytest.approx(abs(1 / off - 1), abs=1e-4)
        interval = interval_on(profile)
        assert interval.within >= max(off, 1 / off) - 1 - 1e-3
        assert "(2 runs)" in interval.basis
        call("validate", str(folder), "--cluster", str(profile))
        assert validated_on(str(profile)) == errors


def test_other_errors_stay_and_shipped_profiles_are_not_touched(tmp_path: pathlib.Path) -> None:
    profile, folder = own_profile(tmp_path), folder_of(tmp_path, simulated_records())
    (tmp_path / "validated_on").mkdir()
    shipped = find_profile("a100_sxm4_80gb").parent / "validated_on/a100_sxm4_80gb.yaml"
    text = shipped.read_text("utf-8")
    (tmp_path / "validated_on/mine.yaml").write_text(text, "utf-8")
    before = validated_on(str(profile))
    assert call("validate", str(folder), "--cluster", str(profile)).exit_code == 0
    after = validated_on(str(profile))
    assert before and after and after.measured_runs[:-1] == before.measured_runs
    validate(folder)
    assert shipped.read_text("utf-8") == text
