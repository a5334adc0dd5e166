"""The grid of a schedule that `simtrain run --show schedule` prints on a terminal."""

import pytest
from rich.console import Console

from simtrain.render.terminal import terminal_page
from simtrain.schedules import Schedule, interleaved, one_f_one_b
from simtrain.views.schedules import schedule_view

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


@pytest.mark.parametrize("width", [80, 200])
def test_a_schedule_that_is_too_wide_is_cut_with_a_note(width: int) -> None:
    """On 12 stages with 11 chunks each, names of passes have up to 6 letters."""
    lines = shown(page_of(interleaved(12, 11, 24)), width, color_system=None).splitlines()
    assert max(map(len, lines)) <= width
    header = next(line.split() for line in lines if line.startswith("stage"))
    cut = next(line for line in lines if line.startswith("The first"))
    assert f"The first {len(header) - 1} of 550 time" in cut


def test_passes_have_the_colours_of_the_figures_in_a_terminal() -> None:
    page = page_of(one_f_one_b(1, 1))
    text = shown(page, 80, force_terminal=True, color_system="truecolor")
    assert "\x1b[38;2;0;0;0;48;2;86;180;233m0F0\x1b[0m" in text
