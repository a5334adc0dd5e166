"""Errors by kind become intervals: what validate writes is what predictions read."""

import dataclasses
import math
import pathlib
import random
import shutil

import pytest

from simtrain.base.resources import find_profile
from simtrain.hardware.interval import errors_of
from simtrain.hardware.run_kind import RunKind
from simtrain.hardware.validated_on import validated_on
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.validation import (
    Prediction,
    ValidatedRun,
    Validation,
    error_classes,
    errors_text,
)
from tests.helpers.toys import small

EVALUATION = Evaluator().evaluate(small())
assert EVALUATION.run
TIME_S = EVALUATION.run.iteration_time_s
KIND = RunKind("h100_sxm", "megatron_core", "bf16", has_experts=False)


def measured(error: float, kind: RunKind = KIND, extrapolated: float = 0.0) -> ValidatedRun:
    """Return a run whose predicted time is off by an error."""
    peaks, measured_s = (None, None), TIME_S / (1 + error)
    return ValidatedRun(
        "",
        "m",
        "f",
        1,
        Prediction.of(EVALUATION),
        "",
        measured_s,
        *peaks,
        kind,
        extrapolated,
        None,
        True,
        (),
    )


def test_a_class_has_the_errors_of_its_runs_and_what_is_extrapolated() -> None:
    rows = [measured(0.1, extrapolated=0.5), measured(-0.2), measured(0.0)]
    (runs,) = error_classes(Validation("h100_sxm", rows), "x").measured_runs
    assert runs.errors == [-0.2, 0.0, 0.1]
    assert runs.extrapolated == 0.167
    assert (runs.num_runs, runs.worst_error) == (3, -0.2)
    assert runs.mean_error == pytest.approx(0.1)
    assert runs.log_ratios == pytest.approx([math.log(0.8), 0.0, math.log(1.1)])


def test_pairs_have_the_error_of_their_ratio() -> None:
    """Half of the runs are 10 % too slow: 100 of 190 pairs are off by 1.1, the others right."""
    errors = [0.0] * 10 + [0.1] * 10
    (runs,) = error_classes(Validation("h100_sxm", [*map(measured, errors)]), "x").measured_runs
    assert runs.pairs and runs.pairs.num_pairs == math.comb(20, 2)
    assert (runs.pairs.p50, runs.pairs.p90) == (pytest.approx(0.1), pytest.approx(0.1))


def test_few_runs_on_one_node_are_one_class_with_those_on_several() -> None:
    one_node = dataclasses.replace(KIND, nodes="one")
    few = [measured(0.1)] * 25 + [measured(0.2, one_node)] * 3
    (runs,) = error_classes(Validation("h100_sxm", few), "x").measured_runs
    assert (runs.nodes, runs.num_runs) == (None, 28)
    many = [measured(0.1)] * 25 + [measured(0.2, one_node)] * 20
    classes = error_classes(Validation("h100_sxm", many), "x").measured_runs
    means = {runs.nodes: runs.mean_error for runs in classes}
    assert means == pytest.approx({"several": 0.1, "one": 0.2})


def test_a_written_file_gives_intervals_that_hold_for_other_runs(tmp_path: pathlib.Path) -> None:
    """Errors from one half, coverage on the other: more than nine in ten, because of other
    publications runs may differ more.
    """
    draw = random.Random(1)
    errors = [math.expm1(draw.choice((-1, 1)) * draw.expovariate(10)) for _ in range(2000)]
    profile = tmp_path / "mine.yaml"
    shutil.copy(find_profile("h100_sxm"), profile)
    (tmp_path / "validated_on").mkdir()
    seen = error_classes(Validation(str(profile), [*map(measured, errors[:1000])]), "x")
    (tmp_path / "validated_on" / "mine.yaml").write_text(errors_text(seen), "utf-8")
    assert validated_on(str(profile)) == seen
    kind = dataclasses.replace(KIND, cluster=str(profile))
    interval = errors_of(kind).around(1.0)
    unseen_s = [1 / (1 + error) for error in errors[1000:]]
    assert 0.88 < sum(map(interval.has, unseen_s)) / 1000 < 0.97
    assert 0.45 < sum(map(interval.has_in_half, unseen_s)) / 1000 < 0.65
    assert interval.basis == "from 1,000 measured runs like this one"
