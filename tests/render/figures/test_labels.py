"""Text of figures: no two texts overlap, and no label of an axis repeats."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axis import Tick
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from pytest import MonkeyPatch

from simtrain.render.figures import style

SLACK_PIXELS = 0.6


def texts_drawn(figure: Figure) -> list[Text]:
    """Return every text that appears in the figure."""
    with MonkeyPatch.context() as patch:
        drawn: list[Text] = []
        draw = Text.draw

        def record(self: Text, renderer: object, *args: object, **how: object) -> None:
            if self.get_visible() and self.get_text().strip():
                drawn.append(self)
            draw(self, renderer, *args, **how)

        patch.setattr(Text, "draw", record)
        figure.draw_without_rendering()
    return drawn


def boxes_of(figure: Figure) -> list[tuple[str, Bbox]]:
    """Return every text with its box in pixels; the box of an annotation excludes its arrow."""
    return [(text.get_text(), Text.get_window_extent(text)) for text in texts_drawn(figure)]


def overlaps(boxes: list[tuple[str, Bbox]]) -> list[tuple[str, str]]:
    """Return pairs of texts with overlapping boxes."""
    return [
        (first, second)
        for (first, a), (second, b) in itertools.combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > SLACK_PIXELS
        and min(a.y1, b.y1) - max(a.y0, b.y0) > SLACK_PIXELS
    ]


def repeated_labels(figure: Figure) -> list[str]:
    """Return labels that appear twice on one axis."""
    found = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks: list[Tick] = axis._update_ticks()  # type: ignore[attr-defined]
            labels = [tick.label1.get_text() for tick in ticks if tick.label1.get_text()]
            found += [label for label in set(labels) if labels.count(label) > 1]
    return found


def outside(boxes: list[tuple[str, Bbox]], frame: Bbox) -> list[str]:
    """Return texts that leave the figure."""
    return [
        text
        for text, box in boxes
        if box.x0 < -1 or box.y0 < -1 or box.x1 > frame.x1 + 1 or box.y1 > frame.y1 + 1
    ]


def check(figure: Figure, name: str = "") -> None:
    """Check all texts of a figure, and that one contains this name."""
    boxes = boxes_of(figure)
    assert overlaps(boxes) == []
    assert repeated_labels(figure) == []
    assert outside(boxes, figure.bbox) == []
    assert any(name in text for text, _ in boxes)


@settings(max_examples=8, deadline=None)
@given(low=st.floats(1e-3, 1e9), ratio=st.floats(1.05, 1e6))
def test_ticks_of_a_logarithmic_axis_have_distinct_labels(low: float, ratio: float) -> None:
    figure, axes = style.new_axes()
    style.set_logarithmic(axes.xaxis, [low, low * ratio])
    ticks = axes.xaxis._update_ticks()  # type: ignore[attr-defined]
    assert len([tick for tick in ticks if tick.label1.get_text()]) >= 2
    assert repeated_labels(figure) == []
