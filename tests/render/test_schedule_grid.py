"""The grid of a schedule that `simtrain run --show schedule` prints on a terminal."""

import pytest
from rich.console import Console

from simtrain.render.terminal import terminal_page
from simtrain.schedules import interleaved
from simtrain.views.schedules import schedule_view


@pytest.mark.parametrize("width", [80, 200])
def test_a_schedule_that_is_too_wide_is_cut_with_a_note(width: int) -> None:
    """On 12 stages with 11 chunks each, names of passes have up to 6 letters."""
    console = Console(width=width, legacy_windows=False, color_system=None)
    with console.capture() as capture:
        console.print(terminal_page(schedule_view(interleaved(12, 11, 24))))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    header = next(line.split() for line in lines if line.startswith("stage"))
    cut = next(line for line in lines if line.startswith("The first"))
    assert f"The first {len(header) - 1} of 550 time" in cut
