"""`simtrain advise`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from simtrain.commands.import_options import reads_other_tools
from simtrain.commands.output import CsvOption, MarkdownOption, Output, TableOption, show
from simtrain.commands.shared import (
    JsonOption,
    ScaleOption,
    ScenarioArgument,
    SetOption,
    all_overrides,
    status,
)


@reads_other_tools
def advise(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    scale: ScaleOption = None,
    top: Annotated[int, typer.Option("--top", min=1, help="The most changes to print.")] = 5,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
    table: TableOption = None,
) -> None:
    """Print the single changes that save the most time, each with its price in memory.

    GPUs, model and global batch stay as they are. Changes that do not fit in memory are left out.
    Several changes together: simtrain search.

    Example: simtrain advise llama3_70b --top 3
    """
    from simtrain.commands.loading import load_scenario
    from simtrain.studies.advice import advise as find_changes
    from simtrain.views.advice import advice_view

    output = Output(as_json, as_csv, as_markdown, table)
    loaded = load_scenario(scenario, all_overrides(overrides, scale))
    with status(f"simulating {loaded.name}") as show_status:
        advice = find_changes(loaded, top, on_progress=show_status)
    show(output, advice, partial(advice_view, advice), loaded.cluster)
