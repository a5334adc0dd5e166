"""`simtrain scenarios`, `simtrain init` and `simtrain schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.shared import emit, listing, shipped_scenarios


def scenarios(
    name: Annotated[
        str | None,
        typer.Argument(help="Print this scenario's file.", autocompletion=shipped_scenarios),
    ] = None,
    copy: Annotated[
        Path | None, typer.Option("--copy", help="Write the scenario's file here, to change it.")
    ] = None,
) -> None:
    """List the scenarios that come with simtrain, or show the file of one.

    Example: simtrain scenarios llama3_70b --copy my_llama.yaml
    """
    from simtrain.resources import find_scenario, list_scenarios
    from simtrain.scenario import load_scenario

    if name is not None:
        _give(find_scenario(name).read_text(encoding="utf-8"), copy)
        return
    if copy is not None:
        raise typer.BadParameter("name the scenario to copy", param_hint="--copy")
    listing((known, load_scenario(known).description or "") for known in list_scenarios())


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("scenario.yaml"),
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start from a scenario that comes with simtrain.",
            autocompletion=shipped_scenarios,
        ),
    ] = None,
) -> None:
    """Write a scenario to start from: every field, with what it means and its default.

    It never overwrites a file.

    Example: simtrain init my_scenario.yaml
    """
    from simtrain.resources import find_scenario
    from simtrain.scenario.template import template

    text = find_scenario(source).read_text(encoding="utf-8") if source else template()
    _give(text, file)


def schema() -> None:
    """Print the JSON schema of scenario files, with a description of every field.

    An editor that has it completes and checks names and values. Write it to scenario.schema.json;
    VS Code with its YAML extension finds it by a scenario's first line:
    # yaml-language-server: $schema=scenario.schema.json

    Example: simtrain schema
    """
    from simtrain.scenario.json_schema import scenario_schema

    emit(json.dumps(scenario_schema(), indent=2) + "\n")


def _give(text: str, file: Path | None) -> None:
    """Print the text, or write it to a file that is not there yet."""
    from simtrain.output_folder import write_new

    if file is None:
        emit(text)
        return
    write_new(file, text)
    emit(f"Wrote {file}. Run it with: simtrain run {file}\n")
