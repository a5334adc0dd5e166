"""Intervals follow from the errors of judged runs, by laws that no data may break."""

import math
import pathlib
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.resources import find_profile, list_profiles, list_stacks
from simtrain.hardware.evidence import MeasuredRuns, RunKind, validated_on
from simtrain.hardware.interval import (
    RESPECTS,
    ErrorModel,
    ExpectedErrors,
    ExpectedScale,
    JudgedRuns,
    errors_of,
    judged_runs,
    traits_of,
)
from simtrain.hardware.interval import error_model as shipped_model
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate

BF16 = RunKind("h100_sxm", "megatron_core", "bf16", has_experts=False)
SHARES = st.floats(0, 1)
DEVIATIONS = st.floats(0, 1)


def runs(*errors: float) -> MeasuredRuns:
    return MeasuredRuns(
        runs="runs", errors=list(errors), software="eager", remark="none", source="none"
    )


@st.composite
def models(draw: st.DrawFn) -> ErrorModel:
    return ErrorModel(
        version=1,
        typical_error=draw(st.floats(0.01, 0.5)),
        extrapolated=draw(DEVIATIONS),
        machine=draw(DEVIATIONS),
        software=draw(DEVIATIONS),
        data_type=draw(DEVIATIONS),
        model=draw(DEVIATIONS),
        runs=draw(DEVIATIONS),
        independent_runs=draw(st.floats(1, 100)),
        fitted_on="nothing",
    )


def judged(
    errors: list[float], extrapolated: float = 0.0, cluster: str = "a", software: str = "eager"
) -> JudgedRuns:
    """Return a judged class with these errors, as dense transformers in 16 bits."""
    update = {"extrapolated": extrapolated, "software": software}
    return JudgedRuns(runs(*errors).model_copy(update=update), cluster)


KINDS = st.builds(
    RunKind,
    st.sampled_from("abc"),
    st.sampled_from(["eager", "nemo"]),
    st.just("bf16"),
    st.booleans(),
)
TRAITS = st.builds(traits_of, KINDS)
ERRORS = st.lists(st.floats(-0.4, 0.6), min_size=1, max_size=30)
CLASSES = st.lists(
    st.builds(judged, ERRORS, SHARES, st.sampled_from("abc"), st.sampled_from(["eager", "nemo"])),
    max_size=6,
)


# ----------------------------------------------------------------------------------- the model


@given(models(), TRAITS, CLASSES, SHARES)
def test_what_was_judged_never_makes_a_scale_less_certain(
    model: ErrorModel, traits: dict[str, str], classes: list[JudgedRuns], share: float
) -> None:
    known = model.expected(traits, classes, share)
    assert 0 <= known.variance <= model.expected(traits, [], share).variance + 1e-9
    for number in range(len(classes)):
        fewer = model.expected(traits, classes[:number], share)
        assert fewer.variance >= known.variance - 1e-9


@given(models(), TRAITS, CLASSES, SHARES, SHARES)
def test_more_extrapolation_never_narrows(
    model: ErrorModel,
    traits: dict[str, str],
    classes: list[JudgedRuns],
    one: float,
    other: float,
) -> None:
    low, high = (model.expected(traits, classes, share).mean for share in sorted((one, other)))
    assert low <= high + 1e-9


def test_nothing_judged_gives_the_typical_error_with_all_deviations() -> None:
    model = shipped_model()
    scale = model.expected(dict.fromkeys(RESPECTS, "unknown"), [])
    assert scale.mean == pytest.approx(math.log(model.typical_error))
    deviations = (*model.deviations, model.runs)
    assert scale.variance == pytest.approx(math.fsum(each**2 for each in deviations))


def test_two_classes_by_hand() -> None:
    """Of one class that shares the machine alone: (machine) / (prior + its own) of its distance."""
    model = ErrorModel(
        version=1,
        typical_error=0.1,
        extrapolated=0.0,
        machine=0.5,
        software=0.3,
        data_type=0.0,
        model=0.0,
        runs=0.4,
        independent_runs=4.0,
        fitted_on="nothing",
    )
    of = judged([math.exp(0.2) - 1, math.exp(-0.2) - 1] * 2, software="nemo")
    kind = {**of.traits, "software": "eager"}
    # Of four runs: ln 4 - digamma(4) = 0.130177, trigamma(4) = 0.283823.
    variance = 0.25 + 0.09 + 0.16 + 0.283823 + 1 / 4
    scale = model.expected(kind, [of])
    distance = math.log(2) + 0.130177
    assert scale.mean == pytest.approx(math.log(0.1) + 0.25 / variance * distance, rel=1e-3)
    assert scale.variance == pytest.approx(0.25 + 0.09 + 0.16 - 0.25**2 / variance, rel=1e-3)


def test_a_width_holds_its_share_of_draws() -> None:
    """Scales are lognormal, errors of one scale have Laplace's form."""
    generator = np.random.default_rng(1)
    scale = ExpectedScale(math.log(0.1), 0.5)
    scales = np.exp(scale.mean + math.sqrt(scale.variance) * generator.standard_normal(200_000))
    errors = generator.exponential(scales)
    for share in (0.5, 0.9):
        assert float((errors <= scale.width(share)).mean()) == pytest.approx(share, abs=0.003)


# ------------------------------------------------------------------------------------ intervals


@given(st.lists(st.floats(-0.4, 0.6), min_size=1, max_size=9), SHARES, st.floats(0.01, 100), SHARES)
def test_an_interval_is_symmetric_in_log_ratio_above_the_least_time(
    errors: list[float], share: float, time_s: float, least: float
) -> None:
    expected = ExpectedErrors(BF16, [JudgedRuns(runs(*errors), "h100_sxm")], shipped_model())
    free = expected.around(time_s, share)
    assert free.p95_s / time_s == pytest.approx(time_s / free.p5_s) == 1 + free.within
    assert free.p75_s / time_s == pytest.approx(time_s / free.p25_s)
    assert free.p5_s < free.p25_s < time_s < free.p75_s < free.p95_s
    limited = expected.around(time_s, share, least * time_s)
    assert limited.p5_s == max(free.p5_s, least * time_s) <= limited.p25_s <= time_s
    assert limited.p95_s == free.p95_s


def test_nine_of_ten_times_stay_within_a_factor_of_two() -> None:
    """In Laplace's form half of them then stay within 2 to the power of ln 2 / ln 10."""
    far_off = judged([30.0], cluster="h100_sxm", software="megatron_core")
    interval = ExpectedErrors(BF16, [far_off], shipped_model()).around(1.0)
    assert (interval.p5_s, interval.p95_s) == pytest.approx((0.5, 2.0))
    assert interval.p75_s == pytest.approx(2 ** math.log10(2))
    assert interval.words == "within 100 % nine times in ten (500 ms to 2 s)"
    bound = ExpectedErrors(replace(BF16, is_lower_bound=True), [far_off], shipped_model())
    assert (bound.around(1.0).p5_s, bound.around(1.0).p95_s) == pytest.approx((1.0, 2.0))
    assert (bound.around(1.0).words, bound.around(1.0).within_words) == (
        "1 s or more",
        "a lower bound",
    )
    assert bound.around(1.0).basis.startswith("no run is faster")


@pytest.mark.ci
@pytest.mark.parametrize("data_type", ["bf16", "fp8", "fp4"])
@pytest.mark.parametrize("has_experts", [False, True])
def test_intervals_of_all_shipped_machines_and_stacks_can_be_decided_by(
    data_type: str, has_experts: bool
) -> None:
    """None is wider than 150 % of the prediction, from end to end."""
    groups, model = judged_runs(), shipped_model()
    for cluster in list_profiles():
        for stack in [*list_stacks(), "unknown"]:
            kind = RunKind(cluster, stack, data_type, has_experts)  # type: ignore[arg-type]
            interval = ExpectedErrors(replace(kind, is_doubtful=True), groups, model).around(1.0)
            assert 0.04 < interval.p95_s - interval.p5_s <= 1.5 + 1e-9


def test_a_kind_that_was_judged_has_an_interval_near_its_own_errors() -> None:
    errors = validated_on("h100_sxm")
    assert errors
    expected = errors_of(BF16)
    assert 0.05 < expected.width() < 0.16
    assert expected.around(1.0).basis == "from 46 measured runs like this one"
    assert errors_of(replace(BF16, data_type="fp16")).width() == expected.width()


def test_the_runs_that_an_interval_follows_from_are_named() -> None:
    def basis(kind: RunKind, *groups: JudgedRuns, extrapolated: float = 0.0) -> str:
        return ExpectedErrors(kind, groups, shipped_model()).around(1.0, extrapolated).basis

    assert basis(BF16) == "no run was compared"
    same = judged([0.1, 0.2], cluster="h100_sxm", software="megatron_core")
    for share, also in ((0.004, ""), (0.006, "; 1% of kernel time is extrapolated")):
        named = basis(BF16, same, extrapolated=share)
        assert named == f"from 2 measured runs like this one{also}"
    other = replace(BF16, has_experts=True, is_doubtful=True)
    assert basis(other, judged([0.1], cluster="h100_sxm"), judged([0.1])) == (
        "none like this one was compared; 1 measured run on h100_sxm differ in software and "
        "experts; the profile is doubtful"
    )


def test_a_doubtful_machine_is_no_narrower_than_its_own_runs_or_than_what_is_assumed() -> None:
    doubtful = replace(BF16, cluster="b200_sxm", is_doubtful=True)
    errors = validated_on("b200_sxm")
    assert errors
    dense, *_ = errors.measured_runs
    mean = 2 * math.fsum(map(abs, dense.log_ratios)) / dense.num_runs
    assert errors_of(doubtful).width() >= -math.log(0.1) * mean - 1e-12
    assert errors_of(replace(doubtful, cluster="h20")).width() >= math.log(1.6)
    stated = replace(BF16, cluster="h200_sxm", stated_error=0.9)
    assert errors_of(stated).width() == pytest.approx(math.log(1.9))


def test_a_profile_of_ones_own_is_another_machine_until_it_is_judged(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "mine.yaml"
    shutil.copy(find_profile("h100_sxm"), file)
    own = replace(BF16, cluster=str(file))
    changed = errors_of(replace(BF16, is_changed=True))
    assert errors_of(own).width() == pytest.approx(changed.width())
    unjudged = errors_of(own).width()
    assert unjudged > errors_of(BF16).width()
    (tmp_path / "validated_on").mkdir()
    far_off = runs(0.3, -0.38, 0.3).model_copy(update={"software": "megatron_core"})
    text = f"version: 2\nsummary: ours\nmeasured_runs: [{far_off.model_dump_json()}]\n"
    (tmp_path / "validated_on" / "mine.yaml").write_text(text, "utf-8")
    assert errors_of(own).width() > 1.2 * unjudged
    assert errors_of(own).around(1.0).basis == "from 3 measured runs like this one"


def test_a_run_that_waits_for_its_host_has_a_wider_interval() -> None:
    expected = errors_of(BF16)
    free, bound = expected.around(1.0), expected.around(1.0, host_bound=0.5)
    assert free == expected.around(1.0, host_bound=0.05)
    assert math.log(bound.p95_s) == pytest.approx(0.455) and "wait for their hosts" in bound.basis
    tiny = load_scenario("llama3_8b", ["model.hidden_size=256", "model.ffn_hidden_size=512"])
    assert simulate(tiny).interval.within > 0.6
    assert simulate(load_scenario("llama3_8b")).interval.basis.startswith("from 46 measured runs")
