"""Record a program: run it in a child process, with a time limit, and say what went wrong.

The child runs code of the user, with the rights of the user, as `python SCRIPT.py` does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simtrain.base.extras import require
from simtrain.base.input_file import FileVersion, read_bytes, similar_names_advice
from simtrain.base.values import dataclass, field
from simtrain.errors import InputError, Location
from simtrain.guests.recording.program import RecordedProgram, read_program

_CHILD = "simtrain.guests.recording.child"
_HOME = str(Path(__file__).parents[3])
# This package comes last on the path, so that nothing beside it stands for another module.
_START = f"import sys; sys.path.append({_HOME!r}); from {_CHILD}.main import main; main()"
_PYTHON = sys.executable, "-P", "-c", _START
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RecordingRequest:
    """A program to record.

    Args:
        script: the Python file.
        function: its function, which returns (model, batch, loss, optimizer).
        gpus: number of ranks.
        microbatches: how often forward and backward pass run before the optimizer.
        arguments: keyword arguments of the function.
        seconds: how long it may run.
        command: the command line, which the recording names.
    """

    script: Path
    function: str
    gpus: int = 1
    microbatches: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 600.0
    command: str = ""


def record_program(request: RecordingRequest) -> RecordedProgram:
    """Run a program and return the recording of a training step.

    What the program prints goes to stderr.

    Raises:
        InputError: there is no such script (E101), torch is missing (E701), or the program cannot
            be recorded (E942 to E949, E954).
    """
    require("simtrain import --record", "torch")
    if not request.script.is_file():
        fix = similar_names_advice(request.script)
        raise InputError.of("E101", "no such file", Location(str(request.script)), fix)
    with TemporaryDirectory(prefix="simtrain-") as name:
        folder = Path(name)
        recording, problem = folder / "step.program.json", folder / "problem.json"
        message = {
            "script": str(request.script.resolve()),
            "function": request.function,
            "gpus": request.gpus,
            "microbatches": request.microbatches,
            "arguments": dict(request.arguments),
            "command": request.command or f"{_CHILD} {request.script}",
            "recording": str(recording),
            "problem": str(problem),
        }
        file = folder / "request.json"
        file.write_text(json.dumps(message), encoding="utf-8")
        status = run_limited([*_PYTHON, str(file)], request.seconds, _environment())
        if problem.is_file():
            raise _error(json.loads(read_bytes(problem, _MOST_BYTES)), request)
        if status is None:
            raise _too_slow(request)
        if not recording.is_file():
            raise _crash(status, request)
        return read_program(FileVersion.of(str(recording)))


def _environment() -> dict[str, str]:
    """Return the variables of the child, whose path has no folder that the user has not named."""
    # An empty or relative entry means the current folder, which may be a downloaded model's.
    path = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    variables = {"TORCH_CPP_LOG_LEVEL": "ERROR", "TORCH_SHOW_CPP_STACKTRACES": "0"}
    variables |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(path)}


def _too_slow(request: RecordingRequest) -> InputError:
    place = Location(_name(request))
    message = f"is not recorded after {request.seconds:g} s"
    fix = (
        "record fewer layers, or allow more time: --seconds 3600; an endless loop needs another fix"
    )
    reason = "a step on fake tensors takes seconds, because nothing is computed"
    return InputError.of("E947", message, place, fix, reason)


def _crash(status: int, request: RecordingRequest) -> InputError:
    how = f"signal {-status}" if status < 0 else f"exit code {status}"
    message = f"ended with {how} and no recording"
    fix = "see its output above; a call of compiled code, or too little memory, may be the cause"
    return InputError.of("E948", message, Location(_name(request)), fix)


def _name(request: RecordingRequest) -> str:
    return f"{request.script}:{request.function}"


def _error(problem: Mapping[str, Any], request: RecordingRequest) -> InputError:
    """Return the error of a problem that the child has met."""
    source = problem["source"]
    file = problem["file"]
    if file == str(request.script.resolve()):
        file = str(request.script)
    place = Location(file, problem["line"], 1 if source else None, source)
    code, *texts = _ERRORS[problem["name"]]
    fields = {**problem, "function": request.function}
    message, reason, fix = (text and text.format(**fields) for text in texts)
    return InputError.of(code, str(message), place, fix, reason)


_CALL = (
    "the function is called without arguments, besides those of --arg, and returns (model, batch, "
    "loss) or (model, batch, loss, optimizer), where loss(model, batch) is a scalar"
)
_ERRORS: Mapping[str, tuple[str, str, str | None, str]] = {
    "value": (
        "E943",
        "{message} needs a value that only a run has",
        "tensors of a recording have shapes and no values, so that no GPU is needed",
        "take the value from a shape or an argument, or return something typical while recording",
    ),
    "cuda": (
        "E944",
        "calls CUDA: {message}",
        "programs are recorded without GPUs, and this needs one",
        "call it only if torch.cuda.is_available(), which is false while a program is recorded",
    ),
    "package": (
        "E945",
        "needs the package {message}, which cannot be imported",
        None,
        "install it beside simtrain: pip install {message}",
    ),
    "packages": (
        "E945",
        "cannot import a package that it needs: {message}",
        None,
        "install it beside simtrain",
    ),
    "exit": (
        "E946",
        "ends the program (exit code {message}) before a step",
        None,
        "let {function} return (model, batch, loss, optimizer)",
    ),
    "wrong": ("E949", "{message}", _CALL, "see simtrain show record_a_program"),
    "unrecordable": ("E954", "uses {message}, which cannot be recorded", "{why}", "{fix}"),
    "raised": (
        "E942",
        "raises {kind}: {message}",
        None,
        "see the traceback above, and whether the program runs on real tensors",
    ),
}
"""Code, message, reason and remedy of each kind of problem, with fields of the problem."""


_SECONDS_TO_END = 2.0


def run_limited(command: list[str], seconds: float, variables: Mapping[str, str]) -> int | None:
    """Run a command whose output goes to stderr; return its exit code, None if it took too long.

    All processes that it has started end with it, unless they leave its session.

    Args:
        command: the command.
        seconds: how long it may run.
        variables: its environment.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, env=dict(variables)
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its session: kindly if it still runs, then by force."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
