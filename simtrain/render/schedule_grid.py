"""A pipeline schedule as a grid for a terminal: stages down, time slots across."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from simtrain.iteration.report.spans import ACTIVITY_OF_KIND
from simtrain.render.timeline_lanes import STYLES
from simtrain.schedules import Schedule, actions_of, time_slots
from simtrain.schedules.schedule import Ints

_BESIDE = "&"
"""Between the names of merged actions."""


@dataclass(frozen=True)
class ScheduleGrid:
    """As many slots as fit the terminal, and a note if there are more."""

    schedule: Schedule

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The header and a line for each stage."""
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
            left_out += " schedule show --csv prints every pass."
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
