"""`simtrain import`: a command for each importer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from simtrain.base.importer import Importer, ImportRequest, importers
from simtrain.commands.app import App
from simtrain.commands.loading import next_line, say_assumptions
from simtrain.commands.options import SetOption, refuse
from simtrain.commands.output import print_or_write
from simtrain.commands.question import import_fields
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
        imports: dict[str, Any],
        capture: CaptureOption = False,
        out: OutOption = None,
        overrides: SetOption = None,
        force: ForceOption = False,
    ) -> None:
        """Convert a source to a scenario."""
        from simtrain.base.output_folder import check_new

        if out is None:
            refuse({"--force": force}, "is only for --out", "add --out FILE")
        else:
            check_new(out, force)
        with source_of(importer, words, capture, imports.get("env") or {}) as (source, named):
            request = ImportRequest(source, overrides=overrides or (), **imports)
            draft = importer.draft(request)
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
    is_read = {
        "model": importer.reads_model,
        "config": importer.reads_configs,
        "gpus": True,
        "env": importer.reads_variables,
        "ignore_unknown": True,
    }
    names = " ".join(name for name in is_read if is_read[name])
    write_scenario.__annotations__["imports"] = Annotated[dict[str, Any], import_fields(names)]
    if not importer.reads_variables:  # sources with variables are scripts
        signature = inspect.signature(write_scenario)
        kept = [each for name, each in signature.parameters.items() if name != "capture"]
        write_scenario.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return write_scenario


for _importer in importers():
    # With this setting typer does not parse quoted arguments ("--...") as options.
    _settings = {"ignore_unknown_options": True} if _importer.reads_options else {}
    import_app.command(_importer.name, context_settings=_settings)(_command_of(_importer))
