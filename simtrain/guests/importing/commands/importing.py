"""`simtrain import`."""

from __future__ import annotations

from typing import Annotated, Any

from simtrain.base.importer import RECORDERS, ImportRequest, Recorder, needed_importer
from simtrain.commands.declare import Argument, options_first
from simtrain.commands.options import OutOption, SetOption, refuse
from simtrain.commands.printing import emit
from simtrain.commands.question import import_fields
from simtrain.errors import InputError, Location
from simtrain.guests.importing.loading import check_machine, next_line, prepared, say_assumptions


@options_first("file program gpus overrides out env model arguments")
def import_file(
    file: Annotated[str, Argument("FILE")] = "",
    *,
    recorder: Recorder,
    imports: Annotated[dict[str, Any], import_fields("gpus env model ignore_unknown capture")],
    overrides: SetOption = None,
    out: OutOption = None,
    force: bool = False,
) -> None:
    """Convert a training script, a log, a config, or a program to a scenario.

    Args:
        file: a script that starts Megatron-LM, or its log, a config of DeepSpeed, Megatron-Bridge
            or torchtitan, or a model's config.json.
        out: file for the scenario. Default: print it.
        force: replace the file of -o if it exists.

    The file is recognised by its content, and is not run. A comment on each field names the setting
    that it comes from. The first lines list what is not modelled, with its effect.

    Example: simtrain import train.sh --set cluster=h100_sxm --env NNODES=4 -o scenario.yaml

    Example: simtrain import config.json --gpus 64 --set cluster=h100_sxm -o model.yaml

    Example: simtrain import --record train.py:main --gpus 64 --arg layers=32 -o run.yaml
    """
    from simtrain.base.output_folder import check_new, write_new

    (is_recorded, *others) = [*recorder.options.items()] or [("", None)]
    if is_recorded[1]:
        gpus = imports.pop("gpus", None) or 1
        unread = {f"--{name.replace('_', '-')}": value for name, value in imports.items()}
        refuse({"FILE": file, **unread}, "has no effect with --record")
        recorder.record(gpus, out, overrides or (), force)
        return
    refuse(dict(others), "is only for --record", "add --record FILE.py:FUNCTION")
    if out is None:
        refuse({"--force": force}, "is only for -o", "add -o FILE")
    else:
        check_new(out, force)
    if not file:
        fix = "write the path of a file, or --record FILE.py:FUNCTION"
        raise InputError.of("E903", "a file is missing", Location("simtrain import FILE"), fix)
    importer = needed_importer(file)
    request = prepared(ImportRequest(file, overrides=overrides or (), **imports), importer)
    draft = importer.draft(request)
    scenario, text = draft.finished()
    check_machine(draft, file)
    if out is None:
        emit(text)
        return
    say_assumptions(draft)
    notes = sum(line.startswith("# - ") for line in text.splitlines())
    write_new(out, text, force)
    command = next_line(scenario, out, importer, overrides or ())
    emit(f"Wrote {out}; {notes} settings not modelled. Run it with: {command}\n")


# The fields of the plug-in are options; without one there are none.
import_file.__annotations__["recorder"] = next(
    (type(each) for each in RECORDERS.values()), Recorder
)
