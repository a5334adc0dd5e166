"""The timeline of `simtrain run` on a terminal: one letter for each slice of time."""

import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import ACTIVITIES, Spans, StageStream
from simtrain.render.terminal_pictures import TimelineStrip, letters_of_slices
from simtrain.units import format_seconds
from tests.helpers.toys import run, small

TEN_STAGES = run(small({"pipeline": 10}, model={"num_layers": 10}))


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


@pytest.mark.parametrize("width", [12, 18, 19, 120])
def test_at_most_eight_stages_have_a_line_of_letters_each(width: int) -> None:
    """Names leave one space. At least ten letters are drawn; a narrower terminal crops them."""
    lines = [line for line in lines_of(TEN_STAGES, width) if re.match(r"stage \d", line)]
    assert [int(line.split()[1]) for line in lines] == [0, 1, 3, 4, 5, 6, 8, 9]
    assert all(len(line) == width and line[7] == " " != line[8] for line in lines)
    seconds = format_seconds(TEN_STAGES.iteration_time_s / max(width - 8, 10))
    title = "".join(lines_of(TEN_STAGES, width)).replace(" ", "")
    assert f"does,{seconds.replace(' ', '')}perletter" in title


def bars_of(passes: list[tuple[int, int]]) -> Spans:
    """Return activities of stage 0, with their seconds, that follow one another from 0 s on."""
    activities, seconds = np.array(passes).T
    zeros, ends_s = np.zeros(len(passes), np.int32), np.cumsum(seconds).astype(float)
    return Spans(
        task=np.arange(len(passes), dtype=np.int32),
        stage=zeros,
        stream=zeros + StageStream.OWN,
        activity=activities.astype(np.int32),
        pass_number=zeros,
        chunk=zeros,
        microbatch=zeros,
        start_s=ends_s - seconds,
        end_s=ends_s,
    )


FORWARD, BACKWARD, IDLE = 0, ACTIVITIES.index("backward"), len(ACTIVITIES)


def test_letters_are_in_proportion_to_seconds() -> None:
    """Ten times 1 s forward and 2 s backward, then 10 s idle. Each letter covers 2 s."""
    bars = bars_of([(FORWARD, 1), (BACKWARD, 2)] * 10)
    shown = letters_of_slices(bars, 0, 40.0, 20)
    assert shown[:6] == [FORWARD, BACKWARD, BACKWARD, FORWARD, BACKWARD, BACKWARD]
    assert shown.count(FORWARD) == 5 and shown[15:] == [IDLE] * 5
    assert letters_of_slices(bars, 1, 40.0, 4) == [IDLE] * 4


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(1, 9)), min_size=1, max_size=40),
    st.integers(0, 30),
    st.integers(1, 60),
)
def test_a_letter_shows_an_activity_of_its_slice(
    passes: list[tuple[int, int]], idle_s: int, num_slices: int
) -> None:
    bars = bars_of(passes)
    each_second = [kind for kind, seconds in passes for _ in range(seconds)] + [IDLE] * idle_s
    end_s = len(each_second)
    shown = letters_of_slices(bars, 0, float(end_s), num_slices)
    assert len(shown) == num_slices
    for slice_, kind in enumerate(shown):
        first, last = slice_ * end_s // num_slices, -(-(slice_ + 1) * end_s // num_slices)
        assert kind in each_second[first:last]
    for kind in {*each_second}:
        share = each_second.count(kind) * num_slices / end_s
        assert abs(shown.count(kind) - share) < 3
