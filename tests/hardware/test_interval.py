"""Intervals follow from the errors of judged runs, by laws that no data may break."""

import math
import pathlib
import re
import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.resources import find_profile, list_profiles, list_stacks
from simtrain.errors import InputError
from simtrain.hardware.interval import ExpectedErrors, errors_of
from simtrain.hardware.judged_runs import PRIOR, JudgedRuns, judged_runs
from simtrain.hardware.run_kind import DOUBT, NUM_RESPECTS, Respect, RunKind
from simtrain.hardware.validated_on import MeasuredRuns, Quantiles, validated_on
from simtrain.scenario import load_scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import call

BF16 = RunKind("h100_sxm", "megatron_core", "bf16", has_experts=False)
RESPECTS = ("machine", "software", "data type", "experts", "kind of layers", "number of nodes")
SHARES = st.floats(0, 1)


def runs(num_runs: int, mean: float, worst: float, quantiles: Quantiles | None) -> MeasuredRuns:
    return MeasuredRuns(
        runs="runs",
        num_runs=num_runs,
        mean_error=mean,
        worst_error=worst,
        software="eager",
        quantiles=quantiles,
        remark="none",
        source="none",
    )


@st.composite
def groups(draw: st.DrawFn) -> JudgedRuns:
    """A class of judged runs with any errors, that differs from the kind in any respects."""
    low, high = draw(st.floats(-0.8, 0)), draw(st.floats(0, 2))
    worst = draw(st.sampled_from((low, high)))
    number, mean = draw(st.integers(1, 400)), draw(st.floats(0, 1)) * abs(worst)
    quantiles = Quantiles(p5=low, p25=low, p75=high, p95=high) if number >= 20 else None
    names = draw(st.sets(st.sampled_from(RESPECTS)))
    if "machine" in names and draw(st.booleans()):
        names.add(DOUBT)
    values = st.sampled_from(("one", "other", "third"))
    respects = tuple(Respect(name, "this", draw(values)) for name in sorted(names))
    return JudgedRuns(runs(number, mean, worst, quantiles), "h100_sxm", respects)


GROUPS = st.lists(groups(), max_size=6)


@given(GROUPS, SHARES)
def test_an_interval_is_never_wider_than_the_prior(classes: list[JudgedRuns], share: float) -> None:
    assert 0 < ExpectedErrors(classes).width(share) <= PRIOR == pytest.approx(math.log(1.6))


@given(GROUPS, SHARES, st.floats(0.01, 100), SHARES)
def test_an_interval_is_symmetric_in_log_ratio_above_the_least_time(
    classes: list[JudgedRuns], share: float, time_s: float, least: float
) -> None:
    free = ExpectedErrors(classes).around(time_s, share)
    assert free.p95_s / time_s == pytest.approx(time_s / free.p5_s) == 1 + free.within
    assert free.p75_s / time_s == pytest.approx(time_s / free.p25_s)
    assert free.p5_s < free.p25_s < time_s < free.p75_s < free.p95_s
    limited = ExpectedErrors(classes).around(time_s, share, least * time_s)
    assert limited.p5_s == max(free.p5_s, least * time_s) <= limited.p25_s <= time_s
    assert limited.p95_s == free.p95_s


@given(GROUPS, SHARES, SHARES)
def test_more_extrapolation_never_narrows(
    classes: list[JudgedRuns], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert ExpectedErrors(classes).width(low) <= ExpectedErrors(classes).width(high)


@given(st.lists(groups(), min_size=1, max_size=6), SHARES, st.data())
def test_fewer_runs_never_narrow(
    classes: list[JudgedRuns], share: float, data: st.DataObject
) -> None:
    """With the same errors, in all classes."""
    fewer = [
        replace(
            group,
            runs=group.runs.model_copy(
                update={"num_runs": data.draw(st.integers(1, group.runs.num_runs))}
            ),
        )
        for group in classes
    ]
    assert ExpectedErrors(fewer).width(share) >= ExpectedErrors(classes).width(share) - 1e-12


@given(st.lists(groups(), min_size=1, max_size=6), SHARES)
def test_taking_runs_away_never_narrows_unless_they_were_farther_off(
    classes: list[JudgedRuns], share: float
) -> None:
    taken, *kept = classes
    before, after = ExpectedErrors(classes).width(share), ExpectedErrors(kept).width(share)
    assert after >= before - 1e-12 or taken.farthest > after


@given(GROUPS, groups(), st.sampled_from(RESPECTS), SHARES)
def test_a_kind_of_which_nothing_was_judged_in_a_respect_is_never_narrower(
    classes: list[JudgedRuns], own: JudgedRuns, name: str, share: float
) -> None:
    """Such as a machine of which nothing was judged, beside one with runs like the kind."""
    judged = [*classes, replace(own, respects=())]
    unjudged = [
        replace(group, respects=(*group.respects, Respect(name, "", "judged")))
        if name not in group.names
        else group
        for group in judged
    ]
    assert ExpectedErrors(unjudged).width(share) >= ExpectedErrors(judged).width(share) - 1e-12


@given(groups(), st.sampled_from(RESPECTS), SHARES)
def test_runs_that_differ_in_more_respects_say_less(
    group: JudgedRuns, name: str, share: float
) -> None:
    farther = replace(group, respects=(*group.respects, Respect(name, "", "")))
    assert farther.width_for_kind(share) >= group.width_for_kind(share)


def test_runs_that_differ_in_all_respects_say_no_more_than_the_prior() -> None:
    every = tuple(Respect(name, "", "") for name in (*RESPECTS, DOUBT))
    assert len(every) == NUM_RESPECTS
    exact = JudgedRuns(runs(10**6, 0.0, 0.0, None), "h100_sxm", every)
    assert exact.width_for_kind(0.0) == pytest.approx(PRIOR, rel=1e-4)


@pytest.mark.parametrize("stack", list_stacks())
@pytest.mark.parametrize("data_type", ["bf16", "fp8"])
@pytest.mark.parametrize("has_experts", [False, True])
def test_no_shipped_machine_that_was_judged_is_wider_than_one_that_was_not(
    stack: str, data_type: str, has_experts: bool
) -> None:
    """H20, GH200 and others rest on datasheets and on other machines; of them nothing is judged."""
    judged, unjudged = [], []
    for cluster in list_profiles():
        errors, profile = validated_on(cluster), cluster
        kind = RunKind(profile, stack, data_type, has_experts)  # type: ignore[arg-type]
        doubtful = bool(errors and errors.doubt) or cluster in ("trn1", "h20", "mi300x")
        kind = replace(kind, is_doubtful=doubtful)
        width = errors_of(kind).width()
        assert width <= PRIOR
        if errors and errors.measured_runs:
            judged.append(width)
        elif doubtful:
            unjudged.append(width)
    assert min(unjudged) >= max(judged) - 1e-12


def test_a_kind_that_was_judged_has_an_interval_near_its_own_errors() -> None:
    errors = validated_on("h100_sxm")
    assert errors
    (group,) = [each for each in judged_runs(BF16) if not each.respects]
    assert group.runs == errors.measured_runs[0]
    assert group.farthest == pytest.approx(math.log(1.0599))
    # 46 runs, and the prior as one more.
    assert errors_of(BF16).width() == pytest.approx((46 * group.farthest + PRIOR) / 47)
    assert errors_of(BF16).around(1.0).basis == "from 46 measured runs like this one"
    fp16 = replace(BF16, data_type="fp16")
    assert errors_of(fp16).width() == errors_of(BF16).width()


def test_the_errors_of_experts_count_wherever_they_were_judged() -> None:
    """Dense runs of the same machine promise less than half of what experts on others are off."""
    dense, experts = errors_of(BF16), errors_of(replace(BF16, has_experts=True))
    assert experts.width() > 3 * dense.width()
    basis = experts.around(1.0).basis
    assert (
        basis == "none like this one was compared; 46 measured runs on h100_sxm differ in experts"
    )


def test_a_profile_of_ones_own_is_another_machine_until_it_is_judged(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "mine.yaml"
    shutil.copy(find_profile("h100_sxm"), file)
    own = replace(BF16, cluster=str(file))
    assert errors_of(own).width() == errors_of(replace(BF16, is_changed=True)).width()
    assert errors_of(own).width() > errors_of(BF16).width()
    (tmp_path / "validated_on").mkdir()
    far_off = runs(3, 0.3, -0.38, None).model_copy(update={"software": "megatron_core"})
    text = f"version: 1\nsummary: ours\nmeasured_runs: [{far_off.model_dump_json()}]\n"
    (tmp_path / "validated_on" / "mine.yaml").write_text(text, "utf-8")
    assert errors_of(own).width() >= -math.log1p(-0.38) - 1e-9 or errors_of(own).width() == PRIOR
    assert errors_of(own).around(1.0).basis == "from 3 measured runs like this one"


def test_quantiles_out_of_order_are_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.yaml"
    shutil.copy(find_profile("h100_sxm"), file)
    (tmp_path / "validated_on").mkdir()
    text = (find_profile("h100_sxm").parent / "validated_on/h100_sxm.yaml").read_text("utf-8")
    errors = tmp_path / "validated_on" / "mine.yaml"
    errors.write_text(re.sub(r"p5: -[0-9.]+", "p5: 0.5", text, count=1), "utf-8")
    with pytest.raises(InputError, match="must be in order"):
        validated_on(str(file))


def test_run_prints_the_interval_of_the_json() -> None:
    scenario = load_scenario("llama3_8b", ["cluster=b200_sxm"])
    result = simulate(scenario)
    printed = result.to_dict()["interval_s"]
    assert printed["p95"] / result.iteration_time_s == pytest.approx(1 + printed["within"])
    assert printed["within"] <= 0.6
    line = " ".join(call("run", "llama3_8b", "--set", "cluster=b200_sxm").stdout.split())
    assert re.search(rf"90 % interval {re.escape(result.interval.words)}; none like this one", line)
    assert Evaluator().interval(scenario, result.iteration_time_s) == result.interval
