"""`simtrain export`."""

from __future__ import annotations

from typing import Annotated

import typer

from simtrain.commands.declare import options_first
from simtrain.commands.options import OutOption
from simtrain.commands.printing import emit
from simtrain.commands.question import Question
from simtrain.importing.exporters import EXPORTERS
from simtrain.importing.exporters import export as export_scenario


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
    text = export_scenario(question.load(), to, out)
    if out is None:
        emit(text)
    else:
        emit(f"Wrote {out}. Read it back with: simtrain import {out}\n")
