"""Axes of charts: ticks are round values inside the axis, and positions are in proportion."""

import pytest

from simtrain.render.html.roofline import (
    HEIGHT,
    LEFT,
    TOP,
    WIDTH,
    Chart,
    ChartAxis,
)
from tests.render.html.pages import parsed


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (ChartAxis(0, 100, ""), [0, 20, 40, 60, 80, 100]),
        (ChartAxis(0, 0.7, ""), pytest.approx([0, 0.2, 0.4, 0.6])),
        (ChartAxis(8, 600, "", is_logarithmic=True), [10, 20, 50, 100, 200, 500]),
        (ChartAxis(1, 1e6, "", is_logarithmic=True), pytest.approx([10.0**n for n in range(7)])),
    ],
)
def test_ticks_are_round_values_inside_the_axis(axis: ChartAxis, ticks: list[float]) -> None:
    assert axis.ticks() == ticks
    assert (axis.share(axis.low), axis.share(axis.high)) == (0, 1)


def test_marks_are_in_proportion_and_inside_the_picture() -> None:
    values = [3.0, 40.0, 900.0]
    for axis in (ChartAxis(0.0, 1000.0, "x"), ChartAxis(2.0, 1000.0, "x", is_logarithmic=True)):
        chart = Chart(axis, axis)
        for value in values:
            assert LEFT <= chart.x(value) <= WIDTH and TOP <= chart.y(value) <= HEIGHT
        assert chart.x(3) < chart.x(40) < chart.x(900) and chart.y(3) > chart.y(900)
    mark = chart.mark((40, 40), "circle", 3, "forty")
    page = parsed(chart.picture("label", mark))
    assert [text for _, text in page.of("title")] == ["forty"]
    (svg,) = page.of("svg")
    assert svg[0]["aria-label"] == "label"
