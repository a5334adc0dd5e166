"""`simtrain scenarios`, `simtrain init` and `simtrain schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.completion import shipped_scenarios
from simtrain.commands.options import refuse
from simtrain.commands.output import ListOutput, print_or_write, show_view
from simtrain.commands.printing import emit_data


def scenarios(
    name: Annotated[str | None, typer.Argument(autocompletion=shipped_scenarios)] = None,
    copy: Path | None = None,
    *,
    output: ListOutput,
) -> None:
    """List the scenarios that come with simtrain, or print or copy one of them.

    Args:
        name: scenario to print.
        copy: file to write the scenario to.

    Example: simtrain scenarios llama3_70b --copy my_llama.yaml
    """
    from simtrain.base.file_kinds import SCENARIO, text_of_kind
    from simtrain.base.resources import find_scenario, list_scenarios
    from simtrain.scenario import load_scenario
    from simtrain.views.view import names_view

    if name is not None:
        of_lists = {"--csv": output.as_csv, "--markdown": output.as_markdown}
        refuse(of_lists, "is for the list of scenarios")
        print_or_write(text_of_kind(find_scenario(name), SCENARIO), copy)
        return
    refuse({"--copy": copy}, "copies no scenario", "add the name of the scenario to copy")
    rows = ((name, load_scenario(name).description or "") for name in list_scenarios())
    show_view(output, names_view(("scenario", "description"), rows))


def init(
    file: Annotated[Path, typer.Argument()] = Path("scenario.yaml"),
    source: Annotated[str | None, typer.Option("--from", autocompletion=shipped_scenarios)] = None,
    *,
    full: bool = False,
) -> None:
    """Write a scenario file to start from: a small GPT, or a copy of a shipped scenario.

    Args:
        file: file to write.
        source: copy this scenario, which comes with simtrain.
        full: list every field with its meaning and its default.

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
