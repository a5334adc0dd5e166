"""`simtrain timeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.import_options import reads_other_tools
from simtrain.commands.shared import (
    ScaleOption,
    ScenarioArgument,
    SetOption,
    StagesOption,
    WindowOption,
    all_overrides,
    emit,
    parse_numbers,
    parse_window_s,
    status,
)


@reads_other_tools
def timeline(
    scenario: ScenarioArgument,
    out: Annotated[Path, typer.Option("--out", help="Picture file: .png, .svg or .pdf.")],
    overrides: SetOption = None,
    scale: ScaleOption = None,
    stages: StagesOption = None,
    window: WindowOption = None,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Draw memory over time below.")
    ] = True,
) -> None:
    """Draw the timeline of each pipeline stage: passes, communication, optimizer and idle time.

    Each stage has a row for its passes, a row for its transfers to other stages and, if they
    overlap with passes, a row for its gradient and parameter buckets. Passes are labelled with
    their microbatch if there is room. Recompute is drawn at the start of its backward pass.

    An iteration with more than 100 passes per stage is drawn in three parts: its start, a piece of
    its steady part, and its end. --window shows any other time.

    Example: simtrain timeline table5_175b_present --out timeline.svg --window 0s:4s
    """
    from simtrain.base.output_folder import check_writable
    from simtrain.commands.loading import load_scenario
    from simtrain.render.figures.style import check_picture_file, write_picture
    from simtrain.render.figures.subject import footer_of_result
    from simtrain.render.figures.timeline import plot_timeline
    from simtrain.studies.simulation import simulate

    loaded = load_scenario(scenario, all_overrides(overrides, scale))
    stage_numbers, window_s = parse_numbers(stages, "--stages"), parse_window_s(window)
    check_picture_file(out)
    check_writable(out, "a picture")
    with status(f"drawing {loaded.name}"):
        result = simulate(loaded)
        figure = plot_timeline(result, stage_numbers, window_s, memory=memory)
        write_picture(figure, out, footer_of_result(result))
    emit(f"{out}\n")
