"""`simtrain export`."""

from __future__ import annotations

from simtrain.commands.declare import options_first
from simtrain.commands.options import OutOption
from simtrain.commands.printing import emit
from simtrain.commands.question import Question


@options_first("scenario out overrides")
def export(question: Question, out: OutOption = None) -> None:
    """Write a scenario as a script that starts Megatron-LM, so that what was found can be run.

    Args:
        out: file to write. Default: print the text.

    Importing the text again gives the same scenario; comments list the fields that no argument
    sets. Data, tokenizer and learning rate are to be replaced.

    Example: simtrain export llama3_70b -o llama3.sh

    Example: simtrain export gpt3_175b --set parallelism.data=8
    """
    from simtrain.guests.importing.megatron.export import export as export_scenario

    text = export_scenario(question.load(), out)
    if out is None:
        emit(text)
    else:
        emit(f"Wrote {out}. Read it back with: simtrain import {out}\n")
