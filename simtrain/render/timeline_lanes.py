"""How pictures lay out the spans of an iteration: lanes, colours and marks.

A stage has a row of height 1 with up to three lanes. The figure, the page and the strip of a
terminal read this file, so an activity looks the same in all of them.
"""

from __future__ import annotations

import numpy as np

from simtrain.engine.compiled import Floats, Ints
from simtrain.iteration.report.spans import ACTIVITIES, Activity, Spans, StageStream
from simtrain.render.figures import style

FILLS = {
    Activity.FORWARD: (style.SKY, ""),
    Activity.RECOMPUTE: (style.YELLOW, "////"),
    Activity.BACKWARD: (style.ORANGE, ""),
    Activity.INPUT_GRADIENTS: ("#F4A698", ""),
    Activity.WEIGHT_GRADIENTS: ("#B3DE69", ""),
    Activity.MERGED: ("#8DA0CB", ".."),
    Activity.TRANSFER: (style.PURPLE, ""),
    Activity.REDUCTION: (style.VERMILLION, "xxxx"),
    Activity.OPTIMIZER: (style.GREEN, "\\\\\\\\"),
}
"""Colour and hatch of each activity."""
STYLES = {name: f"{style.BLACK} on {colour}" for name, (colour, _) in FILLS.items()}
"""Style of each activity in a terminal."""
LETTERS = dict(zip(ACTIVITIES, "FRBIWMTGO", strict=True))
"""Letter of each activity, if a picture has no room for its name."""
_MARKED = Activity.INPUT_GRADIENTS, Activity.WEIGHT_GRADIENTS, Activity.MERGED
MARKS = {name: LETTERS[name] if name in _MARKED else "" for name in ACTIVITIES}
"""Letter beside the microbatch of passes that are not whole passes of one microbatch."""
LABELS = {name: f"{name} ({mark})" if mark else name for name, mark in MARKS.items()}
"""Name of each activity in a legend, with its mark."""
_CHUNK_WHITE = 0.5
"""Share of white mixed into the colour of the last chunk; the first chunk has the pure colour."""

NUM_LANES = 3
OWN, LINKS, BUCKETS = range(NUM_LANES)
"""Lanes of a stage: its own stream, transfers, and buckets of gradients and parameters."""
_LANES = np.full(len(StageStream), OWN, np.int32)  # all stages wait for shared collectives
_LANES[StageStream.SENDS_FORWARD : StageStream.RECEIVES_BACKWARD + 1] = LINKS
_LANES[StageStream.BUCKETS] = BUCKETS


def lanes_of(bars: Spans) -> Ints:
    """Return [bars], the lane of each bar within its stage."""
    lanes: Ints = _LANES[bars.stream]
    return lanes


def fills_of(bars: Spans) -> Floats:
    """Return [activities, chunks, 3], red, green and blue of a bar, from 0 to 1.

    Later chunks are lighter. Bars that are no passes have the colour of the first chunk.
    """
    colours = [
        [int(FILLS[name][0][place : place + 2], 16) / 255 for place in (1, 3, 5)]
        for name in ACTIVITIES
    ]
    last_chunk = int(bars.chunk.max(initial=0))
    white = _CHUNK_WHITE * np.arange(last_chunk + 1)[:, np.newaxis] / max(last_chunk, 1)
    fills: Floats = np.array(colours)[:, np.newaxis] * (1 - white) + white
    return fills


def lane_places(bars: Spans) -> tuple[Floats, Floats]:
    """Return [lanes], top and height of each lane in the row of a stage, whose height is 1.

    The stage's own stream has the most room; the other used lanes share the rest. A lane without
    bars has height 0.
    """
    used = np.unique(lanes_of(bars))
    lower, height = used[used != OWN], np.zeros(NUM_LANES)
    height[OWN] = 0.66 if len(lower) else 0.9
    height[lower] = 0.24 / max(len(lower), 1)
    return 0.05 + np.cumsum(height) - height, height
