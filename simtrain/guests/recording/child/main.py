"""Record a program: the main function of the process that runs it.

The request is a JSON file with the script, its function, keyword arguments, the number of ranks,
and the files to write: the recording, or what went wrong.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from simtrain.guests.recording.child.problems import WrongProgram, problem_of


def main() -> NoReturn:
    """Record what a request says, and end, whatever the program has left running."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    number = os.getpid()
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
    if os.getpid() != number:
        os._exit(0)


def write_recording(request: dict[str, Any], number: int) -> None:
    """Run the program of a request, and write its recording in the process with a number."""
    import torch

    from simtrain.guests.recording.child.recording import program_of
    from simtrain.guests.recording.child.step import record

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


def function_of(request: dict[str, Any]) -> Callable[..., Any]:
    """Import a script as Python runs it, with the modules beside it; return its function.

    Raises:
        WrongProgram: it has no such function.
    """
    script, name = Path(request["script"]), request["function"]
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script)]
    spec = importlib.util.spec_from_file_location(script.stem, script)
    if spec is None or spec.loader is None:
        raise WrongProgram("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    spec.loader.exec_module(module)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        functions = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == script.stem
        ]
        names = f"; its functions are {', '.join(functions[:8])}" if functions else ""
        raise WrongProgram(f"it has no function {name}{names}")
    return function
