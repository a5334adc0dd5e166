"""Text of figures: no two texts overlap, and no label of an axis repeats."""

import itertools
import pathlib

import pytest
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
    assert axes.get_xlim() == pytest.approx((low / 1.15, low * ratio * 1.15))


@pytest.mark.parametrize(
    ("sizes", "columns"),
    [((5.0, 3.0), 1), ((7.5, 4.2), 2), ((9.0, 3.5), 3), ((12.0, 8.0), 4)],
)
def test_axes_legend_and_footer_stand_above_one_another(
    sizes: tuple[float, float], columns: int, tmp_path: pathlib.Path
) -> None:
    heights = {f"part {number}": [1.0, 2.0] for number in range(4)}
    words = "profile a100_sxm4_80gb (SHA-256 4f1b0c9d) · with recompute.strategy=full " * 9
    with style.styled():
        figure = style.new_figure(*sizes)
        axes = figure.subplots()
        style.draw_stage_bars(axes, heights, [(style.SKY, "")] * 4)
        axes.set_title("title")
        style.legend_below(figure, axes, columns)
        style.write_picture(figure, tmp_path / "x.svg", words)
        check(figure, "title")
        (legend,) = figure.legends
        footer = figure.texts[-1].get_window_extent()
        entries = [text.get_window_extent() for text in legend.get_texts()]
        stack = [footer, Bbox.union(entries), axes.get_tightbbox()]
    for below, above in itertools.pairwise(stack):
        assert below.y1 <= above.y0 + SLACK_PIXELS
    assert stack[-1].y1 > 0.96 * figure.bbox.y1, "the axes take the rest"
    inch = figure.dpi
    assert footer.y1 <= 0.2 * inch and figure.bbox.height == pytest.approx(inch * (sizes[1] + 0.2))
    assert round(footer.x0 / inch, 1) == 0.1
    assert len({round(box.x0) for box in entries}) == columns and footer.x1 > 0.8 * figure.bbox.x1


def test_a_footer_is_whole_if_it_fits_and_else_cut_to_the_same_length(
    tmp_path: pathlib.Path,
) -> None:
    shown = []
    for length in range(150, 165):
        figure = style.new_figure()
        style.write_picture(figure, tmp_path / "x.svg", "x" * length)
        shown.append(figure.texts[0].get_text())
    whole = [text for text in shown if "…" not in text]
    assert {len(text) for text in shown if "…" in text} == {len(whole[-1])}
    assert {text.rstrip("…") for text in shown[len(whole) :]} == {whole[-1][1:]}
