"""Pictures for a terminal: a timeline with a letter for each slice of time, schedules as grids."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from simtrain.base.values import dataclass
from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import ACTIVITIES, ACTIVITY_OF_KIND, Spans
from simtrain.render.timeline_lanes import LETTERS, OWN, STYLES, lanes_of
from simtrain.schedules import Schedule, actions_of, time_slots
from simtrain.schedules.schedule import Ints
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


_BESIDE = "&"
"""Between the names of merged actions."""


@dataclass(frozen=True)
class ScheduleGrid:
    """As many slots as fit the terminal, and a note if there are more."""

    schedule: Schedule

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        schedule, slots = self.schedule, time_slots(self.schedule)
        stage = max(len("stage"), len(str(schedule.num_stages - 1)))
        widths = self._widths(slots)
        fits = widths * np.arange(1, len(widths) + 1) <= options.max_width - stage
        shown = max(1, int(fits.sum()))
        cell = int(widths[shown - 1])
        header = "".join(f"{slot:>{cell}}" for slot in range(shown))
        yield Text(f"{'stage':>{stage}}{header}", style="bold", no_wrap=True, overflow="crop")
        for rank in range(schedule.num_stages):
            line = Text(f"{rank:>{stage}}", no_wrap=True, overflow="crop")
            line.append_text(self._line(rank, slots.tolist(), shown, cell))
            line.rstrip()
            yield line
        if shown < len(widths):
            left_out = f"The first {shown} of {len(widths)} time slots."
            left_out += " --format csv prints every pass."
            yield ""
            yield Text(left_out, style="dim")

    def _widths(self, slots: Ints) -> Ints:
        """[slots], the width of a column if all slots up to this one are shown."""
        schedule, width = self.schedule, np.zeros(int(slots.max()) + 1, np.int64)
        names = _digits(schedule.virtual_stage) + 1 + _digits(schedule.microbatch)
        merged = np.flatnonzero(schedule.follows_merged)
        names[merged] += names[merged - 1] + len(_BESIDE)
        np.maximum.at(width, slots, names)
        header = _digits(np.arange(len(width)))
        widest: Ints = np.maximum.accumulate(np.maximum(width, header)) + 1
        return widest

    def _line(self, rank: int, slots: list[int], shown: int, cell: int) -> Text:
        schedule, cells = self.schedule, [Text(" " * cell)] * shown
        for action in range(*schedule.rank_starts[rank : rank + 2].tolist()):
            if slots[action] >= shown:
                break
            if schedule.follows_merged[action]:
                continue
            parts = actions_of(schedule.cell_at(action))
            text = Text(_BESIDE).join(
                Text(str(part), STYLES[ACTIVITY_OF_KIND[part.kind]]) for part in parts
            )
            cells[slots[action]] = Text(" " * (cell - len(text))) + text
        return Text.assemble(*cells)


def _digits(numbers: Ints) -> Ints:
    return np.char.str_len(numbers.astype(str))
