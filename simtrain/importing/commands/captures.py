"""`simtrain import ... --capture -- COMMAND`: import what a launch script starts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from simtrain.base.importer import Importer
from simtrain.commands.printing import emit
from simtrain.errors import InputError, Location

CaptureOption = Annotated[
    bool,
    typer.Option(
        "--capture",
        help="Run the command after -- in your shell, with recorders in place of torchrun, python, "
        "srun, mpirun and deepspeed, and import what it would start: exact, and the only option "
        "that runs your script.",
    ),
]


@contextmanager
def source_of(
    importer: Importer, words: Sequence[str], is_command: bool, env: Mapping[str, str]
) -> Iterator[tuple[str, Callable[[str], str]]]:
    """Yield the source of an import, and a function that names it in texts for the user.

    Args:
        importer: the importer that reads it.
        words: the arguments of the command line.
        is_command: whether they are a command to capture, in place of one source.
        env: values of variables.

    Raises:
        InputError: there are several sources (E906), or the capture fails (E744 to E746).
    """
    if not is_command:
        yield _one(importer, words), str
        return
    from simtrain.importing.capture import capture

    emit(
        f"Running: {shlex.join(words)}. Programs that it starts run, except launchers, which are "
        "recorded.\n",
        sys.stderr,
    )
    with capture(words, env) as captured:
        programs = ", ".join(dict.fromkeys(launch.program for launch in captured.launches))
        emit(f"Recorded, not started: {programs}.\n", sys.stderr)
        yield str(captured.path), captured.named


def _one(importer: Importer, words: Sequence[str]) -> str:
    source, *surplus = words
    if surplus:
        place = f"simtrain import {importer.name}"
        message = f'unexpected argument "{surplus[0]}"; the arguments are: {importer.metavar}'
        kept = [word for word in sys.argv[1:] if word not in surplus]
        line = shlex.join(["simtrain", *kept])
        fix = f"remove it, or quote an argument that has spaces: {line}"
        raise InputError.of("E906", message, Location(place), fix)
    return source
