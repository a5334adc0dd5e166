"""The timeline of `simtrain run` on a terminal: one letter for each slice of time."""

import io

import numpy as np
from rich.console import Console

from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import ACTIVITIES, Spans, StageStream
from simtrain.render.terminal_pictures import TimelineStrip, letters_of_slices
from tests.helpers.toys import run, small


def lines_of(result: Result, width: int = 80, *, is_terminal: bool = True) -> list[str]:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None,
        legacy_windows=False,
    )  # fmt: skip
    with console.capture() as capture:
        console.print(TimelineStrip(result))
    return capture.get().splitlines()


def test_a_terminal_shows_a_line_for_each_stage_and_a_legend() -> None:
    title, *lines, blank = lines_of(run(small()))
    stages, legend = lines[:4], " ".join(lines[4:])
    assert title.startswith("What each stage does, ")
    assert [line[:8] for line in stages] == [f"stage {stage} " for stage in range(4)]
    assert all(len(line) == 80 for line in stages) and not blank
    # The last stage waits for its first input; the others wait for their first gradient.
    assert stages[0].startswith("stage 0 F") and stages[3].startswith("stage 3 ·")
    assert set("".join(line[8:] for line in stages)) <= set("FBRTGO·")
    assert "F forward" in legend and "· idle" in legend


def test_a_pipe_gets_no_timeline() -> None:
    assert lines_of(run(small()), is_terminal=False) == []


def test_at_most_eight_stages_are_shown() -> None:
    many = run(small({"pipeline": 32}, model={"num_layers": 32}))
    numbers = [int(line.split()[1]) for line in lines_of(many) if line.startswith("stage ")]
    assert len(numbers) == 8 and numbers[0] == 0 and numbers[-1] == 31


def test_letters_are_in_proportion_to_seconds() -> None:
    """Ten times 1 s forward and 2 s backward, then 10 s idle. Each letter covers 2 s."""
    forward, backward, idle = (
        ACTIVITIES.index("forward"),
        ACTIVITIES.index("backward"),
        len(ACTIVITIES),
    )
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
