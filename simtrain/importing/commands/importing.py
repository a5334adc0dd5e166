"""`simtrain import`: a command for each importer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from simtrain.base.importer import Importer, importers
from simtrain.commands.app import App
from simtrain.commands.import_options import (
    ConfigOption,
    EnvOption,
    GpusOption,
    IgnoreOption,
    ImportOptions,
    ModelOption,
)
from simtrain.commands.loading import next_line, say_assumptions
from simtrain.commands.options import SetOption, refuse
from simtrain.commands.output import print_or_write
from simtrain.importing.commands.captures import CaptureOption, source_of

import_app = App(
    help="Convert a training script, a log or a model's config to a scenario.",
    panel="Write",
)
OutOption = Annotated[
    Path | None, typer.Option("--out", help="File to write. Default: print the scenario.")
]

ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace the file of --out if it exists.")
]


def _command_of(importer: Importer) -> Callable[..., None]:
    """Return the function of an importer's command."""

    def write_scenario(
        words: list[str],
        capture: CaptureOption = False,
        model: ModelOption = None,
        config: ConfigOption = None,
        out: OutOption = None,
        overrides: SetOption = None,
        gpus: GpusOption = None,
        env: EnvOption = None,
        ignore_unknown: IgnoreOption = False,
        force: ForceOption = False,
    ) -> None:
        """Convert a source to a scenario."""
        from simtrain.base.output_folder import check_new

        if out is None:
            refuse({"--force": force}, "is only for --out", "add --out FILE")
        else:
            check_new(out, force)
        options = ImportOptions.of(gpus, env, model, config)
        with source_of(importer, words, capture, options.env) as (source, named):
            draft = importer.draft(
                options.request(importer, source, overrides or (), ignore_unknown=ignore_unknown)
            )
            scenario, text = draft.finished()
            text = named(text)
        num_notes = sum(line.startswith("# - ") for line in text.splitlines())
        notes = f"{num_notes} settings are" if num_notes != 1 else "1 setting is"
        if out:
            say_assumptions(draft)
        command = next_line(scenario, out, importer, overrides or ()) if out else ""
        print_or_write(text, out, f"; {notes} not modelled", command, replaces=force)

    argument = typer.Argument(metavar=importer.metavar, help=importer.argument)
    write_scenario.__annotations__["words"] = Annotated[list[str], argument]
    write_scenario.__doc__ = inspect.getdoc(importer)
    has_option = {
        "model": importer.reads_model,
        "config": importer.reads_configs,
        "env": importer.reads_variables,
        # Sources with variables are scripts.
        "capture": importer.reads_variables,
    }
    signature = inspect.signature(write_scenario, eval_str=True)
    kept = [each for name, each in signature.parameters.items() if has_option.get(name, True)]
    # typer reads the options of a command from its signature.
    write_scenario.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return write_scenario


for _importer in importers():
    # With this setting typer does not parse quoted arguments ("--...") as options.
    _settings = {"ignore_unknown_options": True} if _importer.reads_options else {}
    import_app.command(_importer.name, context_settings=_settings)(_command_of(_importer))
