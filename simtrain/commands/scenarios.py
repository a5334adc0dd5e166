"""`simtrain scenarios`, `simtrain init` and `simtrain schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.output import CsvOption, MarkdownOption, Output, show_view
from simtrain.commands.shared import (
    emit_data,
    print_or_write,
    refuse,
    shipped_scenarios,
)


def scenarios(
    name: Annotated[
        str | None,
        typer.Argument(help="Scenario to print.", autocompletion=shipped_scenarios),
    ] = None,
    copy: Annotated[
        Path | None, typer.Option("--copy", help="File to write the scenario to.")
    ] = None,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
) -> None:
    """List the scenarios that come with simtrain, or print or copy one of them.

    Example: simtrain scenarios llama3_70b --copy my_llama.yaml
    """
    from simtrain.base.file_kinds import SCENARIO, text_of_kind
    from simtrain.base.resources import find_scenario, list_scenarios
    from simtrain.scenario import load_scenario
    from simtrain.views.names import names_view

    output = Output(as_csv=as_csv, as_markdown=as_markdown)
    if name is not None:
        of_lists = {"--csv": as_csv, "--markdown": as_markdown}
        refuse(of_lists, "is for the list of scenarios")
        print_or_write(text_of_kind(find_scenario(name), SCENARIO), copy)
        return
    refuse({"--copy": copy}, "copies no scenario", "add the name of the scenario to copy")
    rows = ((name, load_scenario(name).description or "") for name in list_scenarios())
    show_view(output, names_view(("scenario", "description"), rows))


def init(
    file: Annotated[Path, typer.Argument(help="File to write.")] = Path("scenario.yaml"),
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Copy this scenario, which comes with simtrain.",
            autocompletion=shipped_scenarios,
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="List every field with its meaning and its default.")
    ] = False,
) -> None:
    """Write a scenario file to start from: a small GPT, or a copy of a shipped scenario.

    An existing file is an error.

    Example: simtrain init my_scenario.yaml
    """
    from simtrain.base.file_kinds import SCENARIO, text_of_kind
    from simtrain.base.resources import find_scenario
    from simtrain.scenario.template import full_template, template

    if source:
        refuse({"--full": full}, "has no effect with --from")
        text = text_of_kind(find_scenario(source), SCENARIO)
    else:
        text = full_template() if full else template()
    print_or_write(text, file)


def schema() -> None:
    """Print the JSON schema of scenario files, with a description of every field.

    Editors use it to complete and check names and values. For VS Code with its YAML extension,
    save it as scenario.schema.json and begin the scenario with this line:
    # yaml-language-server: $schema=scenario.schema.json

    Example: simtrain schema
    """
    from simtrain.scenario.json_schema import scenario_schema

    emit_data(json.dumps(scenario_schema(), indent=2) + "\n")
