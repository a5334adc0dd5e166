"""Bars of a timeline, by hand; tests/test_laws.py has their sums."""

import numpy as np

from simtrain.iteration.report.spans import ACTIVITIES, Activity, StageStream
from simtrain.render.timeline_lanes import BUCKETS, MARKS, lanes_of
from simtrain.scenario import load_scenario
from tests.helpers.toys import run, small

CASES = {
    "selective": small(recompute="selective"),
    "buckets": small({"data": 2}, overlap={"data_parallel": True}, recompute="full"),
}
RESULTS = {name: run(scenario) for name, scenario in CASES.items()}


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
