"""What pictures show of an iteration: chosen stages and seconds, or its start, middle and end."""

from collections.abc import Iterable, Sequence

import numpy as np

from simtrain.errors import InputError, Location
from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import ACTIVITIES, ACTIVITY_OF_KIND
from simtrain.units import format_seconds

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
    end_s, bars = result.timeline.makespan_s, result.bars
    passes = bars.where(bars.microbatch >= 0)
    num_passes = len(passes) / result.num_stages
    whole = {"": (0.0, end_s)}
    if num_passes <= _MOST_PASSES:
        return whole
    kinds = [ACTIVITIES.index(ACTIVITY_OF_KIND[kind]) for kind in "BIW"]
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


def check_selection(
    result: Result, stages: Sequence[int] | None, window_s: Window | None
) -> tuple[list[int], Window]:
    """Return the stages and the seconds to show: by default all of them.

    Raises:
        InputError: a stage does not exist, or the window shows nothing of the iteration (E118).
    """
    if not isinstance(stages, Iterable | None):
        message = f"stages is {stages!r}, not a list"
        raise InputError.of("E118", message, Location("stages"), f"write stages=[{stages}]")
    if window_s is not None and not (isinstance(window_s, Sequence) and len(window_s) == 2):
        message = f"window_s is {window_s!r:.80}, not a start and an end"
        raise InputError.of("E118", message, Location("window"), "write window_s=(0.0, 0.5)")
    known, last = range(result.num_stages), result.num_stages - 1
    chosen = [*(known if stages is None else stages)]
    wrong = [stage for stage in chosen if stage not in known]
    if wrong or not chosen:
        message = f"there is no stage {wrong[0]!r}" if wrong else "no stage is chosen"
        fix = f"choose stages from 0 to {last}" if last else "choose stage 0, the only one"
        raise InputError.of("E118", message, Location("stages"), fix)
    end_s = result.timeline.makespan_s
    first_s, last_s = window_s or (0.0, end_s)
    if not (0 <= first_s < last_s and first_s < end_s):
        words = f"{format_seconds(first_s)} to {format_seconds(last_s)}"
        message = f"the window {words} shows nothing of the iteration"
        fix = f"choose a window within 0 s to {format_seconds(end_s)}, its start before its end"
        raise InputError.of("E118", message, Location("window"), fix)
    return sorted({*chosen}), (first_s, min(last_s, end_s))
