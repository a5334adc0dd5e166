"""A small timeline for a terminal: a line for each stage, a letter for each slice of time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import ACTIVITIES, Spans
from simtrain.render.timeline_lanes import LETTERS, OWN, STYLES, lanes_of
from simtrain.units import format_seconds
from simtrain.views.memory import evenly_spaced

_MOST_STAGES, _LEAST_CELLS = 8, 10
_NAMES = (*ACTIVITIES, "idle")
_LETTERS = LETTERS | {"idle": "·"}
_STYLES = STYLES | {"idle": "dim"}


@dataclass(frozen=True)
class TimelineStrip:
    """What each stage does in each slice of time. Nothing if the output is not a terminal.

    At most eight stages are shown: the first, the last, and some at equal distances between them.
    """

    result: Result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many slices as the terminal has columns beside the names of stages."""
        if not console.is_terminal:
            return
        result, last = self.result, self.result.num_stages - 1
        label = len(f"stage {last} ")
        cells = max(options.max_width - label, _LEAST_CELLS)
        seconds = format_seconds(result.timeline.makespan_s / cells)
        yield Text(f"What each stage does, {seconds} per letter", style="italic")
        present = set[str]()
        for stage in evenly_spaced(result.num_stages, _MOST_STAGES):
            line = Text(f"{f'stage {stage}':<{label}}", no_wrap=True, overflow="crop")
            shown = letters_of_slices(result.bars, stage, result.timeline.makespan_s, cells)
            for place, run in groupby(shown):
                name = _NAMES[place]
                present.add(name)
                line.append(_LETTERS[name] * len([*run]), _STYLES[name])
            yield line
        legend = Text()
        for name in _NAMES:
            if name in present:
                legend += Text.assemble((_LETTERS[name], _STYLES[name]), f" {name}  ")
        yield from (legend, Text())


def letters_of_slices(bars: Spans, stage: int, end_s: float, num_slices: int) -> list[int]:
    """What stands for each slice of a stage's own stream: places in `ACTIVITIES`, or idle.

    A slice shows one of its activities, and their numbers of slices are in proportion to their
    seconds: the seconds that a slice does not show count in the slices after it.
    """
    edges_s = np.linspace(0.0, end_s, num_slices + 1)
    busy_s = bars.where((bars.stage == stage) & (lanes_of(bars) == OWN)).busy_seconds(edges_s)
    seconds = np.concatenate([busy_s, [np.diff(edges_s) - busy_s.sum(axis=0)]])
    due_s, shown = np.zeros(len(seconds)), []
    for of_slice in seconds.T:
        due_s += of_slice
        # Slices that only touch an activity, by rounding, do not show it.
        is_present = of_slice > 1e-9 * end_s
        place = int(np.where(is_present, due_s, -np.inf).argmax())
        due_s[place] -= end_s / num_slices
        shown.append(place)
    return shown
