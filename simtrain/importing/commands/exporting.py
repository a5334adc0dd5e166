"""`simtrain export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.declare import options_first
from simtrain.commands.options import OutOption
from simtrain.commands.printing import emit
from simtrain.commands.question import Question
from simtrain.errors import InputError, Location, did_you_mean, printable
from simtrain.importing.exporters import EXPORTERS, Exporter


@options_first("scenario to out overrides")
def export(
    question: Question,
    to: Annotated[str, typer.Option(autocompletion=lambda: [*EXPORTERS])] = "",
    out: OutOption = None,
) -> None:
    """Write a scenario as a framework reads it, so that what was found can be run.

    Args:
        to: framework, such as megatron. Default: as the ending of the file says, .sh for megatron.
        out: file to write. Default: print the text.

    Importing the text again gives the same scenario; comments list the fields that the framework
    cannot say. Data, tokenizer and learning rate are to be replaced.

    Example: simtrain export llama3_70b -o llama3.sh

    Example: simtrain export gpt3_175b --set parallelism.data=8 --to megatron
    """
    from simtrain.base.output_folder import write_new
    from simtrain.studies.evaluation import Evaluator

    exporter = _exporter(to, out)
    # No framework chooses recompute: its answer is written.
    scenario = question.load()
    if scenario.program is not None:
        message = f"the program {scenario.program} is code of its own"
        fix = "run the script from which it was recorded"
        raise InputError.of("E952", message, Location(question.scenario), fix)
    chosen = Evaluator(allow_oom=True).evaluate(scenario)
    text = exporter.write(chosen.scenario)
    if out is None:
        emit(text)
        return
    write_new(out, printable(text))
    emit(f"Wrote {out}. Read it back with: simtrain import {out}\n")


def _exporter(name: str, out: Path | None) -> Exporter:
    """Return the exporter of a framework, or of the ending of a file.

    Raises:
        InputError: there is none (E904), or neither says which (E903).
    """
    if name in EXPORTERS:
        return EXPORTERS[name]
    place = Location("simtrain export --to")
    if name:
        message = f'"{name}" is no framework that scenarios are written for'
        fix = f"{did_you_mean(name, EXPORTERS)}write {', '.join(EXPORTERS)}"
        raise InputError.of("E904", message, place, fix)
    ending = out.suffix if out else ""
    for each in EXPORTERS.values():
        if each.ending and each.ending == ending:
            return each
    raise InputError.of("E903", "is missing", place, f"write --to {' or --to '.join(EXPORTERS)}")
