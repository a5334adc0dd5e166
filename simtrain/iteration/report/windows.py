"""What pictures show of an iteration: all of it, or its start, a steady piece and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simtrain.iteration.report.activities import (
    ACTIVITIES,
    BACKWARD,
    INPUT_GRADIENTS,
    WEIGHT_GRADIENTS,
    Bars,
)

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result

Window = tuple[float, float]
"""Start and end in seconds."""
_MOST_PASSES = 100
"""More passes of a stage than these are a uniform band in a picture."""
_PASSES_OF_WINDOW, _PASSES_MORE, _LEAST_SAVED = 24, 2, 0.2


def windows_of(result: Result) -> dict[str, Window]:
    """Return the windows that show an iteration, by name.

    An iteration of few passes has one window without a name. A longer one has three: the "start"
    until every stage has begun its first backward pass, a "steady part" of some passes in the
    middle, and the "end" after the last pass of the stage that ends first. Three windows that would
    show nearly everything are one.
    """
    end_s, bars = result.timeline.makespan_s, Bars.of(result)
    passes = bars.where(bars.microbatch >= 0)
    num_passes = len(passes) / result.num_stages
    whole = {"": (0.0, end_s)}
    if num_passes <= _MOST_PASSES:
        return whole
    kinds = [ACTIVITIES.index(name) for name in (BACKWARD, INPUT_GRADIENTS, WEIGHT_GRADIENTS)]
    backward = passes.where(np.isin(passes.activity, kinds))
    first_s, last_s = np.full(result.num_stages, np.inf), np.zeros(result.num_stages)
    np.minimum.at(first_s, backward.stage, backward.start_s)
    np.maximum.at(last_s, passes.stage, passes.end_s)
    pass_s = end_s / num_passes
    piece_s, more_s = _PASSES_OF_WINDOW * pass_s, _PASSES_MORE * pass_s
    begin_s = max(piece_s, float(first_s.max()) + more_s)
    final_s = max(piece_s, end_s - float(last_s.min()) + more_s)
    if begin_s + piece_s + final_s > (1 - _LEAST_SAVED) * end_s:
        return whole
    middle_s = (begin_s + end_s - final_s - piece_s) / 2
    return {
        "start": (0.0, begin_s),
        "steady part": (middle_s, middle_s + piece_s),
        "end": (end_s - final_s, end_s),
    }
