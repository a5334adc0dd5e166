"""Spans of a timeline: their seconds equal those of the breakdown and of the operators."""

import numpy as np
import pytest

from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import (
    ACTIVITIES,
    Activity,
    Spans,
    StageStream,
)
from simtrain.render.timeline_lanes import BUCKETS, MARKS, OWN, lanes_of
from simtrain.scenario import load_scenario
from tests.helpers.toys import ONE_STAGE, run, small

CASES = {
    "selective": small(recompute="selective"),
    "full": small(recompute="full"),
    "one stage": small(ONE_STAGE),
    "buckets": small({"data": 2}, overlap={"data_parallel": True}, recompute="full"),
}
RESULTS = {name: run(scenario) for name, scenario in CASES.items()}


def seconds(bars: Spans, result: Result) -> list[float]:
    """Return the seconds of some bars on each stage."""
    summed = np.bincount(bars.stage, bars.seconds, result.num_stages)
    return list(summed)


@pytest.mark.parametrize("name", RESULTS)
def test_bars_of_a_row_do_not_overlap(name: str) -> None:
    result = RESULTS[name]
    bars = result.bars
    for stage in range(result.num_stages):
        lasts = bars.end_s > bars.start_s
        own = bars.where((bars.stage == stage) & (lanes_of(bars) == OWN) & lasts)
        own = own.where(np.argsort(own.start_s, kind="stable"))
        assert (own.start_s[1:] >= own.end_s[:-1] - 1e-12).all()
        assert own.start_s[0] >= 0 and own.end_s[-1] <= result.iteration_time_s


@pytest.mark.parametrize("name", RESULTS)
def test_recompute_takes_the_seconds_of_the_breakdown(name: str) -> None:
    result = RESULTS[name]
    bars = result.bars
    again = bars.where(bars.activity == ACTIVITIES.index(Activity.RECOMPUTE))
    assert seconds(again, result) == pytest.approx([one.recompute_s for one in result.stages])


@pytest.mark.parametrize("name", RESULTS)
def test_passes_take_the_time_that_is_neither_idle_nor_the_optimizers(name: str) -> None:
    result = RESULTS[name]
    bars = result.bars
    passes = bars.where(bars.activity <= ACTIVITIES.index("backward"))
    # Parameters are not sharded here, so passes have no exposed communication between replicas.
    expected = [
        one.compute_s + one.recompute_s + one.launch_s + one.tensor_communication_s
        for one in result.stages
    ]
    norms = [
        sum(
            span.duration_s
            for span in result.timeline.spans()
            if (span.stream, span.name) == (f"stage {stage}", "layer norm gradient all-reduce")
        )
        for stage in range(result.num_stages)
    ]
    assert np.add(seconds(passes, result), norms) == pytest.approx(expected)


def test_a_pass_that_buckets_cut_is_one_bar() -> None:
    result = RESULTS["buckets"]
    bars = result.bars
    in_buckets = lanes_of(bars) == BUCKETS
    assert in_buckets.any()
    assert {ACTIVITIES[one] for one in bars.activity[in_buckets]} == {Activity.REDUCTION}
    backward = bars.where(bars.activity == ACTIVITIES.index("backward"))
    places = zip(backward.stage, backward.chunk, backward.microbatch, strict=True)
    assert len({*places}) == len(backward) == result.num_stages * result.scenario.num_microbatches


def test_halves_of_backward_passes_and_merged_passes_have_activities_of_their_own() -> None:
    shown = set()
    for name in ("zb_h1", "dualpipe"):
        changes = {"schedule": name, "batch.global": 24}
        bars = run(load_scenario("llama3_70b").replace(changes)).bars
        shown |= {ACTIVITIES[number] for number in bars.activity[bars.microbatch >= 0].tolist()}
    marked = {name for name, mark in MARKS.items() if mark}
    assert {"forward", "backward", *marked} == shown


def test_a_transfer_is_on_its_sender_and_its_receiver() -> None:
    result = RESULTS["selective"]
    spans, last = result.spans, result.num_stages - 1
    for sends, receives, step in (
        (StageStream.SENDS_FORWARD, StageStream.RECEIVES_FORWARD, 1),
        (StageStream.SENDS_BACKWARD, StageStream.RECEIVES_BACKWARD, -1),
    ):
        sent, received = spans.where(spans.stream == sends), spans.where(spans.stream == receives)
        assert len(sent) == last * result.scenario.num_microbatches
        assert (sent.task == received.task).all()
        assert (sent.stage + step == received.stage).all()
    assert not np.isin(result.bars.stream, [StageStream.RECEIVES_FORWARD, receives]).any()
