"""The timeline of a report in Chromium: bars are where the data say, for mouse and keys."""

import pathlib
import random
import re

import pytest

from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import ACTIVITIES
from simtrain.render.timeline_lanes import NUM_LANES
from tests.helpers.browser import Browser, assert_quiet, needs_chromium
from tests.helpers.report_cases import bars_of

pytestmark = [pytest.mark.slow, pytest.mark.ci, needs_chromium]

_COLOURS = {"forward": [86, 180, 233], "recompute": [240, 228, 66], "backward": [230, 159, 0]}
# Show a window of time, and return the position and the colour of the middle of a bar.
_POINT = """
const [run, bar, start, length] = args;
await simtrain.timeline.ready;
const chart = simtrain.timeline.charts[run];
simtrain.timeline.setView(start, length);
chart.canvas.scrollIntoView({ block: "center" });
await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
const { left, top } = chart.canvas.getBoundingClientRect();
const [barTop, height] = chart.place(bar);
const x = chart.x((chart.bars.start_s[bar] + chart.bars.end_s[bar]) / 2);
const y = barTop + height / 2;
const ratio = chart.canvas.width / chart.canvas.clientWidth;
// Left of the number in the middle.
const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
copy.drawImage(chart.canvas, -Math.round((x - 15) * ratio), -Math.round(y * ratio));
const colour = [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
return { x: left + x, y: top + y, colour };
"""
_READOUT = """
await new Promise((resolve) => requestAnimationFrame(resolve));
return simtrain.timeline.charts[args[0]].readout.textContent;
"""


def assert_hovered(browser: Browser, result: Result, number: int) -> None:
    """Assert that the mouse on some bars shows their stage, activity, start and end."""
    bars, draw = bars_of(result), random.Random(number)
    long = (bars["end_s"] - bars["start_s"]) > 1e-6 * result.iteration_time_s
    chosen = long.nonzero()[0].tolist()
    for bar in draw.sample(chosen, min(len(chosen), 12)):
        start_s, end_s = bars["start_s"][bar], bars["end_s"][bar]
        length = 8 * (end_s - start_s)
        point = browser.run(_POINT, number, bar, start_s - length / 2, length)
        browser.move(0, 0)
        browser.move(point["x"], point["y"])
        words = browser.run(_READOUT, number)
        stage = int((bars["first"][1:] <= bar).sum()) // NUM_LANES
        activity = ACTIVITIES[bars["activity"][bar]]
        assert words.startswith(f"Stage {stage}: {activity}")
        if bars["microbatch"][bar] >= 0:
            assert f"microbatch {bars['microbatch'][bar]}" in words
        times = re.search(r"from (\S+) to (\S+) s\.$", words)
        assert times is not None
        assert [*map(float, times.groups())] == pytest.approx([start_s, end_s], rel=1e-8)
        if activity in _COLOURS and not bars["chunk"][bar]:
            assert point["colour"] == _COLOURS[activity]


def test_the_mouse_on_a_bar_shows_its_times(
    browser: Browser, page: pathlib.Path, results: dict[str, Result]
) -> None:
    browser.open(page)
    for number, result in enumerate(results.values()):
        assert_hovered(browser, result, number)
    assert_quiet(browser, page)
