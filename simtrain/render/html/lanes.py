"""What ranks or parts of a training do over time: a drawing with a lane for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from simtrain.render.html.elements import Html, element, legend, swatch
from simtrain.units import DAY_S, format_seconds, significant
from simtrain.views.view import Lane, LanesPicture

_COLOURS = ("blue", "orange", "green", "vermillion", "sky", "purple", "yellow")
_OTHERS = "var(--grey)"
_WIDTH, _LANE, _TITLE, _GAP, _AXIS = 1000, 26, 20, 10, 26


def lanes_figure(picture: LanesPicture) -> Html:
    """Return the figure: the kinds that take most time have a colour each, the others are grey."""
    colours = _colours(picture.lanes)
    shapes: list[Html] = []
    top = 0
    for name, lanes in picture.lanes.items():
        shapes.append(element("text", name, x="0", y=f"{top + 14}", class_="lane-title"))
        top += _TITLE
        for lane in lanes:
            shapes += _lane(lane, top, picture, colours)
            top += _LANE
        top += _GAP
    shapes += _axis(top, picture)
    drawing = element(
        "svg",
        *shapes,
        viewBox=f"0 0 {_WIDTH} {top + _AXIS}",
        role="img",
        aria_label=f"Timelines of {' and of '.join(picture.lanes)}",
        style="width:100%;height:auto;font-size:12px;fill:currentColor",
    )
    entries = [(swatch(colour), kind) for kind, colour in colours.items()]
    others = [(swatch(_OTHERS), "other kinds"), (swatch("var(--track)"), "idle")]
    return element("figure", drawing, legend([*entries, *others]), data_meaning=picture.meaning)


def _colours(ranks: Mapping[str, Sequence[Lane]]) -> dict[str, str]:
    seconds: Counter[str] = Counter()
    for lanes in ranks.values():
        for lane in lanes:
            for span in lane.spans:
                seconds[span.kind] += span.end_s - span.start_s  # type: ignore[assignment]
    kinds = [kind for kind, _ in seconds.most_common(len(_COLOURS))]
    return {kind: f"var(--{colour})" for kind, colour in zip(kinds, _COLOURS, strict=False)}


def _moment(picture: LanesPicture, moment_s: float) -> str:
    days = f"{significant(moment_s / DAY_S, 3)} days"
    return days if picture.in_days else format_seconds(moment_s)


def _lane(
    lane: Lane, top: int, picture: LanesPicture, colours: Mapping[str, str]
) -> Iterator[Html]:
    height = f"{_LANE - 4}"
    size = {"y": f"{top}", "height": height}
    yield element("rect", x="0", width=f"{_WIDTH}", style="fill:var(--track)", **size)
    for span in lane.spans:
        left, right = (_WIDTH * moment_s / picture.end_s for moment_s in (span.start_s, span.end_s))
        times = " to ".join(_moment(picture, at_s) for at_s in (span.start_s, span.end_s))
        yield element(
            "rect",
            element("title", f"{lane.name}: {span.kind}, {times}"),
            x=f"{left:.2f}",
            width=f"{right - left:.2f}",
            style=f"fill:{colours.get(span.kind, _OTHERS)}",
            **size,
        )


def _axis(top: int, picture: LanesPicture) -> Iterator[Html]:
    for quarter in range(5):
        x = _WIDTH * quarter / 4
        anchor = "start" if quarter == 0 else "end" if quarter == 4 else "middle"
        line = {"x1": f"{x}", "x2": f"{x}", "y1": f"{top - 4}", "y2": f"{top + 4}"}
        yield element("line", style="stroke:currentColor", **line)
        place = {"x": f"{x}", "y": f"{top + 18}", "text_anchor": anchor}
        yield element("text", _moment(picture, picture.end_s * quarter / 4), **place)
