"""`simtrain timeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from simtrain.commands.declare import Written
from simtrain.commands.options import parse_numbers, parse_window_s
from simtrain.commands.printing import emit, status
from simtrain.commands.question import Question


def timeline(
    out: Path,
    question: Question,
    stages: Annotated[list[int] | None, Written(parse_numbers)] = None,
    window: Annotated[tuple[float, float] | None, Written(parse_window_s)] = None,
    *,
    memory: bool = True,
) -> None:
    """Draw the timeline of each pipeline stage: passes, communication, optimizer and idle time.

    Args:
        out: picture file: .png, .svg or .pdf.
        stages: stages to show, such as 0,1,63. Default: all.
        window: time to show, such as 0s:2s or 500ms:1s. Default: all, or three parts of it.
        memory: draw memory over time below.

    Each stage has a row for its passes, a row for its transfers to other stages and, if they
    overlap with passes, a row for its gradient and parameter buckets. Passes are labelled with
    their microbatch if there is room. Recompute is drawn at the start of its backward pass.

    An iteration with more than 100 passes per stage is drawn in three parts: its start, a piece of
    its steady part, and its end. --window shows any other time.

    Example: simtrain timeline table5_175b_present --out timeline.svg --window 0s:4s
    """
    from simtrain.base.output_folder import check_writable
    from simtrain.render.figures.style import check_picture_file, write_picture
    from simtrain.render.figures.subject import footer_of_result
    from simtrain.render.figures.timeline import plot_timeline
    from simtrain.studies.simulation import simulate

    scenario = question.load()
    check_picture_file(out)
    check_writable(out, "a picture")
    with status(f"drawing {scenario.name}"):
        result = simulate(scenario)
        figure = plot_timeline(result, stages, window, memory=memory)
        write_picture(figure, out, footer_of_result(result))
    emit(f"{out}\n")
