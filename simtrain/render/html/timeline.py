"""Timelines in a page: bars over time, and memory below them, which one script draws.

Iterations and whole trainings are rows with bars; all figures of a page show the
same window of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simtrain.base.packed_arrays import packed
from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import ACTIVITIES
from simtrain.iteration.report.windows import windows_of
from simtrain.render.html.elements import (
    Html,
    breakable,
    element,
    joined,
    json_text,
    legend,
    swatch,
)
from simtrain.render.timeline_lanes import (
    FILLS,
    LABELS,
    MARKS,
    NUM_LANES,
    fills_of,
    lane_places,
    lanes_of,
)

_HELP = (
    "A long iteration is shown from its start. Drag to move. Turn the wheel with Ctrl to zoom. "
    "Keys: + and − zoom, zero shows everything, Shift with the left or right arrow moves. Up and "
    "down select a row, left and right a bar. Bars thinner than a pixel mix their colours in "
    "proportion to their time."
)
_MEANING = "A bar of the simulated timeline. simtrain run X -o FILE writes the same tasks."
_BUTTONS = (
    ("in", "+", "Zoom in"),
    ("out", "\u2212", "Zoom out"),
    ("all", "Everything", "Show all of the time"),
)
_TYPES = {"activity": "u1", "chunk": "i2", "microbatch": "i4", "start_s": "f8", "end_s": "f8"}


def timelines(results: Mapping[str, Result]) -> Html:
    """Return a figure for each iteration, by name."""
    fills = {name: FILLS[name][0] for name in ACTIVITIES} | {"idle": "var(--track)"}
    colours = legend((swatch(colour), LABELS.get(name, name)) for name, colour in fills.items())
    figures = (timeline_figure(result, name) for name, result in results.items())
    return joined(colours, *figures, element("p", _HELP, class_="soft"))


def timeline_figure(result: Result, name: str = "") -> Html:
    """Return the figure of an iteration with its memory."""
    name, data = name or result.scenario.name or "the iteration", timeline_data(result)
    zooms = (
        element("button", text, type="button", data_zoom=zoom, aria_label=words)
        for zoom, text, words in _BUTTONS
    )
    parts = (
        element("button", part.capitalize(), type="button", data_part=part)
        for part in data["windows_s"]
        if part
    )
    label = f"Timeline of {name}. Pipeline stages: {result.num_stages}. Arrow keys read its bars."
    bars = {"role": "application", "aria_roledescription": "timeline", "aria_label": label}
    peaks = f"Memory of stages of {name} over time. The section Memory lists the peaks."
    return element(
        "figure",
        element("figcaption", breakable(name)),
        element("div", *zooms, *parts, class_="tools"),
        element("canvas", class_="bars", tabindex="0", **bars),
        element("canvas", class_="memory", role="img", aria_label=peaks),
        element("ul", class_="legend lines"),
        element("p", class_="readout", role="status", aria_live="polite"),
        element("script", json_text(data), type="application/json"),
        class_="timeline",
        data_meaning=_MEANING,
    )


def timeline_data(result: Result) -> dict[str, Any]:
    """Return the bars and the memory of an iteration, in full precision.

    Bars are sorted by lane and start. Lanes are numbered stage by stage; the bars of a lane begin
    at index `first[lane]`, and its longest bar lasts `longest_s[lane]`. The memory of a stage
    begins at index `memory["first"][stage]`.
    """
    bars, num_lanes = result.bars, NUM_LANES * result.num_stages
    lanes = NUM_LANES * bars.stage + lanes_of(bars)
    order = np.lexsort((bars.start_s, lanes))
    bars, lanes = bars.where(order), lanes[order]
    longest_s, (tops, heights) = np.zeros(num_lanes), lane_places(bars)
    np.maximum.at(longest_s, lanes, bars.seconds)
    fills = np.rint(255 * fills_of(bars)).astype(np.int64).tolist()
    return {
        "rows": [f"stage {stage}" for stage in range(result.num_stages)],
        "end_s": result.timeline.makespan_s,
        "windows_s": windows_of(result),
        "activities": list(ACTIVITIES),
        "letters": [MARKS[name] for name in ACTIVITIES],
        "fills": [["#{:02x}{:02x}{:02x}".format(*fill) for fill in chunks] for chunks in fills],
        "tops": tops.tolist(),
        "heights": heights.tolist(),
        "first": np.searchsorted(lanes, np.arange(num_lanes + 1)).tolist(),
        "longest_s": longest_s.tolist(),
        "columns": {
            name: packed(getattr(bars, name).astype(dtype)) for name, dtype in _TYPES.items()
        },
        "memory": _memory_data(result),
    }


def _memory_data(result: Result) -> dict[str, Any]:
    report = result.memory
    curves = [result.memory_curve(stage) for stage in range(result.num_stages)]
    times_s = np.concatenate([np.array(curve.times_s) for curve in curves])
    held_bytes = np.concatenate([np.array(curve.held_bytes, np.float64) for curve in curves])
    return {
        "first": [0, *np.cumsum([len(curve.times_s) for curve in curves]).tolist()],
        "columns": {"time_s": packed(times_s), "held_bytes": packed(held_bytes)},
        "peaks_bytes": [stage.peak_bytes for stage in report.stages],
        "fullest_stage": report.fullest.stage,
        "capacity_bytes": report.capacity_bytes,
    }
