"""Lanes, colours and marks of timelines in all pictures."""

import numpy as np
import pytest

from simtrain.iteration.report.spans import ACTIVITIES
from simtrain.render.timeline_lanes import (
    BUCKETS,
    FILLS,
    LETTERS,
    LINKS,
    OWN,
    fills_of,
    lane_places,
)
from tests.helpers.toys import ONE_STAGE, run, small


def test_every_activity_has_its_own_colour_and_letter() -> None:
    assert len({FILLS[name] for name in ACTIVITIES}) == len(ACTIVITIES)
    assert len({*LETTERS.values()}) == len(ACTIVITIES)


def test_used_lanes_fill_the_row_of_a_stage_from_top_to_bottom() -> None:
    buckets = small({"data": 2}, overlap={"data_parallel": True})
    for scenario, used in ((small(ONE_STAGE), {OWN}), (buckets, {OWN, LINKS, BUCKETS})):
        top, height = lane_places(run(scenario).bars)
        assert {*np.flatnonzero(height).tolist()} == used
        assert top[1:] == pytest.approx(top[:-1] + height[:-1])
        ends = top[OWN], top[BUCKETS] + height[BUCKETS]
        assert ends == pytest.approx((0.05, 0.95))


def test_later_chunks_are_lighter() -> None:
    bars = run(small({"interleave": 2}, schedule="interleaved")).bars
    pure, lighter = fills_of(bars)[ACTIVITIES.index("forward")]
    assert np.rint(255 * pure).tolist() == [0x56, 0xB4, 0xE9]
    assert lighter == pytest.approx((pure + 1) / 2)
