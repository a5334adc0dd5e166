"""`simtrain import`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from simtrain.base.importer import ImportRequest, needed_importer
from simtrain.commands.declare import options_first
from simtrain.commands.loading import check_machine, check_options, next_line, say_assumptions
from simtrain.commands.options import OutOption, SetOption, refuse
from simtrain.commands.printing import emit
from simtrain.commands.question import import_fields
from simtrain.commands.recorder import RECORDERS, Recorder
from simtrain.commands.usage import former_command
from simtrain.errors import InputError, Location

_COMMAND = "simtrain import"


@options_first("words program gpus overrides out env capture model arguments fsdp tp ep")
def import_file(
    words: Annotated[list[str] | None, typer.Argument(metavar="FILE")] = None,
    *,
    recorder: Recorder,
    imports: Annotated[dict[str, Any], import_fields("gpus env model ignore_unknown capture")],
    overrides: SetOption = None,
    out: OutOption = None,
    force: bool = False,
) -> None:
    """Convert a training script, a log, a config, or a program to a scenario.

    Args:
        words: a script that starts Megatron-LM, or its log, a config of DeepSpeed, Megatron-Bridge
            or torchtitan, or a model's config.json. With --capture, perhaps the command that runs
            a script.
        force: replace the file of -o if it exists.

    The file is recognised by its content, and is not run: Python is read as text. A comment on
    each field names the setting that it comes from. The first lines list what is not modelled, with
    its effect.

    Example: simtrain import train.sh --set cluster=h100_sxm --env NNODES=4 -o scenario.yaml

    Example: simtrain import config.json --gpus 64 --set cluster=h100_sxm -o scenario.yaml

    Example: simtrain import --record train.py:main --gpus 64 --arg layers=32 -o run.yaml
    """
    from simtrain.base.output_folder import check_new, write_new
    from simtrain.scenario import load_unchecked

    words = words or []
    (is_recorded, *others) = [*recorder.options.items()] or [("", None)]
    if is_recorded[1]:
        refuse({"FILE": words, **_as_options(imports, "gpus")}, "has no effect with --record")
        recorder.record(imports.get("gpus") or 1, out, overrides or (), force)
        return
    refuse(dict(others), "is only for --record", "add --record FILE.py:FUNCTION")
    if out is None:
        refuse({"--force": force}, "is only for -o", "add -o FILE")
    else:
        check_new(out, force)
    with _source_of(words, imports) as (source, named):
        importer = needed_importer(source)
        request = ImportRequest(source, overrides=overrides or (), **imports)
        check_options(request, importer)
        draft = importer.draft(request)
        scenario, text = draft.finished()
        check_machine(draft, named(source))
        text = named(text)
    if out is None:
        emit(text)
        return
    say_assumptions(draft)
    notes = sum(line.startswith("# - ") for line in text.splitlines())
    write_new(out, text, load_unchecked, force)
    command = next_line(scenario, out, importer, overrides or ())
    emit(f"Wrote {out}; {notes} settings not modelled. Run it with: {command}\n")


# The fields of the plug-in are options; without one there are none.
import_file.__annotations__["recorder"] = next(
    (type(each) for each in RECORDERS.values()), Recorder
)


def _as_options(imports: dict[str, Any], *allowed: str) -> dict[str, object]:
    return {
        f"--{name.replace('_', '-')}": value
        for name, value in imports.items()
        if name not in allowed
    }


@contextmanager
def _source_of(
    words: Sequence[str], imports: dict[str, Any]
) -> Iterator[tuple[str, Callable[[str], str]]]:
    """Yield the source of an import, and a function that names it in texts for the user.

    Raises:
        InputError: there is no source (E903) or there are several (E906), the first word is a
            former command (E901), or a capture fails (E744 to E746).
    """
    if not words:
        fix = "write the path of a file, or --record FILE.py:FUNCTION"
        raise InputError.of("E903", "a file is missing", Location(f"{_COMMAND} FILE"), fix)
    if imports.get("capture"):
        from simtrain.importing.capture import announced_capture, command_of

        with announced_capture(command_of(words), imports.get("env")) as captured:
            yield str(captured.path), captured.named
        return
    source, *surplus = words
    if error := former_command(_COMMAND, source):
        raise error
    if surplus:
        message = f'unexpected argument "{surplus[0]}"; one file is imported'
        kept = [word for word in sys.argv[1:] if word not in surplus]
        line = shlex.join(["simtrain", *kept])
        fix = f"remove it, or quote an argument that has spaces: {line}"
        raise InputError.of("E906", message, Location(_COMMAND), fix)
    yield source, str
