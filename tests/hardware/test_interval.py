"""Intervals lie around a prediction as judged runs and one's own did."""

import math
import pathlib
import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.resources import find_profile, list_profiles, list_stacks
from simtrain.hardware.interval import (
    Interval,
    RatioInterval,
    interval_of,
    ratio_interval,
    shared_errors,
)
from simtrain.hardware.likeness import WIDEST, OwnRun, RunErrors, error_model
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate
from tests.hardware.test_likeness import KIND, SHAPE

UNJUDGED = replace(KIND, cluster="gh200")


def width(interval: Interval) -> float:
    return math.log(interval.p95_s / interval.expected_s)


@given(st.floats(0.01, 100), st.floats(0, 1), st.floats(0, 1))
def test_an_interval_is_symmetric_in_log_ratio_above_the_least_time(
    time_s: float, least: float, host_bound: float
) -> None:
    shape = (host_bound, *SHAPE[1:])
    free, limited = (interval_of(KIND, shape, time_s, part * time_s) for part in (0, least))
    assert free.p95_s / free.expected_s == pytest.approx(free.expected_s / free.p5_s)
    assert free.p75_s / free.expected_s == pytest.approx(free.expected_s / free.p25_s)
    assert free.p5_s < free.p25_s < free.expected_s < free.p75_s < free.p95_s
    assert free.within == pytest.approx(max(free.p95_s / time_s, time_s / free.p5_s) - 1)
    assert limited.p5_s == max(free.p5_s, least * time_s) <= limited.p25_s
    assert limited.p95_s == free.p95_s


@pytest.mark.ci
@pytest.mark.parametrize("data_type", ["bf16", "fp8", "fp4"])
@pytest.mark.parametrize("has_experts", [False, True])
def test_intervals_of_all_shipped_machines_and_stacks_can_be_decided_by(
    data_type: str, has_experts: bool
) -> None:
    """None reaches farther than a factor of two, and none is narrower than 4 %."""
    for cluster in list_profiles():
        for stack in [*list_stacks(), "unknown"]:
            of = {"cluster": cluster, "software": stack, "data_type": data_type}
            kind = replace(KIND, **of, has_experts=has_experts, is_doubtful=True)  # type: ignore[arg-type]
            assert 0.04 < width(interval_of(kind, SHAPE, 1.0)) <= WIDEST + 1e-9


def test_the_words_say_what_runs_an_interval_follows_from() -> None:
    judged, unjudged = interval_of(KIND, SHAPE, 10.0), interval_of(UNJUDGED, SHAPE, 10.0)
    assert judged.basis.startswith("from 52 measured runs like this one, and others: expect 10.")
    assert unjudged.basis.startswith("none like this one was compared; from ")
    assert interval_of(replace(KIND, data_type="fp16"), SHAPE, 10.0) == judged
    assert width(interval_of(replace(KIND, software="unknown"), SHAPE, 10.0)) > width(judged)


def test_a_machine_that_nobody_judged_is_no_narrower_than_what_it_states_or_is_assumed() -> None:
    doubtful = interval_of(replace(UNJUDGED, is_doubtful=True), SHAPE, 1.0)
    assert width(doubtful) == pytest.approx(math.log(1.6))
    stated = interval_of(replace(UNJUDGED, stated_error=0.9), SHAPE, 1.0)
    assert width(stated) == pytest.approx(math.log(1.9))
    judged = replace(KIND, is_doubtful=True, stated_error=0.9)
    assert interval_of(judged, SHAPE, 1.0) == interval_of(KIND, SHAPE, 1.0)


def test_own_runs_of_the_machine_and_stack_move_and_narrow_an_interval() -> None:
    of_own = OwnRun("h100_sxm", "nemo", SHAPE, 0.3)  # a variation of the stack
    free, anchored = (interval_of(KIND, SHAPE, 1.0, anchors=own) for own in ([], [of_own]))
    assert math.log(anchored.expected_s) == pytest.approx(0.28, abs=0.02)
    assert anchored.basis.endswith(f" 32 % longer (1 run): expect {anchored.expected_s:.4g} s")
    for other in (replace(of_own, machine="h200_sxm"), replace(of_own, software="eager")):
        assert interval_of(KIND, SHAPE, 1.0, anchors=[other]) == free


@given(st.floats(0.5, 2), st.floats(-4, 4), st.booleans())
def test_ratios_are_surer_than_two_levels_and_have_no_direction(
    time_s: float, away: float, is_anchored: bool
) -> None:
    shapes = SHAPE, (*SHAPE[:4], SHAPE[4] + away, *SHAPE[5:])
    anchors = [OwnRun("h100_sxm", "nemo", SHAPE, 0.3)] * is_anchored
    shared = shared_errors((KIND, KIND), shapes, anchors)
    first = interval_of(KIND, shapes[0], 1.0, anchors=anchors)
    second = interval_of(KIND, shapes[1], time_s, anchors=anchors)
    ratio, inverse = ratio_interval(first, second, shared), ratio_interval(second, first, shared)
    assert ratio.p5 * inverse.p95 == pytest.approx(1)
    assert ratio.can_be_told == inverse.can_be_told == (not ratio.p5 <= 1 <= ratio.p95)
    if not is_anchored:
        assert math.log(ratio.p95 / ratio.expected) < math.hypot(width(first), width(second))


def test_runs_on_other_machines_and_stacks_share_no_error_and_data_types_do() -> None:
    shapes = SHAPE, SHAPE
    for other in (UNJUDGED, replace(KIND, software="eager"), replace(KIND, is_changed=True)):
        assert shared_errors((KIND, other), shapes) == (0.0, 1.0)
    share = 1 - error_model().of_a_run
    for other in (replace(KIND, data_type="fp8"), replace(KIND, software="nemo")):
        assert shared_errors((KIND, other), shapes)[0] == pytest.approx(share)


def test_ratios_of_a_class_are_as_sure_as_its_judged_runs_are_alike() -> None:
    """By hand: 4 degrees of freedom with a spread of 0.1, and 12 runs off by 0.05 each way."""
    model, errors = error_model(), RunErrors(0.0, 0.1, 4.0)
    runs = error_model().classes[0].model_copy(update={"runs": 12, "mean": 0.1, "square": 0.0125})
    spread = math.sqrt((4 * 0.1**2 + 11 * 0.05**2 / 0.6) / 15)
    expected = RunErrors(0.0, spread, 15).half_width(0.9) / errors.half_width(0.9)
    assert model.apart(errors, [runs]) == pytest.approx(expected, rel=1e-3)
    assert model.apart(errors, []) == 1
    both = KIND, replace(KIND, nodes="one")
    assert shared_errors(both, (SHAPE, SHAPE))[1] < 1
    assert shared_errors((KIND, replace(KIND, data_type="fp8")), (SHAPE, SHAPE))[1] == 1


def test_words_of_a_ratio_name_both_ends() -> None:
    ratios = ((0.88, 0.968), (0.96, 1.123), (1.02, 1.3))
    words = [RatioInterval(low, 1.0, high).words for low, high in ratios]
    assert words == ["3.2 to 12 % less", "4.0 % less to 12 % more", "2.0 to 30 % more"]


def test_runs_with_their_shapes_in_a_profiles_file_of_errors_are_ones_own(
    tmp_path: pathlib.Path,
) -> None:
    """Without a file of errors, a profile of one's own is another machine."""
    profile, errors = tmp_path / "mine.yaml", tmp_path / "validated_on" / "mine.yaml"
    shutil.copy(find_profile("h100_sxm"), profile)
    kind, far = replace(KIND, cluster=str(profile)), (*SHAPE[:3], 52.0, *SHAPE[4:])
    changed = interval_of(replace(KIND, is_changed=True), SHAPE, 1.0)
    assert interval_of(kind, SHAPE, 1.0) == changed
    errors.parent.mkdir()
    ours = f", shapes: [{[*SHAPE]}, {[*far]}]"
    for shapes, words in (("", "from 2 measured runs like"), (ours, "your runs like this one")):
        runs = f"errors: [-0.3, 0.2], software: nemo, remark: none, source: us{shapes}"
        text = f"version: 2\nsummary: ours\nmeasured_runs: [{{runs: ours, {runs}}}]\n"
        errors.write_text(text, "utf-8")
        assert interval_of(kind, SHAPE, 1.0).basis.startswith(words)


def test_a_run_that_waits_for_its_host_takes_longer_and_has_a_wider_interval() -> None:
    model = error_model()
    free, bound = (interval_of(KIND, (share, *SHAPE[1:]), 1.0) for share in (0.0, 0.3))
    slowed = math.exp(0.3 * model.waiting_spread)
    assert width(bound) == pytest.approx(slowed * width(free))
    logs = [math.log(each.expected_s) for each in (free, bound)]
    assert logs[1] == pytest.approx(0.3 * model.waiting + slowed * logs[0])
    tiny = load_scenario("llama3_8b", ["model.hidden_size=256", "model.ffn_hidden_size=512"])
    assert simulate(tiny).interval.within > 0.6
