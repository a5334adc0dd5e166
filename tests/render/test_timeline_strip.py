"""The timeline of `simtrain run` on a terminal: one letter for each slice of time."""

import numpy as np
from rich.console import Console

from simtrain.iteration.report.spans import ACTIVITIES, Spans, StageStream
from simtrain.render.terminal_pictures import TimelineStrip, letters_of_slices
from tests.helpers.toys import run, small


def test_at_most_eight_stages_are_shown() -> None:
    many = run(small({"pipeline": 32}, model={"num_layers": 32}))
    console = Console(width=80, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(TimelineStrip(many))
    lines = capture.get().splitlines()
    numbers = [int(line.split()[1]) for line in lines if line.startswith("stage ")]
    assert len(numbers) == 8 and numbers[0] == 0 and numbers[-1] == 31


def test_letters_are_in_proportion_to_seconds() -> None:
    """Ten times 1 s forward and 2 s backward, then 10 s idle. Each letter covers 2 s."""
    forward, backward = map(ACTIVITIES.index, ("forward", "backward"))
    idle = len(ACTIVITIES)
    starts_s = np.repeat(np.arange(10) * 3.0, 2) + np.tile([0.0, 1.0], 10)
    zeros = np.zeros(20, np.int32)
    bars = Spans(
        task=np.arange(20, dtype=np.int32),
        stage=zeros,
        stream=zeros + StageStream.OWN,
        activity=np.tile([forward, backward], 10),
        pass_number=zeros,
        chunk=zeros,
        microbatch=zeros,
        start_s=starts_s,
        end_s=starts_s + np.tile([1.0, 2.0], 10),
    )
    shown = letters_of_slices(bars, 0, 40.0, 20)
    assert shown[:6] == [forward, backward, backward, forward, backward, backward]
    assert shown.count(forward) == 5 and shown[15:] == [idle] * 5
    assert letters_of_slices(bars, 1, 40.0, 4) == [idle] * 4
