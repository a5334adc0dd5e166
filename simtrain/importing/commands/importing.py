"""`simtrain import`: a command for each importer."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from simtrain.base.importer import Importer, ImportRequest, importer_of_file, importers
from simtrain.commands.app import App
from simtrain.commands.loading import next_line, say_assumptions
from simtrain.commands.options import OutOption, SetOption, refuse
from simtrain.commands.printing import emit
from simtrain.commands.question import import_fields
from simtrain.errors import InputError, Location


def _recognized(word: str) -> str:
    importer = importer_of_file(word)
    return importer.name if importer else ""


import_app = App(
    default=_recognized,
    help="Convert a training script, a log or a model's config to a scenario.",
)
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the file of -o if it exists.")]


@contextmanager
def _source_of(
    importer: Importer, words: Sequence[str], imports: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[str], str]]]:
    """Yield the source of an import, and a function that names it in texts for the user.

    Raises:
        InputError: there are several sources (E906), or a capture fails (E744 to E746).
    """
    if imports.get("capture"):
        from simtrain.importing.capture import announced_capture, command_of

        with announced_capture(command_of(words), imports.get("env")) as captured:
            yield str(captured.path), captured.named
        return
    source, *surplus = words
    if surplus:
        place = f"simtrain import {importer.name}"
        message = f'unexpected argument "{surplus[0]}"; the arguments are: {importer.metavar}'
        kept = [word for word in sys.argv[1:] if word not in surplus]
        line = shlex.join(["simtrain", *kept])
        fix = f"remove it, or quote an argument that has spaces: {line}"
        raise InputError.of("E906", message, Location(place), fix)
    yield source, str


def _command_of(importer: Importer) -> Callable[..., None]:
    """Return the function of an importer's command."""

    def write_scenario(
        words: list[str],
        imports: dict[str, Any],
        out: OutOption = None,
        overrides: SetOption = None,
        force: ForceOption = False,
    ) -> None:
        from simtrain.base.output_folder import check_new, write_new
        from simtrain.scenario import load_unchecked

        if out is None:
            refuse({"--force": force}, "is only for -o", "add -o FILE")
        else:
            check_new(out, force)
        with _source_of(importer, words, imports) as (source, named):
            request = ImportRequest(source, overrides=overrides or (), **imports)
            draft = importer.draft(request)
            scenario, text = draft.finished()
            text = named(text)
        if out is None:
            emit(text)
            return
        say_assumptions(draft)
        notes = sum(line.startswith("# - ") for line in text.splitlines())
        write_new(out, text, load_unchecked, force)
        command = next_line(scenario, out, importer, overrides or ())
        emit(f"Wrote {out}; {notes} settings not modelled. Run it with: {command}\n")

    argument = typer.Argument(metavar=importer.metavar, help=importer.argument)
    write_scenario.__annotations__["words"] = Annotated[list[str], argument]
    write_scenario.__doc__ = inspect.getdoc(importer)
    is_read = {
        "model": importer.reads_model,
        "gpus": True,
        "env": importer.reads_variables,
        "ignore_unknown": True,
        "capture": importer.reads_variables,  # sources with variables are scripts
    }
    names = " ".join(name for name in is_read if is_read[name])
    write_scenario.__annotations__["imports"] = Annotated[dict[str, Any], import_fields(names)]
    return write_scenario


for _importer in importers():
    # With this setting typer does not parse quoted arguments ("--...") as options.
    _settings = {"ignore_unknown_options": True} if _importer.reads_options else {}
    import_app.command(_importer.name, context_settings=_settings)(_command_of(_importer))
