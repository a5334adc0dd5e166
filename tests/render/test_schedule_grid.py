"""The grid of a schedule that `simtrain run --show schedule` prints on a terminal."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from simtrain.render.terminal import terminal_page
from simtrain.render.terminal_pictures import ScheduleGrid
from simtrain.schedules import Schedule, actions_of, one_f_one_b, time_slots
from simtrain.views.schedules import schedule_view
from tests.helpers.schedule_strategies import schedules

WHOLE = """\
Schedule 1f1b, microbatches: 3

stage   0   1   2   3   4   5   6   7
    0 0F0 0F1     0B0 0F2 0B1     0B2
    1     1F0 1B0 1F1 1B1 1F2 1B2

1F0 is the forward pass of microbatch 0 on virtual stage 1, 1B0 its backward
pass. Every pass takes one slot here.
"""


def page_of(schedule: Schedule) -> object:
    return terminal_page(schedule_view(schedule))


def shown(page: object, width: int, **settings: object) -> str:
    console = Console(width=width, legacy_windows=False, **settings)  # type: ignore[arg-type]
    with console.capture() as capture:
        console.print(page)
    return capture.get()


def test_the_grid_has_stages_down_and_slots_across() -> None:
    text = shown(page_of(one_f_one_b(2, 3)), 80, color_system=None)
    assert "".join(f"{line.rstrip()}\n" for line in text.splitlines()) == WHOLE


@settings(max_examples=30)
@given(schedules(), st.integers(16, 200))
def test_as_many_slots_as_fit_have_each_pass_in_its_column(schedule: Schedule, width: int) -> None:
    header, *lines = shown(ScheduleGrid(schedule), width, color_system=None).splitlines()
    ends = [found.end() for found in re.finditer(r"\d+", header)]
    names = [{} for _ in range(schedule.num_stages)]
    for place, slot in enumerate(time_slots(schedule).tolist()):
        cell = actions_of(schedule.cell_at(place))
        names[schedule.rank[place]][slot] = "&".join(map(str, cell))

    for line, of_stage in zip(lines, names, strict=False):
        cells = [line[start:end].strip() for start, end in zip([5, *ends], ends, strict=False)]
        assert cells == [of_stage.get(slot, "") for slot in range(len(ends))]

    # Columns are as wide as the widest name, and a space.
    num_slots = 1 + max(map(max, names))
    widest = [
        1 + max(len(name) for each in names for slot, name in each.items() if slot < count)
        for count in range(1, num_slots + 1)
    ]
    widest = [max(each, 1 + len(str(slot))) for slot, each in enumerate(widest)]
    fits = [5 + count * each <= width for count, each in enumerate(widest, 1)]
    assert len(ends) == max(1, sum(fits)) and ends[0] == min(5 + widest[len(ends) - 1], width)
    note = f"The first {len(ends)} of {num_slots} time slots. --format csv prints every pass."
    words = " ".join(" ".join(lines[schedule.num_stages :]).split())
    assert words == note * (len(ends) < num_slots)


def test_passes_have_the_colours_of_the_figures_in_a_terminal() -> None:
    page = page_of(one_f_one_b(1, 1))
    text = shown(page, 80, force_terminal=True, color_system="truecolor")
    assert "\x1b[38;2;0;0;0;48;2;86;180;233m0F0\x1b[0m" in text
