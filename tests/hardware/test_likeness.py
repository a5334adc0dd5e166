"""Errors to expect follow from judged runs and from one's own, by laws that no data may break."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.hardware.evidence import MeasuredRuns, RunKind, traits_of
from simtrain.hardware.likeness import JudgedClass, OwnRun, RunErrors, error_model, shape_of
from simtrain.scenario import load_scenario

SHAPE = shape_of(load_scenario("llama3_8b"), 0.0, 0.4)
KIND = RunKind("h100_sxm", "megatron_core", "bf16", has_experts=False)
PRIOR = RunErrors(0.05, 0.1, 6.0)


def judged(errors: list[float]) -> JudgedClass:
    """Return a judged class with these errors, as dense transformers in 16 bits."""
    of = {"runs": "runs", "errors": errors, "software": "eager", "remark": "none", "source": "x"}
    return JudgedClass.of(MeasuredRuns.model_validate(of), "a")


def own(log_ratio: float, away: float = 0.0) -> OwnRun:
    """Return a run of one's own whose layers differ by a factor of two to a power."""
    shape = (*SHAPE[:4], SHAPE[4] + away, *SHAPE[5:])
    return OwnRun("h100_sxm", "megatron_core", shape, log_ratio)


def test_nothing_judged_gives_the_centre_and_the_spread_of_any_class() -> None:
    model = error_model()
    errors = model.expected(traits_of(KIND), [])
    assert (errors.centre, errors.freedom) == pytest.approx((model.centre, model.spread_runs))
    spread = model.unseen * model.spread * math.sqrt(1 + 1 / model.centre_runs)
    assert errors.spread == pytest.approx(spread)


def test_one_class_by_hand() -> None:
    """Eight runs of one publication on another machine: 8 / (1 + 8 / 4) x 0.5 of a run count."""
    shares = {"machine": 0.5, "software": 0.2, "independent_runs": 4.0}
    model = error_model().model_copy(
        update=shares | {"centre": 0.0, "centre_runs": 1.0, "spread": 0.1, "spread_runs": 3.0}
    )
    of = judged([math.exp(-0.3) - 1] * 8)
    errors = model.expected({**of.model_dump(), "machine": "b"}, [of])
    weight = 8 / 3 * 0.5
    centre = weight * 0.3 / (1 + weight)
    assert errors.centre == pytest.approx(centre)
    assert errors.freedom == pytest.approx(3 + weight)
    variance = (3 * 0.01 + weight * (0.3 - centre) ** 2) / (3 + weight)
    spread = model.unseen * math.sqrt(variance * (1 + 1 / (1 + weight)))
    assert errors.spread == pytest.approx(spread, rel=1e-3)


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_any_number_of_runs_of_a_publication_counts_as_few(one: int, other: int) -> None:
    model = error_model()
    classes = [judged([0.1] * number) for number in (one, other)]
    errors = model.expected(classes[0].model_dump(), classes)
    assert errors.freedom <= model.spread_runs + model.independent_runs + 1e-9
    assert classes[0].mean <= errors.centre <= model.centre


def test_half_widths_are_quantiles_of_students_t() -> None:
    widths = [RunErrors(0.0, 1.0, 4.0).half_width(share) for share in (0.5, 0.9)]
    assert widths == pytest.approx([0.7407, 2.1318], rel=0.005)


def conditioned(*runs: OwnRun) -> RunErrors:
    return error_model().given(PRIOR, SHAPE, runs)


def test_two_own_runs_by_hand() -> None:
    """The conditional mean and variance of a normal distribution, by the inverse of a 2 x 2."""
    model = error_model()
    first, second = own(0.2, 1.0), own(-0.1, -2.0)
    near, far, between = (
        (1 - model.of_a_run) * math.exp(-model.distance * distance) for distance in (1, 2, 3)
    )
    z = [(each.log_ratio - PRIOR.centre) / PRIOR.spread for each in (first, second)]
    scale = 1 - between**2
    weights = (near - far * between) / scale, (far - near * between) / scale
    moved = weights[0] * z[0] + weights[1] * z[1]
    likeness = weights[0] * near + weights[1] * far
    surprise = (z[0] ** 2 - 2 * between * z[0] * z[1] + z[1] ** 2) / scale
    errors = conditioned(first, second)
    assert errors.centre == pytest.approx(PRIOR.centre + PRIOR.spread * moved)
    assert errors.likeness == pytest.approx(likeness)
    freedom = PRIOR.freedom + 2 * likeness
    assert errors.freedom == pytest.approx(freedom)
    growth = (PRIOR.freedom + likeness * surprise) / freedom
    assert errors.spread == pytest.approx(PRIOR.spread * math.sqrt((1 - likeness) * growth))


def test_what_two_runs_share_by_hand() -> None:
    """The partial correlation given an own run that is 1 from the first and 2 from the second."""
    model, shapes = error_model(), (own(0.0).shape, own(0.0, 3.0).shape)
    near, far, apart = (
        (1 - model.of_a_run) * math.exp(-model.distance * distance) for distance in (1, 2, 3)
    )
    assert model.shared(shapes, []) == pytest.approx(apart)
    partial = (apart - near * far) / math.sqrt((1 - near**2) * (1 - far**2))
    assert model.shared(shapes, [own(0.3, 1.0)]) == pytest.approx(partial)


def test_no_own_run_changes_nothing_and_neither_does_one_unlike_everything() -> None:
    assert conditioned() == PRIOR
    far = conditioned(own(0.5, 300.0))
    assert far.centre == pytest.approx(PRIOR.centre)
    assert far.spread == pytest.approx(PRIOR.spread)


@given(st.floats(-0.6, 0.6))
def test_the_repetition_of_an_own_run_has_its_error_but_for_what_is_of_a_run(
    log_ratio: float,
) -> None:
    errors = conditioned(own(log_ratio))
    share = error_model().of_a_run
    expected = share * PRIOR.centre + (1 - share) * log_ratio
    assert errors.centre == pytest.approx(expected)


@given(st.floats(-0.6, 0.6), st.floats(0, 20), st.floats(0, 20))
def test_a_run_counts_less_the_farther_it_is(log_ratio: float, one: float, other: float) -> None:
    near, far = (conditioned(own(log_ratio, away)) for away in sorted((one, other)))
    assert abs(near.centre - PRIOR.centre) >= abs(far.centre - PRIOR.centre) - 1e-9
    assert near.likeness >= far.likeness - 1e-9


def test_a_run_that_is_off_by_more_than_a_factor_of_two_counts_as_twice() -> None:
    assert conditioned(own(3.0)) == conditioned(own(math.log(2)))
