"""Record a program: the main function of the process that runs it.

The request is a JSON file with the script, its function, keyword arguments, the number of ranks,
and the files to write: the recording, or what went wrong.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from simtrain.recording.child.memory_limit import limit_memory
from simtrain.recording.child.problems import problem_of


def main() -> NoReturn:
    """Record what a request says, and end, whatever the program has left running."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    number = os.getpid()
    limit_memory()
    try:
        write_recording(request, number)
    except BaseException as error:  # also sys.exit and Ctrl-C of the program
        _end_copies(number)
        problem = problem_of(error, request["script"])
        if problem["name"] == "raised":
            traceback.print_exc()
        Path(request["problem"]).write_text(json.dumps(problem), encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the program has closed it
            stream.flush()
    os._exit(0)  # threads and atexit handlers of the program may take for ever


def _end_copies(number: int) -> None:
    """End a process that the program has forked, and that has returned to here."""
    if os.getpid() != number:
        os._exit(0)


def write_recording(request: dict[str, Any], number: int) -> None:
    """Run the program of a request, and write its recording in the process with a number."""
    import torch

    from simtrain.recording.child.loading import function_of
    from simtrain.recording.child.recording import program_of
    from simtrain.recording.child.step import record

    torch.set_num_threads(1)
    step = record(
        lambda **arguments: function_of(request)(**arguments),
        request["arguments"],
        request["gpus"],
        request["microbatches"],
    )
    _end_copies(number)
    program = program_of(step, request)
    Path(request["recording"]).write_text(program, encoding="utf-8")
